"""SDXL's size conditioning matches the actual resize and crop of each image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from modules.data.buckets import Size
from modules.data.conditioning import SizeConditioning
from modules.families.parts.conditioning import TextConditioning
from modules.families.sdxl.model import SdxlConditioning, StableDiffusionXL
from modules.system.devices import CPU
from tests.builders.configs import small_config
from tests.builders.images import draw_folder
from tests.builders.runs import run


def test_sizes_go_with_their_prompts_and_not_into_the_cache() -> None:
    texts = SdxlConditioning(TextConditioning(torch.randn(2, 77, 4)), torch.randn(2, 3))
    with_size_conditioning = texts.with_size_conditioning(
        [SizeConditioning.whole(Size(64, 96)), SizeConditioning(Size(1017, 500), 3, 2, Size(64, 64))]
    )
    assert with_size_conditioning.tensors().keys() == {"states", "pooled"}
    chosen = with_size_conditioning.select([1]).to(CPU, torch.bfloat16)
    assert (len(chosen), chosen.text.states_BLD.dtype, chosen.pooled_BE.dtype) == (1, torch.bfloat16, torch.bfloat16)
    assert chosen.sizes_B6 is not None
    assert chosen.sizes_B6.tolist() == [[500.0, 1017.0, 2.0, 3.0, 64.0, 64.0]]  # exact, where bfloat16 would round


# An image scaled to 128x64 px of which 64 in the middle are kept, one scaled to 64x96, one that fits.
SIZES = [(256, 128), (100, 150), (64, 64)]
EXPECTED = [[128, 256, 0, 32, 64, 64], [150, 100, 16, 0, 64, 64], [64, 64, 0, 0, 64, 64]]


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, list[list[int]]]]:
    """The size conditioning of each prediction, and whether it was computed with gradients."""
    seen: list[tuple[bool, list[list[int]]]] = []
    plain = StableDiffusionXL.predict

    def predict(
        self: StableDiffusionXL, noisy: Any, timesteps: Any, conditioning: SdxlConditioning, *extra: Any, **more: Any
    ) -> torch.Tensor:
        assert conditioning.sizes_B6 is not None
        seen.append((torch.is_grad_enabled(), conditioning.sizes_B6.int().tolist()))
        return plain(self, noisy, timesteps, conditioning, *extra, **more)

    monkeypatch.setattr(StableDiffusionXL, "predict", predict)
    return seen


@pytest.mark.parametrize("text_is_trained", [False, True])
def test_sizes_and_crops_are_those_of_the_images(
    tiny_sdxl: Path,
    tmp_path: Path,
    sizes: list[tuple[bool, list[list[int]]]],
    text_is_trained: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trainer.run.training_run.dry_run", lambda _run: None)  # shows some of the images once more
    images = draw_folder(tmp_path / "images", sizes=SIZES)
    config = small_config(
        tmp_path,
        model=tiny_sdxl,
        images=images,
        concepts=[{"path": str(images)}, {"path": str(images), "kind": "validation"}],
        data={"aspect_ratio_bucketing": False, "latent_cache": text_is_trained},
        training={"epochs": 1, "batch_size": 3},
        parts={key: {"train": text_is_trained} for key in ("text_encoder", "text_encoder_2")},
        validation={"every": {"n": 1, "unit": "epoch"}, "num_timesteps": 1},
        sampling={
            "at_end": True,
            "prompts": [{"prompt": "a", "width_px": 96, "height_px": 64, "steps": 1, "guidance": 2.0}],
        },
    )
    assert run(config).finished.outcome == "finished"
    trained = [row for with_gradients, rows in sizes if with_gradients for row in rows]
    assert sorted(trained) == sorted(EXPECTED)
    looked_at = [rows for with_gradients, rows in sizes if not with_gradients]
    validated = [rows for rows in looked_at if len(rows) == 3]
    assert validated
    assert all(sorted(rows) == sorted(EXPECTED) for rows in validated)
    assert [rows for rows in looked_at if len(rows) == 2] == [[[64, 96, 0, 0, 64, 96]] * 2]
