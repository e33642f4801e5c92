"""Teaches the embedded model's letters anew (models/embedded/model.safetensors), and fits what depends on them and on
LocalNR: their temperature, the intervals of q and the sets of answers (configs/intervals.json), and the weights of
comparisons (configs/comparisons.json).

    python scripts/training/refit.py LIVE_CHALLENGE PHOTOS PHOTOS_MORE --work runs/refit

People's scores are those of LIVE_CHALLENGE; each third is assessed with letters and a head of LocalNR that were
learned from the other two, and the synthetic pictures with what never learned from their photographs. The temperature
is fitted on people's scores alone: the embedded model was trained on distortions like the synthetic ones, and its
letters are better there than on other pictures. Everything that is done lies in --work: the same command goes on after
an interruption. It takes about three hours on two cores.
"""

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import letters
import numpy as np
import people
from local_nr_pool import split
from rich.console import Console
from safetensors.numpy import save
from sklearn.model_selection import KFold
from synthetic import photo_files

from agentic_iqa_local.files import CONFIGS, PACKAGE, ROOT, folder_hash, read_json, write_whole
from agentic_iqa_local.iqa_tools import local_nr as nr
from agentic_iqa_local.judgement.fit import MOST_TEMPERATURE, Fit
from agentic_iqa_local.judgement.identity import fitted_with
from agentic_iqa_local.judgement.intervals import SHIPPED
from agentic_iqa_local.score_fusion import fused_distribution
from agentic_iqa_local.state import revised
from agentic_iqa_local.studies.fitting import READ, fit_runs
from agentic_iqa_local.studies.readings import Readings
from agentic_iqa_local.studies.statistics import ranked_probability_scores
from agentic_iqa_local.studies.store import read_run

FOLDS, AT_ONCE = letters.FOLDS, 2
EMBEDDED, TEMPERATURE = letters.EMBEDDED, "agentic_iqa_temperature"
SOURCE = "people's scores of LIVE Challenge and synthetic distortions"
HEAD = Path("agentic_iqa_local", "iqa_tools", "data", nr.PEOPLE.name)
LIVE_SCALE, LEVELS, QUESTIONS = ("0", "100"), ("1", "5"), ()


def say(text: str) -> None:
    Console(stderr=True).print(f"[bold]{text}[/bold]")


def taught(args: argparse.Namespace, fold: int | None = None) -> Path:
    """The state file of the letters that learned without the photographs of a fold, or from all."""
    work = args.work / "letters"
    state = work / letters.STATE.format("all" if fold is None else fold)
    without = () if fold is None else ("--fold", str(fold))
    say(f"letters: {state.stem}")
    script = ROOT / "scripts/training/letters.py"
    run(ROOT, script, args.live, args.photos[0], "--work", work, *without)
    return state


def copy_with(work: Path, name: str, head: dict[str, np.ndarray], state: Path) -> Path:
    """A copy of the program whose LocalNR has another head, and its model other letters."""
    code = work / "code" / name
    if not (code / HEAD).exists():
        for folder in (PACKAGE, CONFIGS, EMBEDDED, ROOT / "scripts"):
            shutil.copytree(folder, code / folder.relative_to(ROOT), dirs_exist_ok=True)
    weights = {key: np.asarray(values, np.float32) for key, values in head.items()}
    letters.write(state, code / EMBEDDED.relative_to(ROOT))
    (code / HEAD).write_bytes(save(weights))
    return code


def run(code: Path, *command: str | Path) -> None:
    """Runs a Python command in a copy of the program."""
    environment = os.environ | {"PYTHONPATH": str(code), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, *command], check=True, env=environment, cwd=code)


def study(code: Path, manifest: Path, scale: Sequence[str], out: Path) -> Path:
    """The stored rows of a manifest's pictures, without the letters' temperature."""
    say(f"study: {out.name}")
    plain = out.parent / "plain.yaml"
    plain.write_text("fusion: {temperature: 1}\n", encoding="utf-8")
    about = ("--mos-range", *scale) if scale else ()
    run(
        code,
        "-m",
        "agentic_iqa_local",
        "study",
        "run",
        manifest,
        *about,
        "--config",
        plain,
        "--out",
        out,
    )
    return out


def live_run(
    args: argparse.Namespace,
    fold: int,
    rated: tuple[np.ndarray, np.ndarray],
    photographs: np.ndarray,
) -> Path:
    """The run of a third of the rated photographs, by what `people.rated` and `people.clean` gave."""
    live, levels = rated
    train, test = list(KFold(FOLDS, shuffle=True, random_state=0).split(live))[fold]
    rows = people.manifest(args.live)
    manifest = args.work / f"live_{fold}.csv"
    with manifest.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["image", "mos"])
        table.writerows([args.live / rows[i]["image"], rows[i]["mos"]] for i in test)
    head = people.fit(live[train], levels[train], photographs)
    code = copy_with(args.work, f"live_{fold}", head, taught(args, fold))
    return study(code, manifest, LIVE_SCALE, args.work / f"run_live_{fold}")


def synthetic_run(
    code: Path, held_out: Sequence[Path], work: Path, name: str, *options: str
) -> Path:
    """The run of distorted photographs."""
    photos = work / "held_out"
    photos.mkdir(exist_ok=True)
    for file in held_out:
        shutil.copy(file, photos)
    made = work / name
    if not (made / "manifest.csv").exists():
        shutil.rmtree(made, ignore_errors=True)
        say(f"synthetic pictures: {name}")
        script = code / "scripts/training/synthetic.py"
        run(code, script, photos, "--all", *options, "--out", made)
    return study(code, made / "manifest.csv", LEVELS, work / f"run_{name}")


def questions_run(code: Path, folders: Sequence[Path], work: Path) -> Path:
    """The run of questions with known answers."""
    made = work / "questions"
    if not (made / "manifest.csv").exists():
        shutil.rmtree(made, ignore_errors=True)
        run(code, code / "scripts/training/questions.py", *folders, "--out", made)
    return study(code, made / "manifest.csv", QUESTIONS, work / "run_questions")


def account_of(questions: Path, date: str) -> str:
    """What the sets of answers are calibrated on."""
    lines = (questions / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    pictures = {json.loads(line)["sha256"] for line in lines}
    return f"synthetic distortions, {len(pictures)} pictures, {len(lines)} questions, {date}"


def misses(runs: Sequence[Path], temperature: float) -> np.ndarray:
    """The ranked probability score of each of the people's pictures, (pictures,)."""
    scores = []
    for folder in runs:
        run, rows = read_run(folder)
        readings = Readings(rows, run.fusion.vote)
        levels = run.dataset.to_levels(np.array([row["mos"] for row in rows], float))
        p = readings.p(READ, temperature=temperature)
        fused = fused_distribution(
            p, readings.agent["q_bar"].to_numpy(), readings.eta(run.fusion.eta)
        )
        scores.append(ranked_probability_scores(fused, levels))
    return np.concatenate(scores)


def temperature_of(runs: Sequence[Path], best: float) -> float:
    """The letters' temperature: the highest, at which one look at a picture is enough, unless people's
    scores prefer the best one by more than a standard error (Breiman et al., 1984)."""
    more = misses(runs, MOST_TEMPERATURE) - misses(runs, best)
    more = more[np.isfinite(more)]
    error = more.std(ddof=1) / np.sqrt(len(more))
    say(f"a temperature of {MOST_TEMPERATURE} misses by {more.mean():.5f} more, ± {error:.5f}")
    return best if more.mean() > error else MOST_TEMPERATURE


def write_fit(people_runs: Sequence[Path], synthetic: Sequence[Path], questions: Path) -> Fit:
    """The temperature by people's scores, and with it the calibration by all runs."""
    by_people = fit_runs(people_runs, "temperature", split=None, share=1.0, one_model=False)
    say(by_people.account)
    temperature = temperature_of(people_runs, by_people.temperature)
    config = read_json(EMBEDDED / "config.json") | {TEMPERATURE: temperature}
    write_whole(EMBEDDED / "config.json", (json.dumps(config, indent=2) + "\n").encode())
    everything = fit_runs(
        [*people_runs, *synthetic, questions],
        "keep",
        split=None,
        share=1.0,
        temperature=temperature,
        one_model=False,
    )
    assert everything.intervals is not None
    said = account_of(questions, everything.intervals.date)
    answers = tuple(revised(part, calibrated_on=said) for part in everything.intervals.questions)
    intervals = revised(everything.intervals, source=SOURCE, questions=answers)
    after = float(np.nanmean(misses(people_runs, temperature)))
    about = {"objective": "temperature", "before": by_people.before, "after": after}
    model = folder_hash(EMBEDDED)
    intervals = revised(intervals, model=model)
    # the folder above a picture is enough, and the same on every machine
    keys = tuple("/".join(Path(key).parts[-2:]) for key in everything.keys)
    about |= {"keys": keys, "model": model, "intervals": intervals, "made_with": fitted_with()}
    fit = everything.model_copy(update=about)  # its field `keys` keeps it from being a mapping
    write_whole(SHIPPED, fit.model_dump_json().encode())
    return fit


def comparisons(photos: Path, work: Path) -> None:
    """The weights of comparisons, of pictures assessed with what the fit says."""
    script = ROOT / "scripts/training/comparisons.py"
    versions = work / "versions.jsonl"
    fitted = read_json(SHIPPED)
    stamp = work / "versions.json"
    if not versions.exists() or json.loads(stamp.read_text()) != fitted["made_with"]:
        say("comparisons")
        run(ROOT, script, "versions", "--photos", photos, "--out", versions)
        stamp.write_text(json.dumps(fitted["made_with"]))
    run(ROOT, script, "fit", versions)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("live", type=Path, metavar="LIVE_CHALLENGE")
    parser.add_argument("photos", type=Path, nargs=2, metavar="PHOTOS")
    parser.add_argument("--work", type=Path, required=True, help="folder for what is done")
    args = parser.parse_args()
    args.live, args.work = args.live.resolve(), args.work.resolve()
    args.photos = [folder.resolve() for folder in args.photos]
    (args.work / "letters").mkdir(parents=True, exist_ok=True)
    work, folders = args.work, args.photos
    letters.collect(args.live, folders[0], work / "letters")
    network = nr.LocalNR.load()
    photographs = people.clean(network, folders, work)
    held_out = split(folders)[1]
    kept = [file not in held_out for folder in folders for file in photo_files(folder)]
    rated = people.rated(network, args.live, work)
    head = people.fit(*rated, photographs[kept])
    with ThreadPoolExecutor(AT_ONCE) as pool:
        state = pool.submit(taught, args)
        of_people = [pool.submit(live_run, args, fold, rated, photographs) for fold in range(FOLDS)]
        code = copy_with(work, "synthetic", head, state.result())
        synthetic = [
            pool.submit(
                synthetic_run, code, held_out, work, "nr", "--per-photo", "4", "--no-reference"
            ),
            pool.submit(synthetic_run, code, held_out, work, "fr", "--per-photo", "2"),
        ]
        questions = pool.submit(questions_run, code, folders, work)
    letters.write(state.result(), EMBEDDED)
    people_runs = [job.result() for job in of_people]
    fit = write_fit(people_runs, [job.result() for job in synthetic], questions.result())
    say(fit.account)
    comparisons(folders[0], work)


if __name__ == "__main__":
    main()
