"""Loads Stable Diffusion XL from a diffusers folder, a Hugging Face repository or a single file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import torch

from modules.families.parts.files import ModelFiles, require_known_unet
from modules.families.parts.lora_keys import naming_of
from modules.families.parts.noise_process import process_of, scheduler_with
from modules.families.parts.read_model import read_model
from modules.families.sdxl.forward import StableDiffusionXL
from modules.families.sdxl.spec import SDXL
from modules.formats.diffusers_folder import OnBytes
from modules.system.secrets import HubAccess

logger = logging.getLogger("darkroom.families")


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
) -> StableDiffusionXL:
    """Load the model with every part on the CPU, frozen, in its dtype from `dtypes` (default float32).

    With `prompt_weighting`, prompts may contain weights (see `prompt_weights`). `prediction` and `zero_terminal_snr`
    override the model's scheduler config (see `scheduler_with`). `vae_file` names a VAE that replaces the model's own,
    and `unet_file` a UNet (see `read_model`); `hub` has the token for a download, and `on_bytes(done, total)` reports
    its progress. The parts in `without_weights` are on the meta device. `fallback_dtype` is that of a VAE that
    overflows in float16. Raises DarkroomError where a file is missing or the model is not SDXL.
    """
    wanted = dtypes.get("vae", torch.float32)
    careful = {**dtypes, "vae": torch.float32} if wanted == torch.float16 else dtypes
    files = read_model(
        base_model,
        SDXL,
        careful,
        vae_file=vae_file,
        unet_file=unet_file,
        stays_packed=stays_packed,
        offline=offline,
        hub_cache_dir=hub_cache_dir,
        hub=hub,
        on_bytes=on_bytes,
        without_weights=without_weights,
    )
    if wanted == torch.float16:
        halve_if_safe(files.parts["vae"], otherwise=fallback_dtype, name=base_model)
    scheduler = scheduler_with(files.scheduler, prediction=prediction, zero_terminal_snr=zero_terminal_snr)
    return assemble(
        replace(files, scheduler=scheduler),
        clip_skip=clip_skip,
        clip_skip_2=clip_skip_2,
        prompt_weighting=prompt_weighting,
    )


def halve_if_safe(vae: Any, *, otherwise: torch.dtype, name: str) -> None:
    """Cast a float32 VAE to float16, or to another dtype if its config marks it as overflowing in float16.

    SDXL's own VAE overflows and decodes black images; fixed VAEs have `force_upcast` false.
    """
    if vae.config.force_upcast:
        dtype = str(otherwise).removeprefix("torch.")
        logger.warning("The VAE of %s overflows in float16 according to its config; it is used in %s.", name, dtype)
        vae.to(otherwise)
    else:
        vae.half()


def assemble(
    files: ModelFiles, *, clip_skip: int, clip_skip_2: int | None = None, prompt_weighting: bool = False
) -> StableDiffusionXL:
    """Build the model from its files, which were read from any form.

    SDXL always skips the last layer of both encoders; `clip_skip` counts the layers skipped beyond it, `clip_skip_2`
    those of the second encoder where they differ. The pooled state always comes from the last layer, regardless of clip
    skip. Raises DarkroomError for a variant that is not supported.
    """
    require_known_unet(files, SDXL)
    process = process_of(files.scheduler, name=files.name)
    return StableDiffusionXL(
        spec=SDXL,
        unet=files.parts["unet"],
        vae=files.parts["vae"],
        towers={
            name: files.tower(name, skipped_layers=1 + skip, is_normed=False, is_weighted=prompt_weighting)
            for name, skip in (
                ("text_encoder", clip_skip),
                ("text_encoder_2", clip_skip if clip_skip_2 is None else clip_skip_2),
            )
        },
        process=process,
        scheduler=files.scheduler,
        lora_naming=naming_of("sdxl", files.parts, prediction=process.prediction_type),
    )
