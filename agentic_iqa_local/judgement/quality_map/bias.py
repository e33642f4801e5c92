"""What cropping a picture to tiles does to a model's letters, as it was measured on clean photographs."""

import json
from functools import lru_cache
from typing import Any

from agentic_iqa_local.judgement.quality_map.result import TileBias
from agentic_iqa_local.nodes.letter_reading import ROLE
from agentic_iqa_local.nodes.workbench import OpenImages
from agentic_iqa_local.paths import ROOT
from agentic_iqa_local.provenance import folder_hash

SHIPPED = ROOT / "configs" / "tile_bias.json"


def known_bias(images: OpenImages, tile: int) -> tuple[TileBias | None, str | None]:
    """(the bias of the set-up's model on tiles of `tile` pixels a side, why none is corrected)."""
    services = images.services
    folder = services.settings.folder(services.section(ROLE).backend)
    measured = _measured()
    uncorrected = "the tiles' levels are not corrected for what cropping does to them: it was measured"
    if not folder.is_dir() or folder_hash(folder) != measured.get("model"):
        return None, f"{uncorrected} on another model, {measured.get('name', 'none')}"
    found = measured["tiles"].get(str(tile))
    if found is None:
        sides = ", ".join(measured["tiles"])
        return None, f"{uncorrected} on tiles of {sides} pixels a side, these have {tile}"
    return TileBias(tile=tile, source=measured["source"], **found), None


@lru_cache(maxsize=1)
def _measured() -> dict[str, Any]:
    return json.loads(SHIPPED.read_text(encoding="utf-8")) if SHIPPED.is_file() else {}
