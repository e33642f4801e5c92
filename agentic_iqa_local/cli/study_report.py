"""study fit, report and compare: what is made of stored rows, without a model."""

import argparse
from collections import Counter
from pathlib import Path

from agentic_iqa_local.cli.options import output_file
from agentic_iqa_local.cli.study_options import Subcommands, add_command, count
from agentic_iqa_local.errors import one_line

# The rest is imported where it is needed, so that --help and wrong usage are answered at once.


def add_fit(commands: Subcommands) -> None:
    command = add_command(
        commands,
        "fit",
        "p_c's temperature and η, and intervals of q, from a part of a run, for assess.py and report --fit",
        "Fits on a part of a run; report --fit leaves those rows out. rps: ranked probability score (scales of absolute"
        " categories, whose intervals of q are calibrated too); srcc: any scale; keep: both stay as configured, several"
        " runs make one file, runs on questions calibrate the sets of answers, and --share 1 uses all rows.",
        "runs/koniq10k --split val --objective rps --out fit.json",
        'runs/syn runs/questions --objective keep --share 1 --called "synthetic distortions" --out fit.json',
    )
    add = command.add_argument
    add("run", type=Path, nargs="+", metavar="RUN", help="folder of a run")
    add("--objective", choices=("rps", "srcc", "keep"), default="rps", help="default: rps")
    add("--called", metavar="TEXT", help="what rows call the set that intervals are calibrated on")
    add("--split", metavar="NAME", help="official split to fit on, such as train or val")
    add("--share", type=float, default=0.3, metavar="X", help="without --split: this share of the scenes, seed 0")
    add("--out", type=Path, required=True, metavar="FILE", help="the fit (JSON)")
    command.set_defaults(main=fit)


def fit(args: argparse.Namespace) -> int:
    from agentic_iqa_local.files import write_whole
    from agentic_iqa_local.studies.fitting import fit_runs

    place = output_file("--out", args.out, ".json")
    found = fit_runs(args.run, args.objective, split=args.split, share=args.share, called=args.called)
    write_whole(place, found.model_dump_json())
    calibrated = "intervals of q are not calibrated, they need an absolute category scale"
    if found.intervals:
        answers = " and sets of answers" if found.intervals.questions else ""
        calibrated = f"calibrates intervals of q for {len(found.intervals.ratings)} ways to assess{answers}"
    print(one_line(f"{found.account}; {calibrated}; written to {args.out}"))
    return 0


def add_report(commands: Subcommands) -> None:
    command = add_command(
        commands,
        "report",
        "every scoring mode of cached runs against the human scores, without touching a model",
        "Writes tables as CSV and Parquet, figures as SVG, and report.html, one page that opens offline. Several runs"
        " get a section each and a table over the data sets; what a mode was made with is marked.",
        "runs/tid2013 runs/koniq10k --out reports/both",
        'runs/koniq10k --out reports/koniq10k --baseline "letters, image alone" --pictures',
    )
    add = command.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run")
    add("--out", type=Path, required=True, metavar="DIR", help="folder for the report; made if it is not there")
    add("--draws", type=count, default=1000, metavar="N", help="bootstrap draws; 1000 decide up to 25 comparisons")
    add("--baseline", metavar="MODE", help="compared with every mode; name it before you look (classification)")
    add("--fit", type=Path, metavar="FILE", help="a fit: adds its mode, leaves out the rows it was made on")
    add("--png", action="store_true", help="figures as PNG too")
    add("--pictures", action="store_true", help="the worst ten images in the page; mind the data set's terms")
    command.set_defaults(main=report)


def report(args: argparse.Namespace) -> int:
    from agentic_iqa_local.judgement.fit import read_fit
    from agentic_iqa_local.studies.report import report_runs
    from agentic_iqa_local.studies.store import check_folder, read_run

    check_folder(args.out)
    runs = {name: read_run(folder) for name, folder in zip(names_of(args.runs), args.runs, strict=True)}
    options = {"draws": args.draws, "baseline": args.baseline, "fit": read_fit(args.fit) if args.fit else None}
    kinds = ("svg", "png") if args.png else ("svg",)
    print(report_runs(runs, args.out, kinds=kinds, pictures=args.pictures, **options))
    return 0


def add_compare(commands: Subcommands) -> None:
    command = add_command(
        commands,
        "compare",
        "run against run on the same images: two models, or two versions of the program",
        "Compares each run with the first on the images that all of them answered: SRCC and PLCC, their differences"
        " with intervals from the same draws, how far the scores lie from each other, and a verdict.",
        'runs/old runs/new --mode logits "tool mean" --out reports/old_new',
    )
    add = command.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="folders of two runs or more, all against the first")
    add("--mode", nargs="+", default=["logits"], metavar="MODE", help="scoring modes, or all (default: logits)")
    add("--draws", type=count, default=1000, metavar="N", help="bootstrap draws (default: 1000)")
    add("--out", type=Path, metavar="DIR", help="folder for the tables as CSV and Parquet (default: print alone)")
    command.set_defaults(main=compare)


def compare(args: argparse.Namespace) -> int:
    from agentic_iqa_local.studies.compare import compare as compare_runs
    from agentic_iqa_local.studies.report import as_text, write_tables
    from agentic_iqa_local.studies.store import check_folder, read_run

    if args.out:
        check_folder(args.out)
    runs = {name: read_run(folder) for name, folder in zip(names_of(args.runs), args.runs, strict=True)}
    tables, notes = compare_runs(runs, modes=args.mode, draws=args.draws)
    print(*(as_text(name, table) for name, table in tables.items()), *notes, sep="\n")
    if args.out:
        write_tables(args.out, tables)
        print(f"\nWritten to {one_line(str(args.out))}")
    return 0


def names_of(runs: list[Path]) -> list[str]:
    """The runs' folder names, numbered where two are the same."""
    names = [run.resolve().name for run in runs]
    times = Counter(names)
    return [f"{name}-{i}" if times[name] > 1 else name for i, name in enumerate(names, 1)]
