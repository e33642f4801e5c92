"""Where this package lies, how a user of it runs its commands, and what is said where a model's folder is
missing. Standard library alone, so that any Python
can say it."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
# configs/ and models/ lie beside the package in a checkout, and inside it where it was installed from a
# wheel.
ROOT = PACKAGE if (PACKAGE / "configs").is_dir() else PACKAGE.parent
EMBEDDED = ROOT / "models" / "embedded"  # the small model that ships

PROGRAM = "agentic-iqa" if ROOT == PACKAGE else "python -m agentic_iqa_local"
# below scripts/
DOORS = {
    "assess": "assess",
    "doctor": "doctor",
    "certify": "certify",
    "study": "study",
    "bundle": "fetch_models",
    "fit": "fit_tools",
    "gallery": "gallery",
    "serve": "serve",
}


def command(name: str, *, made: bool = False) -> str:
    """How a user of this installation runs a subcommand of `commands.main`, to be named in messages; with
    `made` in an environment that a checkout makes itself."""
    if ROOT == PACKAGE or name not in DOORS:
        return f"{PROGRAM} {name}"
    return f"{'bash scripts/with_env.sh ' if made else ''}python scripts/{DOORS[name]}.py"


def about_missing_model(folder: str | Path) -> tuple[str, str]:
    """What is wrong where a model's folder is not there, and what to do. Nobody is sent into the folder of an
    installed package."""
    if Path(folder) == EMBEDDED:
        return (
            "model embedded: its folder is missing, though it ships with the project",
            "get the checkout or the installation again",
        )
    inside = ROOT == PACKAGE and Path(folder).is_relative_to(PACKAGE)
    return (
        f"model {Path(folder).name if inside else f'folder {folder}'}: there is none",
        f"fetch it on a connected machine ({command('bundle')} --config NAME), or say where it lies: --model"
        " FOLDER, or --models DIR (or $AGENTIC_IQA_MODELS) for the folder above it",
    )
