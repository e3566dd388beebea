"""Every weight dtype a part can have trains with every precision on a CPU: the form offers them all."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import pytest

from tests.builders.configs import small_config
from tests.builders.images import draw_folder
from tests.builders.runs import run
from trainer.events import StepFinished

DTYPES = ("float32", "bfloat16", "float16")
MIXED = (("float16", "bfloat16"), ("bfloat16", "float16"))
SAMPLE = {"prompt": "a disc", "width_px": 64, "height_px": 64, "steps": 1, "guidance": 2.0}


def loss_of(folder: Path, model: Path, images: Path, dtype: str, precision: str) -> float:
    """Train a LoRA for one step, with a sample at the end; return the loss of the step."""
    parts = {name: {"dtype": dtype, "train": True} for name in ("unet", "vae", "text_encoder", "text_encoder_2")}
    config = small_config(
        folder,
        model=model,
        images=images,
        parts=parts,
        training={"epochs": 1, "batch_size": 1, "precision": precision},
        sampling={"at_end": True, "prompts": [SAMPLE]},
    )
    ran = run(config)
    ran.finished  # noqa: B018 - raises with the run's own error
    [step] = ran.of(StepFinished)
    assert step.loss is not None
    return step.loss


@pytest.mark.full
def test_every_weight_dtype_trains_in_every_precision(tiny_sd: Path, tmp_path: Path) -> None:
    """Mixing two 16-bit dtypes used to end in an internal error: mixed dtype."""
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)])
    exact = loss_of(tmp_path / "exact", tiny_sd, images, "float32", "float32")
    for dtype, precision in product(DTYPES, ("float32", "tfloat32", "bfloat16", "float16")):
        loss = loss_of(tmp_path / f"{dtype} {precision}", tiny_sd, images, dtype, precision)
        assert math.isclose(loss, exact, rel_tol=0.02), (dtype, precision)


@pytest.mark.parametrize(("dtype", "precision"), MIXED)
def test_sdxl_concatenates_its_conditioning_in_mixed_dtypes(
    tiny_sdxl: Path, tmp_path: Path, dtype: str, precision: str
) -> None:
    """Autocast concatenates nothing that is in the other 16-bit format, on a GPU either."""
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)])
    assert math.isfinite(loss_of(tmp_path, tiny_sdxl, images, dtype, precision))
