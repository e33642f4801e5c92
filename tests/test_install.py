"""The set-up installs from the indexes that pip is set to."""

import os
import subprocess
import sys
from pathlib import Path

from agentic_iqa_local.files import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import install
import pytest


def test_uv_gets_the_indexes_of_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Those of pip's file, which the environment overrides, as pip's own documentation says."""
    config = tmp_path / "pip.conf"
    config.write_text(
        "[global]\nindex-url = https://mirror.example/simple\ncert = /other.pem\n"
        "extra-index-url =\n    https://a.example/simple\n    https://b.example/simple\n"
    )
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.setenv("PIP_CERT", "/mine.pem")
    assert install.pip_settings()["index-url"] == ["https://mirror.example/simple"]

    commands, environments = [], []

    def ran(command: list[str], **how: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        environments.append(how.get("env"))
        return subprocess.CompletedProcess(command, 0, "")

    settings = install.pip_settings()
    monkeypatch.setattr(install, "pip_settings", lambda: settings)
    monkeypatch.setattr(install.subprocess, "run", ran)
    monkeypatch.setattr(install, "run_told", lambda command, env: ran(command, env=env))
    install.install_by_uv(["pillow"])
    told = " ".join(commands[-1])
    assert "--default-index https://mirror.example/simple" in told
    assert "--index https://a.example/simple --index https://b.example/simple" in told
    assert "--index-strategy unsafe-best-match" in told
    assert told.endswith(" pillow")
    assert environments[-1]["SSL_CERT_FILE"] == "/mine.pem"
