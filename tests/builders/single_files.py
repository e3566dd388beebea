"""Tiny models of every kind of single file: real classes, real layouts, small sizes, random weights."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from transformers import CLIPTextModel, CLIPTextModelWithProjection

from modules.families.model_class import ModelClass
from modules.families.parts.single_file.models import shipped_configs
from modules.families.parts.single_file.write import CheckpointTraits, write_checkpoint
from modules.families.registry import FAMILIES, published_model
from modules.formats.lazy_tensors import lazy_state

CLASSES: Mapping[str, Any] = {
    "unet": UNet2DConditionModel,
    "vae": AutoencoderKL,
    "text_encoder": CLIPTextModel,
    "text_encoder_2": CLIPTextModelWithProjection,
}
NOW = datetime(2026, 1, 2, 3, 4, 5)
VOCABULARY = 60


def tiny_configs(model: str, *, in_channels: int = 4) -> dict[str, dict[str, Any]]:
    """The bundled configs with small sizes and the same structure."""
    configs = shipped_configs(model)
    unet = configs["unet"]
    levels = len(unet["block_out_channels"])
    unet |= {"block_out_channels": [8, 16, 16, 32][:levels], "norm_num_groups": 4, "in_channels": in_channels}
    unet |= {"layers_per_block": 1 if model == "sd1" else 2, "sample_size": 8}
    unet["attention_head_dim"] = 2 if model == "sd1" else [1, 2, 2, 4][:levels]
    if "transformer_layers_per_block" in unet:
        per_level = [1, 1, 2, 1][:levels]
        is_list = isinstance(unet["transformer_layers_per_block"], list)
        unet["transformer_layers_per_block"] = per_level if is_list else 2
        unet["addition_time_embed_dim"] = 2
    configs["vae"] |= {"block_out_channels": [4, 8, 8, 8], "norm_num_groups": 2, "layers_per_block": 1}
    configs["vae"]["sample_size"] = 64
    width = 0
    for name, hidden in (("text_encoder", 8), ("text_encoder_2", 12)):
        if name in configs:
            width += hidden
            configs[name] |= {"hidden_size": hidden, "intermediate_size": 16, "num_attention_heads": 2}
            configs[name] |= {"num_hidden_layers": 3, "projection_dim": hidden, "vocab_size": VOCABULARY}
            configs[name] |= {"bos_token_id": 58, "eos_token_id": 59, "pad_token_id": 0}
    unet["cross_attention_dim"] = width
    if "projection_class_embeddings_input_dim" in unet:
        unet["projection_class_embeddings_input_dim"] = 12 + 2 * 6
    return configs


def part_names(configs: Mapping[str, Any]) -> list[str]:
    """The parts that have weights."""
    return [n for n in configs if n != "scheduler"]


def model_class(model: str, part: str) -> ModelClass:
    """The record of the class of a published model's part."""
    return next(p.model for p in FAMILIES[published_model(model).family].parts if p.name == part)


def build_parts(configs: Mapping[str, Any], *, seed: int = 0) -> dict[str, Any]:
    """Modules of the configs with random weights."""
    parts = {}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for name in part_names(configs):
            kind, config = CLASSES[name], {k: v for k, v in configs[name].items() if k != "_class_name"}
            module = kind.from_config(config) if name in ("unet", "vae") else kind(kind.config_class(**config))
            with torch.no_grad():
                for parameter in module.parameters():  # norms and biases too, so that a swap of two is detected
                    parameter.normal_()
            parts[name] = module.eval()
    return parts


def states_of(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The parts' tensors."""
    return {name: lazy_state(module.state_dict()) for name, module in parts.items()}


def write_tiny(path: Path, model: str, *, dtype: torch.dtype | None = None, **traits: Any) -> dict[str, Any]:
    """Write a tiny model as a single file and return its parts."""
    configs = tiny_configs(
        model, in_channels={"inpainting": 9, "instruct": 8, "depth": 5}.get(traits.get("variant", ""), 4)
    )
    parts = build_parts(configs)
    checkpoint_traits = CheckpointTraits(model, **traits)
    write_checkpoint(path, states_of(parts), configs, checkpoint_traits, dtype=dtype, title=path.stem, created=NOW)
    return parts


def depth_estimator() -> dict[str, torch.Tensor]:
    """A few tensors of the network that the single files of depth models have beside the model."""
    generator = torch.Generator().manual_seed(3)
    names = ("model.pretrained.model.cls_token", "model.scratch.layer1_rn.weight")
    return {f"depth_model.{name}": torch.randn(2, 3, generator=generator) for name in names}
