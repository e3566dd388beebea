"""Weights in one 16-bit dtype and the precision in the other, on a CPU: refused before the start, or it works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.builders.configs import laid_over, small_config
from tests.builders.flow_models import FLOW_MODELS, flow_model
from tests.builders.images import draw_folder
from tests.builders.runs import run
from trainer.events import RunFailed, RunFinished
from trainer.wording import MIXED_16_BIT

MIXES = [("float16", "bfloat16"), ("bfloat16", "float16")]


def mixed(folder: Path, model: Path, name: str, dtype: str, precision: str, *, denoiser: bool) -> Any:
    tiny = flow_model(name)
    config = small_config(folder, model=model, images=draw_folder(folder / "images", sizes=[(64, 64)] * 2))
    parts = [p for p in config.family.parts if p.role != "vae" and (p.role == "denoiser") == denoiser]
    sides = {"width_px": tiny.side_px, "height_px": tiny.side_px}
    return laid_over(
        config,
        {
            "model": {"family": {**tiny.settings, **dict.fromkeys(tiny.places, str(model))}},
            "training": {"precision": precision, "epochs": 1},
            "data": {"resolution_px": [tiny.side_px]},
            "parts": {part.name: {"dtype": dtype} for part in parts},
            "sampling": {"at_start": True, "prompts": [{"prompt": "a disc", **sides, "steps": 2}]},
        },
    )


@pytest.mark.daily(3)
@pytest.mark.parametrize("denoiser", [True, False], ids=["denoiser", "encoders"])
@pytest.mark.parametrize(("dtype", "precision"), MIXES)
@pytest.mark.parametrize("name", FLOW_MODELS)
def test_it_is_refused_before_the_start_or_works(
    name: str, dtype: str, precision: str, denoiser: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Some ended only in the dry run, or while they filled the cache: autocast cannot join the tensors."""
    config = mixed(tmp_path, request.getfixturevalue(name), name, dtype, precision, denoiser=denoiser)
    models = {part.name: part.model for part in config.family.parts}
    joins = any(model.joins_weights and config.part(part).dtype == dtype for part, model in models.items())
    overflows = precision == "float16" and any(model.overflows_in_float16 for model in models.values())
    ending = run(config).ending
    if joins or overflows:
        assert isinstance(ending, RunFailed)
        assert ending.is_refused
        assert MIXED_16_BIT[0] in ending.message or overflows
    else:
        assert isinstance(ending, RunFinished), ending


def test_the_check_has_the_sentence_of_the_run(tiny_sd3: Path, tmp_path: Path) -> None:
    ending = run(mixed(tmp_path, tiny_sd3, "tiny_sd3", *MIXES[0], denoiser=True)).ending
    assert isinstance(ending, RunFailed)
    assert (ending.is_refused, ending.message, ending.advice) == (True, *MIXED_16_BIT)
