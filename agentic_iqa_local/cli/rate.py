"""The command rate: a page at which a person rates the pictures of a folder."""

import argparse
from contextlib import closing

from agentic_iqa_local.batch.inputs import expand_inputs
from agentic_iqa_local.batch.rating_file import RatingFile
from agentic_iqa_local.cli.console import tell
from agentic_iqa_local.cli.learn import DESCRIPTIONS, without_eye
from agentic_iqa_local.cli.options import UsageError, check_set_up, chosen_settings, device_of
from agentic_iqa_local.errors import counted, one_line
from agentic_iqa_local.files import PROGRAM
from agentic_iqa_local.judgement.described import Describer
from agentic_iqa_local.judgement.identity import ANSWERS
from agentic_iqa_local.services import Services


def rate(args: argparse.Namespace) -> int:
    """Serves the page until it is ended; the exit status. Raises UserError."""
    if not args.folder.is_dir():
        raise UsageError(f"{args.folder}: expected a folder", "name one with pictures")
    from agentic_iqa_local.serve.guard import listening, run, url_of
    from agentic_iqa_local.serve.rating import RatingSession
    from agentic_iqa_local.serve.rating_app import make_app

    pictures = expand_inputs([str(args.folder)])
    file = RatingFile(args.out or args.folder / "ratings.csv")
    settings = without_eye(chosen_settings(args))
    check_set_up(settings, "letters")
    with (
        listening("127.0.0.1", args.port) as address,
        closing(Services(settings, device_of(args))) as services,
    ):
        services.client(ANSWERS)  # what cannot be loaded is told before the page opens
        session = RatingSession(pictures, file, Describer(services, DESCRIPTIONS))
        tell(f"open {url_of(address)} in a browser; Ctrl-C ends, each rating is kept at once")
        run(make_app(session), address)
    tell(_ended(file))
    return 0


def _ended(file: RatingFile) -> str:
    ratings = counted(len(file.rows), "rating")
    learn = f"{PROGRAM} learn {file.file} --out my_eye"
    return one_line(f"{file.file}: {ratings}; learn from them with: {learn}")
