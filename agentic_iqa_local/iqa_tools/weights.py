"""The files that tools load: whether the models folder has them, with the bytes that its manifest names.

Weights of pyiqa's metrics are pickles, and another file gives other numbers. So a tool loads what the manifest
of the models folder names, and not what torch or Hugging Face keep in caches of their own.
`scripts/fetch_models.py` makes a bundle of files in such caches.
"""

from __future__ import annotations

from pathlib import Path

from agentic_iqa_local.files import command
from agentic_iqa_local.iqa_tools.specs import ToolError, ToolSpec
from agentic_iqa_local.offline.manifest import HUB, HUGGINGFACE, MANIFEST, BundleError, StoredFile
from agentic_iqa_local.offline.store import store_manifest, verified, weights_dir

SNAPSHOT = "hf:"  # begins a weight that is a snapshot of a repository


class Weights:
    """The tools' weights in the models folder `root`. Raises ToolError for a damaged manifest."""

    def __init__(self, root: Path):
        self.root, self.hub, self.huggingface = root, weights_dir(root), root / HUGGINGFACE
        try:
            manifest = store_manifest(root)
        except BundleError as error:
            raise ToolError(error.message, error.remedy) from error
        self._files = manifest.files if manifest else ()

    def missing(self, spec: ToolSpec) -> str | None:
        """Why `spec` has not its weights, by names and sizes alone; None if it has them."""
        if unnamed := [weight for weight in spec.weights if not self._of(weight)]:
            return (
                f"missing weights {', '.join(unnamed)} (no bundle in the models folder has them;"
                f" {command('bundle')} --tools {spec.name} makes a bundle of them)"
            )
        for file in self._needed(spec):
            place = self.root / file.path
            if not place.is_file() or place.stat().st_size != file.size:
                named = f"it is in {MANIFEST}, but not there or of another size"
                return f"missing weights {place} ({named}; unpack its bundle again)"
        return None

    def check(self, spec: ToolSpec) -> dict[str, str]:
        """Each file that `spec` loads with its SHA-256, read from the file itself. Raises ToolError that
        names a file which is not the manifest's."""
        for file in self._needed(spec):
            if not verified(self.root, file.path):
                raise ToolError(
                    f"{spec.name} is unavailable: {self.root / file.path} is damaged or was changed: expected"
                    f" the SHA-256 of {MANIFEST}, {file.sha256}",
                    "unpack its bundle again.",
                )
        return {file.path: file.sha256 for file in self._needed(spec)}

    def _of(self, weight: str) -> list[StoredFile]:
        if weight.startswith(SNAPSHOT):
            folder = f"models--{weight.removeprefix(SNAPSHOT).replace('/', '--')}"
            return [file for file in self._files if file.path.startswith(f"{HUGGINGFACE}/{folder}/")]
        return [file for file in self._files if file.path == f"{HUB}/{weight}"]

    def _needed(self, spec: ToolSpec) -> list[StoredFile]:
        return [file for weight in spec.weights for file in self._of(weight)]
