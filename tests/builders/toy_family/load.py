"""Loads the toy family from a diffusers folder."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from modules.families.parts.files import require_known_unet
from modules.families.parts.lora_keys import naming_of
from modules.families.parts.noise_process import process_of, scheduler_with
from modules.families.parts.read_model import read_model
from tests.builders.toy_family.forward import ToyPixel
from tests.builders.toy_family.spec import TOY


def load(
    base_model: str,
    *,
    dtypes: Mapping[str, torch.dtype],
    clip_skip: int = 0,
    prediction: str = "auto",
    zero_terminal_snr: str = "auto",
    offline: bool = False,
    hub_cache_dir: str = "",
    without_weights: Collection[str] = (),
    **_: Any,
) -> ToyPixel:
    """Return the model with every part on the CPU, frozen."""
    files = read_model(
        base_model, TOY, dtypes, offline=offline, hub_cache_dir=hub_cache_dir, without_weights=without_weights
    )
    require_known_unet(files, TOY)
    scheduler = scheduler_with(files.scheduler, prediction=prediction, zero_terminal_snr=zero_terminal_snr)
    process = process_of(scheduler, name=files.name)
    return ToyPixel(
        spec=TOY,
        unet=files.parts["unet"],
        tower=files.tower("text_encoder", skipped_layers=clip_skip, is_normed=True),
        process=process,
        scheduler=scheduler,
        lora_naming=naming_of("toy_pixel", files.parts, prediction=process.prediction_type),
    )
