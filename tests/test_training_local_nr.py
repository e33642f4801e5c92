"""The recipe of LocalNR: its pool, its targets, and how several networks become one."""

import local_nr as recipe
import local_nr_pool as pool
import numpy as np
import torch
from distortions import Part
from PIL import Image

from agentic_iqa_local.iqa_tools.local_nr import (
    GRAPHIC,
    OUTPUTS,
    PRESENCE,
    SEVERITIES,
    STRONGEST,
    TOO_DARK,
)
from agentic_iqa_local.state import DISTORTION_TYPES


def test_photographs_are_held_out_with_all_their_tiles(tmp_path):
    (tmp_path / "more").mkdir()
    lines = ["image,file"]
    for photograph in range(20):
        for tile in range(3):
            Image.new("RGB", (8, 8)).save(tmp_path / "more" / f"p{photograph:02d}_{tile}.png")
            lines.append(f"p{photograph:02d}_{tile}.png,source{photograph}")
    (tmp_path / "more" / "manifest.csv").write_text("\n".join(lines))
    for i in range(41):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{i}.png")
    train, held_out = pool.split([tmp_path, tmp_path / "more"])
    sides = [
        {file.name[:3] for file in side if file.parent.name == "more"} for side in (train, held_out)
    ]
    assert not sides[0] & sides[1]
    assert [len(side) for side in sides] == [20 - pool.HELD_OUT_MORE, pool.HELD_OUT_MORE]


def test_targets_say_what_was_done():
    found = recipe.target([Part("jpeg", 4), Part("darken", 1)], 2.5)
    assert found[0] == 2.5
    assert found[STRONGEST].tolist() == [
        float(kind == "Compression") for kind in (*DISTORTION_TYPES, "none")
    ]
    present = {
        family: p for family, p in zip(DISTORTION_TYPES, found[PRESENCE].tolist(), strict=True) if p
    }
    assert present == {"Compression": 1.0, "Brightness change": recipe.JUST_VISIBLE}
    severities = dict(zip(DISTORTION_TYPES, found[SEVERITIES].tolist(), strict=True))
    assert (severities["Compression"], severities["Brightness change"]) == (4, 1)
    assert np.isnan(severities["Noise"])
    assert found[TOO_DARK] == 1
    assert recipe.target([], 4.27)[STRONGEST][-1] == 1


def test_what_is_unknown_does_not_count_in_the_loss():
    known = recipe.target([Part("jpeg", 3)], 2.0)[None]
    graphic = torch.full((1, OUTPUTS), float("nan"))
    graphic[0, GRAPHIC] = 1
    outputs = torch.zeros(2, OUTPUTS, requires_grad=True)
    recipe.loss_of(outputs, torch.cat([known, graphic])).backward()
    assert torch.isfinite(outputs.grad).all()
    assert outputs.grad[1].nonzero().flatten().tolist() == [GRAPHIC]
