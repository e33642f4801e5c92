"""Studies the agent on images with human scores. Nothing leaves this machine.

examples:
  python scripts/study.py run /data/tid2013 --out runs/tid2013
  python scripts/study.py run my40.csv --mos-range 1 5 --out runs/my40
  python scripts/study.py run /data/koniq10k --split test --gpu 0 --out runs/koniq10k
  python scripts/study.py report runs/tid2013 runs/koniq10k --out reports/both
  python scripts/study.py compare runs/koniq10k runs/koniq10k_qwen
  python scripts/study.py COMMAND --help

Results go to stdout, all else to stderr. Exit status: 0 done, 2 wrong usage or a
run that cannot be used, 130 interrupted.
"""

import argparse
import shlex
import signal
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentic_iqa_local.commands.console import Parser, bar, like_ctrl_c, safe_streams, start_logging
from agentic_iqa_local.errors import UserError
from agentic_iqa_local.paths import command
from agentic_iqa_local.text import one_line

if TYPE_CHECKING:
    from tqdm import tqdm

STUDY = command("study")
SECONDS_BETWEEN_LINES = 30  # of progress, where stderr is no terminal


def add_command(
    commands: argparse._SubParsersAction, name: str, about: str, description: str, *examples: str
):
    """A subcommand's parser, whose help ends with examples."""
    return commands.add_parser(
        name,
        help=about,
        description=textwrap.fill(description, 79, break_on_hyphens=False),
        epilog="examples:\n"
        + textwrap.indent("\n".join(f"{STUDY} {name} {line}" for line in examples), "  "),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def count(text: str) -> int:
    """A number of one or more, as an option's type."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, got {text!r}")
    return int(text)


def progress(total: int, done: int = 0):
    """A bar on stderr as wide as the terminal; elsewhere it is written anew every half a minute."""
    return bar(
        total=total,
        initial=done,
        unit="image",
        mininterval=0.1 if sys.stderr.isatty() else SECONDS_BETWEEN_LINES,
        disable=done == total,
    )


# run


def add_run(commands: argparse._SubParsersAction) -> None:
    from agentic_iqa_local.prompts import DEFAULT_QUERY
    from agentic_iqa_local.studies.inference import CONTEXTS, POSITIONS

    command = add_command(
        commands,
        "run",
        "each image's inference, once, into a folder that survives a kill",
        "Reads a data set as its authors ship it, or a manifest of your own: a CSV or JSON-lines file with"
        " image and mos, and if you have them reference, group, distortion, level, split; or with image,"
        " question, choices (in CSV separated by |) and answer. Paths in it are relative to it, or absolute."
        " Stores for each image plan, evidence, tools' raw scores, the letters forward and reversed in every"
        " context, and the cost. Run the same command again to go on after an interruption.",
        "/data/koniq10k --split test --out runs/koniq10k",
        "my40.csv --mos-range 1 5 --out runs/my40     # image,mos: your own scores from 1 to 5",
        "questions.csv --out runs/questions           # image,question,choices,answer: yes|no, yes",
    )
    what = command.add_argument_group("what to read")
    what.add_argument(
        "dataset", type=Path, metavar="FOLDER", help="folder of the data set, or a manifest (.csv, .jsonl)"
    )
    what.add_argument("--key", metavar="NAME", help="which data set it is, where the layout does not tell")
    what.add_argument(
        "--part-of", metavar="NAME", help="a manifest: the data set whose scale and direction its scores have"
    )
    what.add_argument(
        "--mos-range",
        type=float,
        nargs=2,
        metavar=("LOW", "HIGH"),
        help=(
            "a manifest: the ends of its scale, such as 1 5 or 0 100, higher is better; fit --objective rps"
            " and the report's calibration on the scale need them"
        ),
    )
    what.add_argument("--split", metavar="NAME", help="only images of this official split (train, val, test)")
    what.add_argument(
        "--limit",
        type=count,
        metavar="N",
        help="only N images, drawn evenly over the data set with a fixed seed",
    )
    command.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="the run's folder: run.json and rows.jsonl"
    )
    how = command.add_argument_group("how")
    device = how.add_mutually_exclusive_group()
    device.add_argument(
        "--gpu", metavar="N", help="GPU by index, UUID or MIG name (default: GPU 0 if there is one)"
    )
    device.add_argument("--cpu", action="store_true", help="run on the CPU")
    how.add_argument(
        "--config", metavar="NAME", help="a set-up of configs/ by name, or a YAML file (default: embedded)"
    )
    how.add_argument("--engine", choices=("transformers", "vllm", "server"), help="what serves the model")
    how.add_argument("--model", metavar="NAME", help="a model below models/, or a folder")
    how.add_argument(
        "--query", default=DEFAULT_QUERY, help="what is asked of each image (default: %(default)s)"
    )
    how.add_argument(
        "--contexts",
        nargs="+",
        choices=CONTEXTS,
        default=CONTEXTS,
        help="what stands in the prompt (default: all)",
    )
    how.add_argument(
        "--positions",
        nargs="+",
        choices=POSITIONS,
        default=("json",),
        help="where the letter is read (default: json)",
    )
    how.add_argument(
        "--tools",
        nargs="+",
        metavar="TOOL",
        help="tools scored on every image (default: the configuration's)",
    )
    how.add_argument(
        "--jobs", type=count, default=1, metavar="N", help="images at once, for vllm and server (default: 1)"
    )
    command.set_defaults(main=run)


def run(args: argparse.Namespace) -> int:
    from tqdm.contrib.logging import logging_redirect_tqdm

    from agentic_iqa_local.config import load_settings
    from agentic_iqa_local.devices import choose_device
    from agentic_iqa_local.iqa_tools import find_tool
    from agentic_iqa_local.services import Services
    from agentic_iqa_local.studies.datasets import LONGEST_QUOTE
    from agentic_iqa_local.studies.run import Plan, check_plan, chosen, run_study
    from agentic_iqa_local.studies.store import check_folder, read_run

    start_logging(0)
    check_folder(args.out)
    dataset = chosen(
        args.dataset,
        args.key,
        part_of=args.part_of,
        mos_range=args.mos_range,
        split=args.split,
        limit=args.limit,
    )
    for name in dataset.missing[:5]:
        print(f"missing: {one_line(name):.{LONGEST_QUOTE}}", file=sys.stderr)
    if dataset.missing:
        print(f"{len(dataset.missing)} files that the scores name are missing", file=sys.stderr)
    for reason, number in dataset.left_out.items():
        print(f"{number} rows are left out: {one_line(reason)}", file=sys.stderr)
    settings = load_settings(args.config)
    settings = settings.with_engine(args.engine) if args.engine else settings
    settings = settings.with_model(args.model) if args.model else settings
    full = dataset.info.kind == "FR" or any(item.reference for item in dataset.items)
    tools = args.tools or (settings.tools.full_reference if full else settings.tools.no_reference)
    plan = Plan(
        args.query, tuple(args.contexts), tuple(args.positions), tuple(find_tool(tool).name for tool in tools)
    )
    services = Services(settings, choose_device(args.gpu, args.cpu))
    check_plan(plan, services, full_reference=full, named=args.tools is not None)
    total = len(dataset.items or dataset.questions)
    with closing(run_study(dataset, services, plan, args.out, jobs=args.jobs)) as counts:
        done = next(counts)
        with logging_redirect_tqdm(), progress(total, done) as bar:
            for done in counts:
                bar.update(done - bar.n)
    errors = [row["error"] for row in read_run(args.out)[1] if row.get("error")]
    failed = f", {len(errors)} of them failures (the first: {one_line(str(errors[0]))})" if errors else ""
    report_on = shlex.join([*STUDY.split(), "report", str(args.out), "--out", "DIR"])
    print(one_line(f"{total} rows in {args.out}{failed}; next: {report_on}"))
    return 0


# synthetic


def add_synthetic(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "synthetic",
        "a set of distorted photographs with pseudo-MOS, to choose on before any human score is looked at",
        "Distorts the photographs that the embedded model's training kept out, or all photographs of a"
        " folder, and writes images, references and manifest.csv with the mean of four full-reference metrics"
        " as mos (1..5).",
        "photos/ --all --out synthetic",
    )
    command.add_argument("photos", type=Path, metavar="PHOTOS", help="folder of clean photographs")
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help="new folder for the set")
    command.add_argument(
        "--per-photo", type=count, default=10, metavar="N", help="samples of each photograph (default: 10)"
    )
    command.add_argument(
        "--all", action="store_true", help="also the photographs that the embedded model was trained on"
    )
    command.add_argument(
        "--no-reference", action="store_true", help="leave the references out of the manifest"
    )
    command.set_defaults(main=synthetic)


def synthetic(args: argparse.Namespace) -> int:
    from PIL import Image

    from agentic_iqa_local.studies.datasets import DatasetError
    from agentic_iqa_local.studies.store import StoreError, check_folder
    from agentic_iqa_local.synthetic.photos import held_out_crops, load_tiles, photo_files, split_photos
    from agentic_iqa_local.tables import write_csv

    if args.out.exists():
        raise StoreError(f"{args.out}: expected a new folder, found one that is there; choose another --out")
    check_folder(args.out)
    if not args.photos.is_dir():
        raise DatasetError(f"{args.photos}: expected a folder of photographs, found none; check the path")
    try:
        files = photo_files(args.photos) if args.all else split_photos(args.photos)[1]
        photos = load_tiles(files)
    except (ValueError, OSError) as error:
        raise DatasetError(str(error)) from error
    if not photos:
        raise DatasetError(f"{args.photos}: expected photographs, found none; check the path")
    args.out.mkdir(parents=True)

    def rows(shown: "tqdm") -> Iterator[dict[str, Any]]:
        for i, crop in enumerate(held_out_crops(photos, args.per_photo)):
            shown.update()
            scene, name = i // args.per_photo, f"{i:04}.png"
            Image.fromarray(crop.sample.image).save(args.out / name)
            reference = f"clean_{scene:03}.png"
            if not (args.out / reference).exists():
                Image.fromarray(crop.clean).save(args.out / reference)
            kind = crop.sample.parts[0].kind if crop.sample.parts else "none"
            yield {
                "image": name,
                "reference": "" if args.no_reference else reference,
                "mos": f"{crop.quality:.6f}",
                "group": f"{scene:03}",
                "distortion": kind,
                "level": crop.sample.severity,
            }

    columns = ("image", "reference", "mos", "group", "distortion", "level")
    with (
        (args.out / "manifest.csv").open("w", newline="", encoding="utf-8") as file,
        progress(len(photos) * args.per_photo) as shown,
    ):
        write_csv(file, columns, rows(shown))
    print(one_line(f"{len(photos) * args.per_photo} images of {len(photos)} photographs in {args.out}"))
    return 0


# fit


def add_fit(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "fit",
        "p_c's temperature and η from a part of a run, for assess.py --fit and report --fit",
        "Fits on a part of a run and writes a file that says on which rows, by which objective and how much"
        " it gained. report --fit leaves those rows out. rps: ranked probability score (absolute category"
        " scales; of a manifest run --mos-range gives it); srcc: any scale; spread: without human scores,"
        " E[level] spreads as far as the tools' mean does. Where a parameter runs to a bound there is no"
        " fit.",
        "runs/koniq10k --split val --objective rps --out fit.json",
        "runs/my40 --objective srcc --share 0.5 --out fit.json",
    )
    command.add_argument("run", type=Path, metavar="RUN", help="folder of a run")
    command.add_argument("--objective", choices=("rps", "srcc", "spread"), default="rps", help="default: rps")
    command.add_argument("--split", metavar="NAME", help="official split to fit on, such as train or val")
    command.add_argument(
        "--share",
        type=float,
        default=0.3,
        metavar="X",
        help="without --split: this share of the scenes, drawn with a fixed seed",
    )
    command.add_argument("--out", type=Path, required=True, metavar="FILE", help="the fit (JSON)")
    command.set_defaults(main=fit)


def fit(args: argparse.Namespace) -> int:
    from agentic_iqa_local.studies.fitting import fit_run
    from agentic_iqa_local.studies.store import check_file

    place = check_file(args.out)
    found = fit_run(args.run, args.objective, split=args.split, share=args.share)
    found.write(place)
    print(one_line(f"{found.account}; written to {args.out}"))
    return 0


# report


def add_report(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "report",
        "every scoring mode of cached runs against the human scores, without touching a model",
        "Derives every scoring mode from a run's stored rows and compares them: tables as CSV and Markdown,"
        " figures as PNG and SVG, and report.html, one page that opens offline. Several runs get a section"
        " each and a table over the data sets; what a mode was made with is marked and left out of its mean.",
        "runs/koniq10k --out reports/koniq10k",
        "runs/tid2013 runs/koniq10k --out reports/both --draws 2000",
        'runs/koniq10k --out reports/koniq10k --baseline "letters, image alone" --pictures',
    )
    command.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="folder of a run (run.json and rows.jsonl)"
    )
    command.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder for the report; made if it is not there",
    )
    command.add_argument(
        "--draws",
        type=count,
        default=1000,
        metavar="N",
        help="bootstrap draws; 1000 decide up to 25 comparisons (default: 1000)",
    )
    command.add_argument(
        "--baseline",
        default="classification",
        metavar="MODE",
        help="the mode that every other is compared with; name it before you look (default: classification)",
    )
    command.add_argument(
        "--comparator",
        metavar="MODE",
        help=(
            "the part of the fusion (a tool, 'tool mean', 'letters, image alone') that it is judged against;"
            " name it by a synthetic set"
        ),
    )
    command.add_argument(
        "--fit",
        type=Path,
        metavar="FILE",
        help="a fit of study.py: adds the mode it gives, and leaves out the rows it was made on",
    )
    command.add_argument(
        "--pictures",
        action=argparse.BooleanOptionalAction,
        default=False,
        help=(
            "thumbnails of the worst ten images in the page; mind the data set's terms before you pass it on"
            " (default: no)"
        ),
    )
    command.set_defaults(main=report)


def report(args: argparse.Namespace) -> int:
    from agentic_iqa_local.fit import FitError, read_fit
    from agentic_iqa_local.studies.analysis import analyse, dataset_info
    from agentic_iqa_local.studies.plots import draw
    from agentic_iqa_local.studies.questions import ACCURACY_TABLE, accuracy
    from agentic_iqa_local.studies.readings import Letters
    from agentic_iqa_local.studies.report import (
        DATASETS_TABLE,
        TABLES,
        markdown,
        over_datasets,
        write_figures,
        write_html,
        write_run,
        write_table,
        write_tables,
    )
    from agentic_iqa_local.studies.store import check_folder, read_run

    check_folder(args.out)
    fitted = read_fit(args.fit) if args.fit else None
    parts, questions = [], []
    for folder, name in zip(args.runs, names_of(args.runs), strict=True):
        run, rows = read_run(folder)
        info = dataset_info(run)
        if info.kind == "MCQ":
            questions.append((name, run, rows))
            continue
        if fitted and fitted.model != run["identity"]["model"]:
            raise FitError(
                f"{args.fit}: expected a fit of the model of {folder}, it was made with another; fit it anew"
            )
        if fitted and fitted.dataset == run["dataset"]["key"]:
            rows = [row for row in rows if not fitted.used(row)]
        letters = fitted and Letters(fitted.temperature, fitted.eta, source=fitted.source)
        study = analyse(
            run,
            rows,
            info,
            name=name,
            draws=args.draws,
            baseline=args.baseline,
            comparator=args.comparator,
            fitted=letters,
        )
        parts.append((study, draw(study)))
    for name, run, rows in questions:
        folder = args.out / name if len(args.runs) > 1 else args.out
        found = accuracy(rows)
        write_table(folder, "accuracy", *ACCURACY_TABLE, found)
        write_run(run, folder)
        print(markdown(*ACCURACY_TABLE, found))
    if not parts:
        return 0
    for study, drawings in parts:
        folder = args.out / study.name if len(args.runs) > 1 else args.out
        write_tables(study, folder)
        write_run(study.run, folder)
        write_figures(drawings, folder)
    write_html(parts, args.out / "report.html", pictures=args.pictures)
    if len(parts) > 1:
        table = over_datasets([study for study, _ in parts])
        write_table(args.out, "datasets", *DATASETS_TABLE, table)
        print(markdown(*DATASETS_TABLE, table))
    else:
        print(markdown(*TABLES["modes"], parts[0][0].tables["modes"]))
    print(one_line(f"Written to {args.out}: open {args.out / 'report.html'}"))
    return 0


# compare


def add_compare(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "compare",
        "run against run on the same images: two models, or two versions of the program",
        "Matches the runs' rows by image and compares each run with the first, paired, on the images that all"
        " of them answered: SRCC and PLCC with the human scores, their differences with intervals from the"
        " same bootstrap draws, how far the scores lie from each other, and a sentence that says what these"
        " images show.",
        "runs/koniq10k_embedded runs/koniq10k_qwen",
        'runs/old runs/new --mode logits "tool mean" --out reports/old_new',
    )
    command.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="folders of two runs or more; the first is what the others are compared with",
    )
    command.add_argument(
        "--mode",
        nargs="+",
        default=["logits"],
        metavar="MODE",
        help="scoring modes, or all (default: logits, the fused q)",
    )
    command.add_argument(
        "--draws", type=count, default=1000, metavar="N", help="bootstrap draws (default: 1000)"
    )
    command.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for the tables as CSV and Markdown (default: print alone)",
    )
    command.set_defaults(main=compare)


def compare(args: argparse.Namespace) -> int:
    from agentic_iqa_local.studies.compare import DIFFERENCES_TABLE, RUNS_TABLE, Named
    from agentic_iqa_local.studies.compare import compare as compare_runs
    from agentic_iqa_local.studies.report import markdown, write_table
    from agentic_iqa_local.studies.store import check_folder, read_run

    if args.out:
        check_folder(args.out)
    runs = [
        Named(name, *read_run(folder)) for name, folder in zip(names_of(args.runs), args.runs, strict=True)
    ]
    found = compare_runs(runs, modes=args.mode, draws=args.draws)
    for name, texts, rows in (
        ("runs", RUNS_TABLE, found.runs),
        ("run_differences", DIFFERENCES_TABLE, found.differences),
    ):
        if args.out:
            write_table(args.out, name, *texts, rows)
        print(markdown(*texts, rows))
    print("\n".join([*found.notes, "", *found.verdicts]))
    if args.out:
        print(f"\nWritten to {one_line(str(args.out))}")
    return 0


# table


def add_table(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "table",
        "a short table of written reports, for a page",
        "One table a report, from its CSV files; --write puts them between a file's marks <!-- studies -->"
        " and <!-- end of studies -->.",
        "reports/koniq10k",
        "reports/koniq10k reports/tid2013 --write docs/studies.md",
    )
    command.add_argument("reports", nargs="+", type=Path, metavar="DIR", help="folders that report wrote")
    command.add_argument("--write", type=Path, metavar="FILE", help="default: print")
    command.set_defaults(main=table)


def table(args: argparse.Namespace) -> int:
    from agentic_iqa_local.files import FileError, place_for, read_bytes
    from agentic_iqa_local.rows import write_whole
    from agentic_iqa_local.studies.analysis import StudyError
    from agentic_iqa_local.studies.report import digest

    text = "\n".join(digest(folder) for folder in args.reports)
    if args.write:
        try:
            place = place_for(args.write)
            page = read_bytes(place).decode("utf-8").replace("\r\n", "\n")
        except FileError as error:
            raise StudyError(f"{args.write}: {error}; name a page that is there") from error
        except UnicodeDecodeError as error:
            raise StudyError(f"{args.write}: expected a page in UTF-8, got {error}; convert it") from error
        before, begin, rest = page.partition("<!-- studies -->\n")
        _, end, after = rest.partition("<!-- end of studies -->")
        if not begin or not end:
            raise StudyError(
                f"{args.write}: expected the marks <!-- studies --> and <!-- end of studies -->, found none;"
                " add them"
            )
        write_whole(place, f"{before}{begin}{text}{end}{after}")
    else:
        print(text)
    return 0


def names_of(runs: list[Path]) -> list[str]:
    """The runs' folder names, numbered where two are the same."""
    names = [run.resolve().name for run in runs]
    repeated = {name for name, count in Counter(names).items() if count > 1}
    return [f"{name}-{i}" if name in repeated else name for i, name in enumerate(names, 1)]


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(
        prog=STUDY,
        description=__doc__.replace("python scripts/study.py", STUDY),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_run(commands)
    add_synthetic(commands)
    add_fit(commands)
    add_report(commands)
    add_compare(commands)
    add_table(commands)
    return parser.parse_args(argv)


@safe_streams()
def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    try:
        with like_ctrl_c(signal.default_int_handler):
            return args.main(args)
    except KeyboardInterrupt:
        kept = ": the rows so far are kept; the same command goes on" if args.command == "run" else ""
        print(f"interrupted{kept}", file=sys.stderr)
        return 130
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
    except OSError as error:
        print(
            one_line(f"error: {error.filename}: {error.strerror}" if error.filename else f"error: {error}"),
            file=sys.stderr,
        )
    return 2
