"""Loads Stable Cascade: the prior and CLIP from a base model, the autoencoder from the places in its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

import torch
from diffusers.pipelines.deprecated.wuerstchen.modeling_paella_vq_model import PaellaVQModel

from modules.diffusion.process import DDPMProcess
from modules.diffusion.schedule import cosine_cumulative_alphas
from modules.families.parts.clip_text import TextTower
from modules.families.parts.clip_tokens import load_clip_tokenizer
from modules.families.parts.files import ModelFiles, require_known_denoiser
from modules.families.parts.lora_names import naming_of
from modules.families.parts.read_model import read_model
from modules.families.parts.single_file.checkpoint import empty_part
from modules.families.protocol import LoadRequest
from modules.families.registry import published
from modules.families.stable_cascade.autoencoder import StableCascadeAutoencoder
from modules.families.stable_cascade.efficient_net import stages_of
from modules.families.stable_cascade.forward import StableCascade
from modules.families.stable_cascade.settings import StableCascadeSettings
from modules.families.stable_cascade.spec import STABLE_CASCADE
from modules.families.stable_cascade.unet import StableCascadeUNet
from modules.formats.diffusers_folder import locate, read_part
from modules.formats.repository import MissingModelError
from modules.formats.safetensors_io import read_safetensors
from modules.system.errors import DarkroomError
from modules.system.paths import from_root

EFFNET_FILE = "effnet_encoder.safetensors"
"""The file of the image encoder in the decoder's folder, as published."""


def load(request: LoadRequest[StableCascadeSettings]) -> StableCascade:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError where a file is missing or the model is not Stable Cascade.
    """
    spec = STABLE_CASCADE
    files = read_model(request, spec.in_base_model)
    require_known_denoiser(files, spec)
    autoencoder = _empty() if "vae" in request.without_weights else _read_autoencoder(request, files)
    scheduler = {**files.scheduler, "timestep_spacing": "trailing"}
    process = DDPMProcess(
        cosine_cumulative_alphas(scaler=float(scheduler.get("scaler", 1.0)), offset=float(scheduler.get("s", 0.008)))
    )
    tokenizer = load_clip_tokenizer(files.tokenizers.get("text_encoder"))
    return StableCascade(
        spec=spec,
        modules={**files.parts, "vae": autoencoder},
        process=process,
        scheduler=scheduler,
        folder=files.folder,
        lora_naming=naming_of(spec.name, files.parts, prediction=process.prediction_type),
        tower=TextTower(files.parts["text_encoder"], tokenizer, skipped_layers=0, is_normed=False, masks_padding=True),
    )


def _empty() -> Any:
    """Return an autoencoder of the published shape without weights, for a run that neither encodes nor decodes."""
    module = empty_part(StableCascadeAutoencoder, published(STABLE_CASCADE.name).shipped_configs()["vae"])
    return module.eval().requires_grad_(False)


def _read_autoencoder(request: LoadRequest[StableCascadeSettings], base: ModelFiles) -> Any:
    """Return the autoencoder with the weights of the decoder's folder and of the encoder's file."""
    own_file, dtype = request.settings.effnet_encoder.strip(), _dtype_of(request)
    folder = _decoder_folder(request, base)
    tensors = _read_effnet(from_root(own_file) if own_file else folder / EFFNET_FILE)
    decoder, vqgan = (
        read_part(folder, "decoder", StableCascadeUNet, dtype),
        read_part(folder, "vqgan", PaellaVQModel, dtype),
    )
    try:
        module = empty_part(
            StableCascadeAutoencoder,
            {
                "decoder": _own(decoder.config),
                "vqgan": _own(vqgan.config),
                "stages": [astuple(stage) for stage in stages_of({n: tuple(t.shape) for n, t in tensors.items()})],
                "width": tensors["mapper.0.weight"].shape[1],
                "latent_channels": tensors["mapper.0.weight"].shape[0],
            },
        )
        module.effnet.load_state_dict({n: _cast(tensor, dtype) for n, tensor in tensors.items()}, assign=True)
    except (KeyError, ValueError, IndexError, RuntimeError) as error:
        raise DarkroomError(
            "The EfficientNet encoder does not have the weights of Stable Cascade's.",
            advice=f"Choose {EFFNET_FILE} of {StableCascadeSettings().decoder}, or leave its field empty.",
        ) from error
    module.stage_b, module.stage_a = decoder, vqgan
    return module.eval().requires_grad_(False)


def _decoder_folder(request: LoadRequest[StableCascadeSettings], base: ModelFiles) -> Path:
    """Return the folder of the decoder: the base model's own, if it is there, or that of the settings."""
    if base.folder is not None and (base.folder / "decoder").is_dir():
        return base.folder
    try:
        return locate(
            request.settings.decoder,
            parts=("decoder", "vqgan"),
            files=(EFFNET_FILE,),
            offline=request.offline,
            cache_dir=request.hub_cache_dir,
            hub=request.hub,
            on_bytes=request.on_bytes,
        )
    except MissingModelError as error:
        raise DarkroomError(
            f"The decoder {request.settings.decoder!r} is not on this machine, and could not be downloaded.",
            advice="Choose its folder or repository as Decoder, in the settings of the model family. It decodes "
            "samples, and contains the encoder of images.",
        ) from error


def _read_effnet(file: Path) -> dict[str, torch.Tensor]:
    if not file.is_file():
        raise DarkroomError(
            f"The EfficientNet encoder, {file}, does not exist. Without it no image can be encoded.",
            advice=f"Put {EFFNET_FILE} into the decoder's folder, or choose it in the settings of the family.",
        )
    return read_safetensors(file)[0]


def _own(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config without the place and the version that diffusers adds to it."""
    return {key: value for key, value in config.items() if not key.startswith("_")}


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor in a dtype; counters stay whole numbers."""
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _dtype_of(request: LoadRequest[StableCascadeSettings]) -> torch.dtype:
    """Return the dtype of the autoencoder: float16 is too small for the decoder's states."""
    wanted = request.dtype_of("vae")
    return request.fallback_dtype if wanted == torch.float16 else wanted
