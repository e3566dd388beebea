"""Loading Stable Diffusion 1.x from a diffusers folder or a Hugging Face repository."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from transformers.models.clip.modeling_clip import CLIPTextModel

from modules.diffusion.process import DDPMProcess
from modules.diffusion.schedule import cumulative_alphas
from modules.errors import DarkroomError
from modules.families.parts.clip_tokens import load_clip_tokenizer
from modules.families.sd.forward import StableDiffusion
from modules.formats.diffusers_folder import OnBytes, locate, read_json, read_part


def load(
    base_model: str,
    *,
    dtypes: Mapping[str, torch.dtype],
    clip_skip: int = 0,
    offline: bool = False,
    hub_cache_dir: str = "",
    on_bytes: OnBytes | None = None,
) -> StableDiffusion:
    """Return the model with every part on the processor, frozen, in its own dtype (float32 where none is named).

    `on_bytes(done, total)` follows a download. Raises DarkroomError with a sentence for whatever is missing or is no
    SD 1.x.
    """
    folder = locate(base_model, offline=offline, cache_dir=hub_cache_dir, on_bytes=on_bytes)
    scheduler = read_json(folder, "scheduler", "scheduler_config.json")
    _require_epsilon(scheduler, base_model)
    kinds = {"unet": UNet2DConditionModel, "text_encoder": CLIPTextModel, "vae": AutoencoderKL}
    parts = {name: read_part(folder, name, kind, dtypes.get(name, torch.float32)) for name, kind in kinds.items()}
    tokenizer_folder = folder / "tokenizer"
    return StableDiffusion(
        **parts,
        tokenizer=load_clip_tokenizer(tokenizer_folder if tokenizer_folder.is_dir() else None),
        process=DDPMProcess(
            cumulative_alphas(
                num_timesteps=int(scheduler.get("num_train_timesteps", 1000)),
                beta_start=float(scheduler.get("beta_start", 0.00085)),
                beta_end=float(scheduler.get("beta_end", 0.012)),
                beta_schedule=scheduler.get("beta_schedule", "scaled_linear"),
            )
        ),
        scheduler=scheduler,
        clip_skip=clip_skip,
    )


def _require_epsilon(scheduler: dict[str, Any], name: str) -> None:
    prediction = scheduler.get("prediction_type", "epsilon")
    if prediction != "epsilon":
        raise DarkroomError(
            f"{name} predicts {prediction!r}; SD 1.x models predict epsilon, and others are not supported yet.",
            advice="Choose an SD 1.x model.",
        )
