"""What the rows of a run depend on beside its models and its questions, as hashes and versions: a run continues
only with the same."""

import hashlib
import json
from typing import Any

from agentic_iqa_local.config import Settings
from agentic_iqa_local.devices import SCORING, commit, machine, versions  # noqa: F401 # their former place
from agentic_iqa_local.files import file_hash, folder_hash, models_root  # noqa: F401 # its former place
from agentic_iqa_local.iqa_tools.calibration import map_file_hash
from agentic_iqa_local.iqa_tools.reliability import SHIPPED as RELIABILITY
from agentic_iqa_local.iqa_tools.runner import SHIPPED_MAPS
from agentic_iqa_local.offline.store import store_manifest


def of_settings(settings: Settings, device: str) -> dict[str, Any]:
    """What the rows of every run depend on beside its models and its questions, under the names that messages
    use. Raises BundleError for a models folder whose manifest is damaged, CalibrationError for tool maps that
    cannot be read."""
    stored = store_manifest(models_root(settings.models_dir))
    weights = (
        sorted((file.path, file.sha256) for file in stored.files if file.path.startswith("tools/"))
        if stored
        else []
    )
    return {
        "tool maps": map_file_hash(settings.tools.maps or SHIPPED_MAPS),
        "tool reliability": file_hash(RELIABILITY),
        "tool weights": hashlib.sha256(json.dumps(weights).encode()).hexdigest(),
        "versions": versions(),
        "device": device.partition(":")[0],
    }
