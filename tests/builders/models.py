"""Tiny random models of real classes, written as diffusers folders."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from safetensors.torch import load_file, save_file
from transformers import CLIPTextConfig, CLIPTextModel

SCHEDULER = {
    "_class_name": "DDIMScheduler",
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "num_train_timesteps": 1000,
    "clip_sample": False,
    "set_alpha_to_one": False,
    "steps_offset": 1,
    "prediction_type": "epsilon",
}


def tiny_unet(*, in_channels: int = 4) -> UNet2DConditionModel:
    """A UNet with two levels, cross attention on both, and proj_in as a 1x1 convolution, as in SD 1.x."""
    return UNet2DConditionModel(
        sample_size=8,
        in_channels=in_channels,
        out_channels=4,
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=24,
        attention_head_dim=2,
        norm_num_groups=8,
    )


def tiny_vae(*, latent_channels: int = 4, **options: Any) -> AutoencoderKL:
    """A VAE of factor 8, as SD's."""
    return AutoencoderKL(
        block_out_channels=(8, 8, 16, 16),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        latent_channels=latent_channels,
        layers_per_block=1,
        norm_num_groups=4,
        sample_size=64,
        **options,
    )


def tiny_text_encoder(*, hidden_size: int = 24) -> CLIPTextModel:
    """A CLIP text encoder with the real vocabulary and three layers."""
    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=49408,
            hidden_size=hidden_size,
            intermediate_size=32,
            num_hidden_layers=3,
            num_attention_heads=4,
            max_position_embeddings=77,
            bos_token_id=49406,
            eos_token_id=49407,
            pad_token_id=49407,
        )
    )


def write_sd_folder(folder: Path, *, seed: int = 0) -> Path:
    """Write a tiny SD 1.x as a diffusers folder, without a tokenizer: the bundled one is used."""
    parts = {"unet": tiny_unet, "vae": tiny_vae, "text_encoder": tiny_text_encoder}
    return write_folder(folder, "StableDiffusionPipeline", parts, SCHEDULER, seed=seed)


def write_inpainting_folder(folder: Path, base: Path) -> Path:
    """Write a copy of a tiny model as an inpainting model: its UNet gets five more channels, of random weights."""
    return _write_variant(folder, base, "Inpaint", 5)


def write_depth_folder(folder: Path, base: Path) -> Path:
    """Write a copy of a tiny model as a depth model: its UNet gets one more channel, of random weights."""
    return _write_variant(folder, base, "Depth2Img", 1)


def _write_variant(folder: Path, base: Path, pipeline: str, channels: int) -> Path:
    shutil.copytree(base, folder)
    index = json.loads((folder / "model_index.json").read_text())
    index["_class_name"] = index["_class_name"].replace("Pipeline", f"{pipeline}Pipeline")
    index["_diffusers_version"] = "0.30.0"
    (folder / "model_index.json").write_text(json.dumps(index))
    config = json.loads((folder / "unet" / "config.json").read_text())
    (folder / "unet" / "config.json").write_text(json.dumps({**config, "in_channels": 4 + channels}))
    weights = load_file(folder / "unet" / "diffusion_pytorch_model.safetensors")
    first = weights["conv_in.weight"]
    more = torch.randn(first.shape[0], channels, 3, 3, generator=torch.Generator().manual_seed(5)) * first.std()
    weights["conv_in.weight"] = torch.cat([first, more], dim=1)
    save_file(weights, folder / "unet" / "diffusion_pytorch_model.safetensors", {"format": "pt"})
    return folder


def remove_weights(folder: Path) -> None:
    """Remove the weights of a model's folder: what is read of it then is in configs."""
    for file in folder.rglob("*.safetensors"):
        file.unlink()


def write_folder(
    folder: Path,
    pipeline: str,
    parts: Mapping[str, Callable[[], Any]],
    scheduler: Mapping[str, Any],
    *,
    seed: int,
    **index: Any,
) -> Path:
    """Write parts with new random weights as a diffusers folder; `index` are entries of its index besides the usual."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        modules = {name: make() for name, make in parts.items()}
        for module in modules.values():
            _spread_out(module)
    for name, module in modules.items():
        module.save_pretrained(folder / name, safe_serialization=True)
    (folder / "scheduler").mkdir(parents=True, exist_ok=True)
    (folder / "scheduler" / "scheduler_config.json").write_text(json.dumps(scheduler))
    classes = {n: [type(m).__module__.split(".")[0], type(m).__name__] for n, m in modules.items()}
    tokenizers = {
        n.replace("text_encoder", "tokenizer"): ["transformers", "CLIPTokenizer"] for n in parts if "text_encoder" in n
    }
    sampled_by = ["diffusers", scheduler.get("_class_name", "DDIMScheduler")]
    index = {"_class_name": pipeline, **classes, **tokenizers, "scheduler": sampled_by, **index}
    if pipeline == "StableDiffusionPipeline":
        index |= {"safety_checker": [None, None], "feature_extractor": [None, None]}
    (folder / "model_index.json").write_text(json.dumps(index))
    return folder


def _spread_out(module: torch.nn.Module) -> None:
    """Make text matter: models with new random weights hardly distinguish tokens."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith("weight") and parameter.dim() > 1:
                parameter.mul_(2.0)
