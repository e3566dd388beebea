"""Loads Stable Diffusion 1.x or 2.x from a diffusers folder, a Hugging Face repository or a single file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import torch

from modules.families.parts.clip_text import is_open_clip
from modules.families.parts.files import ModelFiles, require_known_unet
from modules.families.parts.lora_keys import naming_of
from modules.families.parts.noise_process import process_of, scheduler_with
from modules.families.parts.read_model import read_model
from modules.families.sd.forward import StableDiffusion
from modules.families.sd.spec import SD
from modules.families.spec import LoraNaming
from modules.formats.diffusers_folder import OnBytes
from modules.system.secrets import HubAccess


def load(
    base_model: str,
    *,
    dtypes: Mapping[str, torch.dtype],
    clip_skip: int = 0,
    clip_skip_2: int | None = None,
    prompt_weighting: bool = False,
    prediction: str = "auto",
    zero_terminal_snr: str = "auto",
    vae_file: str = "",
    unet_file: str = "",
    stays_packed: Callable[[str], bool] = lambda layer: False,
    offline: bool = False,
    hub_cache_dir: str = "",
    hub: HubAccess | None = None,
    on_bytes: OnBytes | None = None,
    without_weights: Collection[str] = (),
    fallback_dtype: torch.dtype = torch.float32,
) -> StableDiffusion:
    """Load the model with every part on the CPU, frozen, in its dtype from `dtypes` (default float32).

    `clip_skip_2` is ignored: there is no second text encoder; `fallback_dtype` too: this VAE does not overflow.
    With `prompt_weighting`, prompts may contain weights (see
    `prompt_weights`). `prediction` and `zero_terminal_snr` override the model's scheduler config (see
    `scheduler_with`). `vae_file` names a VAE that replaces the model's own, and `unet_file` a UNet
    (see `read_model`); `hub` has the token for a download, and `on_bytes(done, total)` reports its progress. The parts
    in `without_weights` are on the meta device. Raises DarkroomError where a file is missing or the model is not Stable
    Diffusion 1.x or 2.x.
    """
    files = read_model(
        base_model,
        SD,
        dtypes,
        vae_file=vae_file,
        unet_file=unet_file,
        stays_packed=stays_packed,
        offline=offline,
        hub_cache_dir=hub_cache_dir,
        hub=hub,
        on_bytes=on_bytes,
        without_weights=without_weights,
    )
    scheduler = scheduler_with(files.scheduler, prediction=prediction, zero_terminal_snr=zero_terminal_snr)
    return assemble(replace(files, scheduler=scheduler), clip_skip=clip_skip, prompt_weighting=prompt_weighting)


def assemble(files: ModelFiles, *, clip_skip: int, prompt_weighting: bool = False) -> StableDiffusion:
    """Build the model from its files, which were read from any form."""
    require_known_unet(files, SD)
    process = process_of(files.scheduler, name=files.name)
    return StableDiffusion(
        spec=SD,
        unet=files.parts["unet"],
        vae=files.parts["vae"],
        towers={
            "text_encoder": files.tower(
                "text_encoder", skipped_layers=clip_skip, is_normed=True, is_weighted=prompt_weighting
            )
        },
        process=process,
        scheduler=files.scheduler,
        lora_naming=lora_naming(files.parts, prediction=process.prediction_type),
    )


def lora_naming(parts: Mapping[str, Any], *, prediction: str) -> LoraNaming:
    """Return the names for SD 1.x, or for SD 2.x, whose text encoder is OpenCLIP's.

    The versions are kohya's, with "_v" for v-prediction (formats.md 5.3).
    """
    is_velocity = prediction == "v_prediction"
    if is_open_clip(parts["text_encoder"]):
        return naming_of("sd2_v" if is_velocity else "sd2", parts, prediction=prediction)
    return naming_of("sd1", parts, prediction=prediction, version="sd_v1_v" if is_velocity else "")
