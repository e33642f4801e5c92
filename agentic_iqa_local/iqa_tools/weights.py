"""The files that tools load: whether the models folder has them, with the bytes that its manifest names.

Weights of pyiqa's metrics are pickles, and another file gives other numbers. So a tool loads what the manifest
of the models folder names, and not what torch or Hugging Face keep in caches of their own.
`scripts/fetch_models.py` makes a bundle of files in such caches.
"""

import os
from pathlib import Path
from typing import Any

from agentic_iqa_local.files import FileError, command, file_hash, read_json
from agentic_iqa_local.iqa_tools.specs import ToolError, ToolSpec

MANIFEST, LARGEST_MANIFEST = "manifest.json", 16 << 20  # its name, and its bytes at most
HUB = "tools/hub"  # what pyiqa's metrics load, laid out as torch's hub folder
HUGGINGFACE = "tools/huggingface"  # snapshots, laid out as huggingface_hub's cache


class Weights:
    """The tools' weights in the models folder `root`. Raises ToolError for a damaged manifest."""

    def __init__(self, root: Path):
        self.root, self.hub, self.huggingface = root, root / HUB, root / HUGGINGFACE
        self._files: dict[str, dict[str, Any]] = {}
        if os.path.lexists(root / MANIFEST):
            try:
                files = read_json(root / MANIFEST, LARGEST_MANIFEST)["files"]
                self._files = {file["path"]: file for file in files if file["sha256"] and file["size"] >= 0}
            except (FileError, KeyError, TypeError) as error:
                raise ToolError(f"{root / MANIFEST}: damaged ({error})", "unpack its bundle again.") from error

    def missing(self, spec: ToolSpec) -> str | None:
        """Why `spec` has not its weights, by names and sizes alone; None if it has them."""
        if unnamed := [weight for weight in spec.weights if not self._of(weight)]:
            return (
                f"missing weights {', '.join(unnamed)} (no bundle in the models folder has them;"
                f" {command('bundle')} --tools {spec.name} makes a bundle of them)"
            )
        for path, file in self._needed(spec).items():
            place = self.root / path
            if not place.is_file() or place.stat().st_size != file["size"]:
                return f"missing weights {place} (unpack its bundle again)"
        return None

    def check(self, spec: ToolSpec) -> None:
        """Raises ToolError that names a file which `spec` loads and whose SHA-256 is not the manifest's."""
        for path, file in self._needed(spec).items():
            if file_hash(self.root / path) != file["sha256"]:
                raise ToolError(
                    f"{spec.name} is unavailable: {self.root / path} is damaged or was changed: expected the"
                    f" SHA-256 of {MANIFEST}, {file['sha256']}",
                    "unpack its bundle again.",
                )

    def _of(self, weight: str) -> dict[str, dict[str, Any]]:
        repository = weight.removeprefix("hf:").replace("/", "--")
        begin = f"{HUGGINGFACE}/models--{repository}/" if weight.startswith("hf:") else f"{HUB}/{weight}"
        return {path: file for path, file in self._files.items() if path.startswith(begin)}

    def _needed(self, spec: ToolSpec) -> dict[str, dict[str, Any]]:
        return {path: file for weight in spec.weights for path, file in self._of(weight).items()}
