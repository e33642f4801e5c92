"""study fit, report and compare: what is made of stored rows, without a model."""

import argparse
from collections import Counter
from pathlib import Path

from agentic_iqa_local.cli.study_options import Subcommands, add_command, count
from agentic_iqa_local.errors import one_line

# The rest is imported where it is needed, so that --help and wrong usage are answered at once.


def add_fit(commands: Subcommands) -> None:
    command = add_command(
        commands,
        "fit",
        "p_c's temperature and η, and intervals of q, from a part of a run, for assess.py and report --fit",
        "Fits on a part of a run and writes a file that says on which rows, by which objective and how much it gained."
        " report --fit leaves those rows out. rps: ranked probability score (absolute category scales; of a manifest"
        " run --mos-range gives it); srcc: any scale; keep: both stay as configured. Where a parameter runs to a bound"
        " there is no fit. On absolute category scales the file calibrates the intervals of q too. With keep, several"
        " runs make one file, runs on questions calibrate the sets of answers, and --share 1 uses all rows.",
        "runs/koniq10k --split val --objective rps --out fit.json",
        "runs/my40 --objective srcc --share 0.5 --out fit.json",
        'runs/syn runs/questions --objective keep --share 1 --called "synthetic distortions" --out fit.json',
    )
    command.add_argument("run", type=Path, nargs="+", metavar="RUN", help="folder of a run")
    command.add_argument("--objective", choices=("rps", "srcc", "keep"), default="rps", help="default: rps")
    command.add_argument("--called", metavar="TEXT", help="what rows call the set that intervals are calibrated on")
    command.add_argument("--split", metavar="NAME", help="official split to fit on, such as train or val")
    share = "without --split: this share of the scenes, drawn with a fixed seed"
    command.add_argument("--share", type=float, default=0.3, metavar="X", help=share)
    command.add_argument("--out", type=Path, required=True, metavar="FILE", help="the fit (JSON)")
    command.set_defaults(main=fit)


def fit(args: argparse.Namespace) -> int:
    from agentic_iqa_local.cli.outputs import result_file
    from agentic_iqa_local.files import write_whole
    from agentic_iqa_local.studies.fitting import fit_runs

    place = result_file("--out", args.out, "fit")
    found = fit_runs(args.run, args.objective, split=args.split, share=args.share, called=args.called)
    write_whole(place, found.model_dump_json())
    what = "intervals of q are not calibrated, they need an absolute category scale"
    if found.intervals:
        ratings = len(found.intervals.ratings)
        parts = [f"intervals of q for {ratings} ways to assess"] if ratings else []
        what = f"calibrates {' and '.join(parts + ['sets of answers'] * bool(found.intervals.questions))}"
    print(one_line(f"{found.account}; {what}; written to {args.out}"))
    return 0


def add_report(commands: Subcommands) -> None:
    command = add_command(
        commands,
        "report",
        "every scoring mode of cached runs against the human scores, without touching a model",
        "Derives every scoring mode from a run's stored rows and compares them: tables as CSV and Parquet, figures as"
        " SVG, and report.html, one page that opens offline. Several runs get a section each and a table over the data"
        " sets; what a mode was made with is marked and left out of its mean.",
        "runs/koniq10k --out reports/koniq10k",
        "runs/tid2013 runs/koniq10k --out reports/both --draws 2000",
        'runs/koniq10k --out reports/koniq10k --baseline "letters, image alone" --pictures',
    )
    add = command.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run (run.json and rows.jsonl)")
    add(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder for the report; made if it is not there",
    )
    draws = "bootstrap draws; 1000 decide up to 25 comparisons (default: 1000)"
    add("--draws", type=count, default=1000, metavar="N", help=draws)
    baseline = (
        "the mode that every other is compared with, or the part that the fusion is judged against; name it before you"
        " look (default: classification)"
    )
    add("--baseline", metavar="MODE", help=baseline)
    fitted = "a fit of study.py: adds the mode it gives, and leaves out the rows it was made on"
    add("--fit", type=Path, metavar="FILE", help=fitted)
    add("--png", action="store_true", help="figures as PNG too")
    pictures = "thumbnails of the worst ten images in the page; mind the data set's terms before you pass it on"
    add("--pictures", action="store_true", help=pictures)
    command.set_defaults(main=report)


def report(args: argparse.Namespace) -> int:
    import pandas as pd

    from agentic_iqa_local.cli.outputs import result_folder
    from agentic_iqa_local.judgement.fit import FitError, read_fit
    from agentic_iqa_local.studies.analysis import analyse
    from agentic_iqa_local.studies.plots import draw
    from agentic_iqa_local.studies.questions import accuracy
    from agentic_iqa_local.studies.report import (
        as_text,
        over_datasets,
        write_page,
        write_run,
        write_study,
        write_tables,
    )
    from agentic_iqa_local.studies.store import check_folder, read_run
    from agentic_iqa_local.studies.study import dataset_info

    check_folder(args.out)
    names = names_of(args.runs)
    folders = {name: args.out / name if len(names) > 1 else args.out for name in names}
    for folder in {args.out, *folders.values()}:
        result_folder("--out", folder, "modes.csv", "accuracy.csv", "datasets.csv")
    fitted = read_fit(args.fit) if args.fit else None
    runs = {name: read_run(folder) for name, folder in zip(names, args.runs, strict=True)}
    studies, tables = [], {}
    for name, (run, rows) in runs.items():
        if dataset_info(run).kind == "MCQ":
            tables[name] = {"accuracy": pd.DataFrame(accuracy(rows))}
            continue
        if fitted and fitted.model != run["identity"]["model"]:
            raise FitError(
                f"{args.fit}: expected a fit of the model of {name}, it was made with another", "fit it anew"
            )
        options = {"name": name, "draws": args.draws, "baseline": args.baseline}
        studies.append(analyse(run, rows, fit=fitted, **options))
    for name, table in tables.items():
        write_tables(folders[name], table)
        write_run(folders[name], runs[name][0])
        print(as_text("accuracy", table["accuracy"]))
    parts = [(study, draw(study, ("svg", "png") if args.png else ("svg",))) for study in studies]
    for study, drawings in parts:
        write_study(folders[study.run.name], study, drawings)
        print(as_text("modes", study.tables["modes"]))
    if parts:
        write_page(parts, args.out / "report.html", pictures=args.pictures)
        _say(studies)
        print(one_line(f"Written to {args.out}: open {args.out / 'report.html'}"))
    if len(studies) > 1:
        datasets = over_datasets(studies)
        write_tables(args.out, {"datasets": datasets})
        print(f"\n{as_text('datasets', datasets)}")
    return 0


def _say(studies: list) -> None:
    """Five sentences on each study."""
    from agentic_iqa_local.studies.summary import summarize

    for study in studies:
        print(one_line(f"What {study.run.name} shows:"))
        for sentence in summarize(study):
            print(one_line(f"- {sentence.text}"))
        print()


def add_compare(commands: Subcommands) -> None:
    command = add_command(
        commands,
        "compare",
        "run against run on the same images: two models, or two versions of the program",
        "Matches the runs' rows by image and compares each run with the first, paired, on the images that all of them"
        " answered: SRCC and PLCC with the human scores, their differences with intervals from the same bootstrap"
        " draws, how far the scores lie from each other, and a verdict.",
        "runs/koniq10k_embedded runs/koniq10k_qwen",
        'runs/old runs/new --mode logits "tool mean" --out reports/old_new',
    )
    add = command.add_argument
    add(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="folders of two runs or more; the others against the first",
    )
    mode = "scoring modes, or all (default: logits, the fused q)"
    add("--mode", nargs="+", default=["logits"], metavar="MODE", help=mode)
    add("--draws", type=count, default=1000, metavar="N", help="bootstrap draws (default: 1000)")
    add(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for the tables as CSV and Parquet (default: print alone)",
    )
    command.set_defaults(main=compare)


def compare(args: argparse.Namespace) -> int:
    from agentic_iqa_local.cli.outputs import result_folder
    from agentic_iqa_local.studies.compare import compare as compare_runs
    from agentic_iqa_local.studies.report import as_text, write_tables
    from agentic_iqa_local.studies.store import check_folder, read_run

    if args.out:
        check_folder(args.out)
        result_folder("--out", args.out, "run_differences.csv")
    runs = {name: read_run(folder) for name, folder in zip(names_of(args.runs), args.runs, strict=True)}
    tables, notes = compare_runs(runs, modes=args.mode, draws=args.draws)
    for name, table in tables.items():
        print(as_text(name, table))
    print("\n".join(notes))
    if args.out:
        write_tables(args.out, tables)
        print(f"\nWritten to {one_line(str(args.out))}")
    return 0


def names_of(runs: list[Path]) -> list[str]:
    """The runs' folder names, numbered where two are the same."""
    names = [run.resolve().name for run in runs]
    repeated = {name for name, times in Counter(names).items() if times > 1}
    return [f"{name}-{i}" if name in repeated else name for i, name in enumerate(names, 1)]
