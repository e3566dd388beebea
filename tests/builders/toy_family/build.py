"""A tiny random model of the toy family, written as a diffusers folder."""

from __future__ import annotations

from pathlib import Path

from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel

from tests.builders.models import SCHEDULER, tiny_text_encoder, write_folder


def toy_unet() -> UNet2DConditionModel:
    """A UNet on pixels, with attention at its lower level alone."""
    return UNet2DConditionModel(
        sample_size=32,
        in_channels=3,
        out_channels=3,
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=24,
        attention_head_dim=2,
        norm_num_groups=8,
    )


def write_toy_folder(folder: Path) -> Path:
    """Write the model; the shipped tokenizer serves."""
    parts = {"unet": toy_unet, "text_encoder": tiny_text_encoder}
    return write_folder(folder, "ToyPixelPipeline", parts, SCHEDULER, seed=0)
