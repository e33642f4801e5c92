"""The first hour on new hardware: does this set-up read on this machine what it should, and may its scores be
compared with those of others?

examples:
  {certify}                                            the embedded model, on a GPU if there is one
  {certify} --config qwen2_5_vl_7b --gpu 0 --out cert/gpu0
  {certify} --config qwen2_5_vl_7b --gpu 0 --against cert/other/certificate.json
  {certify} --study /data/labelled --out cert/study    also a folder of pictures with scores
  {certify} --quick                                    no engines, formats, study and speed

Sixteen probe pictures, the same everywhere, are read by the set-up, by transformers alone in float32, by
other engines and number formats, alone, in batches, after another prompt and in fresh processes; the tools
measure them. Each check compares two readings against a stated bound (docs/certify.md) and gives its verdict
in one sentence. --out gets certificate.json and certificate.html; another machine's certificate.json is what
--against takes. What cannot run here is "not run" with its reason, and never passes.

Exit status: 0 sound, 1 a check failed, 2 wrong usage, 130 interrupted; what was found by then is written.
"""

import argparse
import sys
import tempfile
import textwrap
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from agentic_iqa_local.cli import add_set_up, chosen_settings
from agentic_iqa_local.cli.console import Parser, exit_status, like_ctrl_c, safe_streams
from agentic_iqa_local.errors import UserError

if TYPE_CHECKING:
    from agentic_iqa_local.offline.certify.certification import Certification
    from agentic_iqa_local.offline.certify.check import Check


class CertifyUsage(UserError, ValueError):
    """An option that makes no sense."""


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser.of("certify", __doc__)
    add_set_up(parser)
    parser.add_argument(
        "--out", type=Path, default=Path("certificate"), metavar="DIR", help="default: %(default)s/"
    )
    parser.add_argument(
        "--against", type=Path, metavar="FILE", help="another machine's certificate.json, to compare with"
    )
    parser.add_argument(
        "--study",
        type=Path,
        metavar="FOLDER",
        help="pictures with scores, as study reads them (default: synthetic distortions of the samples)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="leave out engines, number formats, study and speed"
    )
    parser.add_argument(
        "--restarts", type=int, default=2, metavar="N", help="fresh processes that read again (default: 2)"
    )
    parser.add_argument(
        "--timeout", type=float, default=1800, metavar="S", help="seconds a process may take (default: 1800)"
    )
    parser.add_argument(
        "--only", metavar="NAMES", help="these checks alone, with commas: record,plain-forward,tools"
    )
    args = parser.parse_args(argv)
    if not 1 <= args.restarts <= 20:
        parser.error("--restarts: expected 1 to 20")
    if not 0 < args.timeout <= 86_400:
        parser.error("--timeout: expected more than 0 and at most 86400 seconds")
    return args


@safe_streams()
def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    return exit_status(lambda: certify(args))


def certify(args: argparse.Namespace) -> int:
    """Runs, prints and writes all of it. Raises UserError for options that cannot be used."""
    from agentic_iqa_local.cli.outputs import result_folder
    from agentic_iqa_local.devices import choose_device
    from agentic_iqa_local.offline.certify.certificate import read_certificate
    from agentic_iqa_local.offline.certify.certification import Certification, Wanted
    from agentic_iqa_local.offline.certify.report import JSON
    from agentic_iqa_local.offline.certify.study import check_labelled

    if args.study:
        check_labelled(args.study)
    result_folder("--out", args.out, JSON)
    other = (read_certificate(args.against), args.against.name) if args.against else None
    settings = chosen_settings(args)
    wanted = Wanted(
        settings,
        choose_device(args.gpu, args.cpu),
        gpu=args.gpu,
        cpu=args.cpu,
        quick=args.quick,
        study=args.study,
        other=other,
        restarts=args.restarts,
        only=_chosen(args),
        timeout=args.timeout,
    )
    with tempfile.TemporaryDirectory(prefix="certify-") as scratch:
        return carried_out(Certification(wanted, Path(scratch)), args.out)


def _chosen(args: argparse.Namespace) -> tuple[str, ...]:
    """The checks that --only names. Raises CertifyUsage."""
    from agentic_iqa_local.offline.certify.certification import CHECKS

    names = tuple(name.strip().replace("-", " ") for name in (args.only or "").split(",") if name.strip())
    for name in names:
        if name not in CHECKS:
            known = ", ".join(check.replace(" ", "-") for check in CHECKS)
            raise CertifyUsage(f"--only {name}: expected names of checks, got another", f"there are {known}")
        if name == "against" and not args.against:
            raise CertifyUsage("--only against: expected --against FILE too, got none")
    return names


def carried_out(certification: "Certification", out: Path) -> int:
    """Runs the checks and writes what was found, also after Ctrl-C."""
    from agentic_iqa_local.offline.certify.report import verdict_of, write

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    folder = certification.wanted.settings.folder(certification.wanted.settings.summarizer.backend)
    print(f"certify {folder} on {certification.wanted.device}", flush=True)
    write(certification, out)  # where it cannot be written, that is known before an hour has gone
    with like_ctrl_c(interrupted):
        try:
            with closing(certification.run(_begin)) as checks:
                for check in checks:
                    print(as_text(check), flush=True)
                    write(certification, out)
        except KeyboardInterrupt:
            certification.leave_out()
    json_file, page = write(certification, out)
    print(f"\n{verdict_of(certification)}\n{json_file}\n{page}", flush=True)
    if certification.interrupted:
        print("interrupted; what was found by then is written", file=sys.stderr)
        return 130
    return 1 if any(check.status == "fail" for check in certification.checks) else 0


def _begin(number: int, total: int, name: str, left: float) -> None:
    time_left = f"{left / 60:.0f} min" if left >= 90 else f"{max(left, 1):.0f} s"
    print(f"[{number}/{total}] {name} ... about {time_left} left", file=sys.stderr, flush=True)


def as_text(check: "Check", width: int = 118) -> str:
    """A check as aligned lines: status, seconds, name, verdict; then its other problems and its notes."""
    head = f"{check.status:<8} {check.seconds:6.1f} s  {check.name:<15} "
    lines = [check.verdict, *(f"- {problem}" for problem in check.problems[1:])]
    lines += [f"({note})" for note in check.notes if note not in check.verdict]
    wrapped = [
        textwrap.fill(
            line,
            width,
            initial_indent=" " * len(head),
            subsequent_indent=" " * len(head),
            break_on_hyphens=False,
            break_long_words=False,
        )
        for line in lines
    ]
    return head + "\n".join(wrapped)[len(head) :]
