"""Installs packages into the environment of the Python that runs it: by uv, which takes a fifth of pip's time, with the
indexes that pip is set to; by pip where uv cannot be had or fails. scripts/with_env.sh calls it.

    .venv/bin/python scripts/install.py --constraint constraints.txt --editable .
"""

import ast
import os
import subprocess
import sys

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
UV = "uv==0.13.9"
SECTIONS = ("global", "install", ":env:")  # of pip's settings, the strongest last
OPTIONS = {  # of uv, by pip's setting
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "trusted-host": "--allow-insecure-host",
}


def pip_settings() -> dict[str, list[str]]:
    """The values of each of pip's settings, from its files and the environment."""
    shown = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=True)
    lines = [line.partition("=") for line in shown.stdout.splitlines()]
    settings = {}
    for section in SECTIONS:
        for key, _, value in lines:
            if key.startswith(f"{section}."):
                settings[key.removeprefix(f"{section}.")] = ast.literal_eval(value).split()
    return settings


def install_by_uv(packages: list[str]) -> None:
    """Raises CalledProcessError, OSError, and what a setting that cannot be read raises."""
    settings = pip_settings()
    subprocess.run([*PIP, "install", "-qq", UV], check=True)
    command = [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable]
    for name, option in OPTIONS.items():
        for value in settings.get(name, []):
            command += [option, value]
    if settings.get("extra-index-url"):
        command += ["--index-strategy", "unsafe-best-match"]  # pip's: the best of all indexes
    environment = dict(os.environ)
    for certificates in settings.get("cert", []):
        environment.setdefault("SSL_CERT_FILE", certificates)
    if sys.stderr.isatty():  # uv shows how far it is
        subprocess.run([*command, *packages], check=True, env=environment)
    else:
        run_told([*command, *packages], environment)


def run_told(command: list[str], environment: dict[str, str]) -> None:
    """Runs uv and passes on what it says, but for its list of the packages. Raises
    CalledProcessError."""
    uv = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    assert uv.stderr is not None
    for line in uv.stderr:
        if not line.startswith((" + ", " - ")):
            sys.stderr.write(line)
    if uv.wait():
        raise subprocess.CalledProcessError(uv.returncode, command)


def main() -> int:
    packages = sys.argv[1:]
    try:
        install_by_uv(packages)
    except (subprocess.CalledProcessError, OSError, ValueError, SyntaxError):
        sys.stderr.write("uv could not do it; pip does, which takes some minutes ...\n")
        return subprocess.run([*PIP, "install", "-q", *packages]).returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
