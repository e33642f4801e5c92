"""study fit, report, compare and table: what is made of stored rows, without a model."""

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentic_iqa_local.cli.study_options import Subcommands, add_command, count
from agentic_iqa_local.errors import one_line

if TYPE_CHECKING:
    from agentic_iqa_local.judgement.fit import Fit
    from agentic_iqa_local.studies.study import Study

# The rest is imported where it is needed, so that --help and wrong usage are answered at once.


def add_fit(commands: Subcommands) -> None:
    command = add_command(
        commands,
        "fit",
        "p_c's temperature and η, and intervals of q, from a part of a run, for assess.py and report --fit",
        "Fits on a part of a run and writes a file that says on which rows, by which objective and how much"
        " it gained. report --fit leaves those rows out. rps: ranked probability score (absolute category"
        " scales; of a manifest run --mos-range gives it); srcc: any scale; spread: without human scores,"
        " E[level] spreads as far as the tools' mean does; keep: both stay as configured. Where a parameter"
        " runs to a bound there is no fit. On absolute category scales the file calibrates the intervals of q"
        " too. With keep, several runs make one file, runs on questions calibrate the sets of answers, and"
        " --share 1 uses all rows.",
        "runs/koniq10k --split val --objective rps --out fit.json",
        "runs/my40 --objective srcc --share 0.5 --out fit.json",
        'runs/syn runs/questions --objective keep --share 1 --called "synthetic distortions" --out fit.json',
    )
    command.add_argument("run", type=Path, nargs="+", metavar="RUN", help="folder of a run")
    command.add_argument(
        "--objective", choices=("rps", "srcc", "spread", "keep"), default="rps", help="default: rps"
    )
    command.add_argument(
        "--called", metavar="TEXT", help="what rows call the set that intervals are calibrated on"
    )
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
    from agentic_iqa_local.cli.outputs import result_file
    from agentic_iqa_local.files import write_whole
    from agentic_iqa_local.studies.fitting import fit_runs

    place = result_file("--out", args.out, "fit")
    found = fit_runs(args.run, args.objective, split=args.split, share=args.share, called=args.called)
    write_whole(place, found.to_json())
    print(one_line(f"{found.account}; {_calibrated(found)}; written to {args.out}"))
    return 0


def _calibrated(fit: "Fit") -> str:
    """What the fit says of intervals."""
    if fit.intervals is None:
        return "intervals of q are not calibrated, they need an absolute category scale"
    ratings, questions = len(fit.intervals.ratings), len(fit.intervals.questions)
    what = [f"intervals of q for {ratings} ways to assess"] if ratings else []
    what += ["sets of answers"] if questions else []
    return f"calibrates {' and '.join(what)}"


def add_report(commands: Subcommands) -> None:
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
        metavar="MODE",
        help="the mode that every other is compared with; name it before you look (default: classification,"
        " or with letters of the image alone that mode of theirs)",
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
    from agentic_iqa_local.cli.outputs import result_folder
    from agentic_iqa_local.judgement.fit import read_fit
    from agentic_iqa_local.studies.store import check_folder, read_run
    from agentic_iqa_local.studies.study import dataset_info

    check_folder(args.out)
    for folder in {args.out, *(_part(args, name) for name in names_of(args.runs))}:
        result_folder("--out", folder, "modes.csv", "accuracy.csv", "datasets.csv")
    fitted = read_fit(args.fit) if args.fit else None
    rated, questions = [], []
    for folder, name in zip(args.runs, names_of(args.runs), strict=True):
        run, rows = read_run(folder)
        if dataset_info(run).kind == "MCQ":
            questions.append((name, run, rows))
        else:
            rated.append(_study(args, folder, name, run, rows, fitted))
    for name, run, rows in questions:
        _write_accuracy(_part(args, name), run, rows)
    if rated:
        _write_studies(args, rated)
    return 0


def _study(
    args: argparse.Namespace,
    folder: Path,
    name: str,
    run: dict[str, Any],
    rows: list[dict[str, Any]],
    fitted: "Fit | None",
) -> "Study":
    """The analysis of a run with human scores. Raises FitError for a fit of another model."""
    from agentic_iqa_local.judgement.fit import FitError
    from agentic_iqa_local.studies.analysis import analyse
    from agentic_iqa_local.studies.given import given_calibration
    from agentic_iqa_local.studies.readings import Letters
    from agentic_iqa_local.studies.study import dataset_info

    if fitted and fitted.model != run["identity"]["model"]:
        raise FitError(
            f"{args.fit}: expected a fit of the model of {folder}, it was made with another", "fit it anew"
        )
    if fitted and fitted.dataset == run["dataset"]["key"]:
        rows = [row for row in rows if not fitted.used(row)]
    return analyse(
        run,
        rows,
        dataset_info(run),
        name=name,
        draws=args.draws,
        baseline=args.baseline,
        comparator=args.comparator,
        fitted=Letters(fitted.temperature, fitted.eta, source=fitted.source) if fitted else None,
        given=given_calibration(run, rows, fitted),
    )


def _part(args: argparse.Namespace, name: str) -> Path:
    """Where the report of one of the runs goes."""
    return args.out / name if len(args.runs) > 1 else args.out


def _write_accuracy(folder: Path, run: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    from agentic_iqa_local.studies.questions import ACCURACY_TABLE, accuracy
    from agentic_iqa_local.studies.report import markdown, write_run, write_table

    table = accuracy(rows)
    write_table(folder, "accuracy", *ACCURACY_TABLE, table)
    write_run(run, folder)
    print(markdown(*ACCURACY_TABLE, table))


def _write_studies(args: argparse.Namespace, studies: "list[Study]") -> None:
    from agentic_iqa_local.studies.page import write_html
    from agentic_iqa_local.studies.plots import draw
    from agentic_iqa_local.studies.report import (
        DATASETS_TABLE,
        TABLES,
        markdown,
        over_datasets,
        write_figures,
        write_run,
        write_summary,
        write_table,
        write_tables,
    )

    parts = [(study, draw(study)) for study in studies]
    for study, drawings in parts:
        folder = _part(args, study.name)
        write_tables(study, folder)
        write_run(study.run, folder)
        write_summary(study, folder)
        write_figures(drawings, folder)
    write_html(parts, args.out / "report.html", pictures=args.pictures)
    if len(studies) > 1:
        table = over_datasets(studies)
        write_table(args.out, "datasets", *DATASETS_TABLE, table)
        print(markdown(*DATASETS_TABLE, table))
    else:
        print(markdown(*TABLES["modes"], studies[0].tables["modes"]))
    _say_what_was_found(studies)
    print(one_line(f"Written to {args.out}: open {args.out / 'report.html'}"))


def _say_what_was_found(studies: "list[Study]") -> None:
    """Five sentences on each study."""
    from agentic_iqa_local.studies.summary import summarize

    for study in studies:
        print(one_line(f"What {study.name} shows:"))
        for sentence in summarize(study):
            print(one_line(f"- {sentence.text}"))
        print()


def add_compare(commands: Subcommands) -> None:
    command = add_command(
        commands,
        "compare",
        "run against run on the same images: two models, or two versions of the program",
        "Matches the runs' rows by image and compares each run with the first, paired, on the images that all"
        " of them answered: SRCC and PLCC with the human scores, their differences with intervals from the"
        " same bootstrap draws, how far the scores lie from each other, and a verdict.",
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
    from agentic_iqa_local.cli.outputs import result_folder
    from agentic_iqa_local.studies.compare import DIFFERENCES_TABLE, RUNS_TABLE, Named
    from agentic_iqa_local.studies.compare import compare as compare_runs
    from agentic_iqa_local.studies.report import markdown, write_table
    from agentic_iqa_local.studies.store import check_folder, read_run

    if args.out:
        check_folder(args.out)
        result_folder("--out", args.out, "run_differences.csv")
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
    print("\n".join(found.notes))
    if args.out:
        print(f"\nWritten to {one_line(str(args.out))}")
    return 0


def add_table(commands: Subcommands) -> None:
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
    from agentic_iqa_local.files import FileError, place_for, read_bytes, write_whole
    from agentic_iqa_local.studies.report import digest
    from agentic_iqa_local.studies.study import StudyError

    text = "\n".join(digest(folder) for folder in args.reports)
    if args.write:
        try:
            place = place_for(args.write)
            page = read_bytes(place).decode("utf-8").replace("\r\n", "\n")
        except FileError as error:
            raise StudyError(f"{args.write}: {error}", "name a page that is there") from error
        except UnicodeDecodeError as error:
            raise StudyError(f"{args.write}: expected a page in UTF-8, got {error}", "convert it") from error
        before, begin, rest = page.partition("<!-- studies -->\n")
        _, end, after = rest.partition("<!-- end of studies -->")
        if not begin or not end:
            raise StudyError(
                f"{args.write}: expected the marks <!-- studies --> and <!-- end of studies -->, found none",
                "add them",
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
