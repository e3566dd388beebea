"""Loading Stable Diffusion XL from a diffusers folder, a Hugging Face repository or a single file."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from modules.families.parts.files import ModelFiles, require_plain_unet
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
    prediction: str = "auto",
    zero_terminal_snr: str = "auto",
    vae_file: str = "",
    offline: bool = False,
    hub_cache_dir: str = "",
    hub: HubAccess | None = None,
    on_bytes: OnBytes | None = None,
) -> StableDiffusionXL:
    """Return the model with every part on the processor, frozen, in its own dtype (float32 where none is named).

    `prediction` and `zero_terminal_snr` say what the model may not say of itself (see `scheduler_with`).
    `vae_file` names a VAE that takes the place of the model's own; `hub` holds the token for a download, which
    `on_bytes(done, total)` follows. Raises DarkroomError with a sentence for whatever is missing or is no SDXL.
    """
    wanted = dtypes.get("vae", torch.float32)
    careful = {**dtypes, "vae": torch.float32} if wanted == torch.float16 else dtypes
    files = read_model(
        base_model,
        SDXL,
        careful,
        vae_file=vae_file,
        offline=offline,
        hub_cache_dir=hub_cache_dir,
        hub=hub,
        on_bytes=on_bytes,
    )
    if wanted == torch.float16:
        halve_if_safe(files.parts["vae"], name=base_model)
    scheduler = scheduler_with(files.scheduler, prediction=prediction, zero_terminal_snr=zero_terminal_snr)
    return assemble(replace(files, scheduler=scheduler), clip_skip=clip_skip, clip_skip_2=clip_skip_2)


def halve_if_safe(vae: Any, *, name: str) -> None:
    """Put a VAE into float16 unless it overflows there, as its config says; then it stays in float32.

    SDXL's own VAE does, and gives black images; `force_upcast` is false in those that were mended.
    """
    if vae.config.force_upcast:
        logger.warning("The VAE of %s overflows in float16, as its config says; it is kept in float32.", name)
    else:
        vae.half()


def assemble(files: ModelFiles, *, clip_skip: int, clip_skip_2: int | None = None) -> StableDiffusionXL:
    """Return the model that was read, from whatever form its files have.

    SDXL leaves out the last layer of both encoders always; `clip_skip` counts what is left out beyond it, and
    `clip_skip_2` the same for the second where that is to differ. The pooled state is that of the last layer, whatever
    clip skip says. Raises DarkroomError for a variant that is not supported.
    """
    require_plain_unet(files, SDXL)
    process = process_of(files.scheduler, name=files.name)
    return StableDiffusionXL(
        spec=SDXL,
        unet=files.parts["unet"],
        vae=files.parts["vae"],
        towers={
            name: files.tower(name, skipped_layers=1 + skip, is_normed=False)
            for name, skip in (
                ("text_encoder", clip_skip),
                ("text_encoder_2", clip_skip if clip_skip_2 is None else clip_skip_2),
            )
        },
        process=process,
        scheduler=files.scheduler,
        lora_naming=naming_of("sdxl", files.parts, prediction=process.prediction_type),
    )
