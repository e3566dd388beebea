"""Tiny random CLIP and DINOv2 models, and the published files of rewards at toy size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import CLIPConfig, CLIPModel, Dinov2Config, Dinov2Model

WIDTH = 16
IMAGE_PX = 28


def tiny_clip(*, activation: str = "quick_gelu", seed: int = 0) -> CLIPModel:
    """A CLIP model with the real vocabulary, two layers per tower and an input of 28 by 28 pixels."""
    tower = {"intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 1, "hidden_act": activation}
    ends = {"bos_token_id": 49406, "eos_token_id": 49407, "pad_token_id": 1}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = CLIPModel(
            CLIPConfig(
                text_config={**tower, **ends, "vocab_size": 49408, "hidden_size": 12},
                vision_config={**tower, "hidden_size": 20, "image_size": IMAGE_PX, "patch_size": 14},
                projection_dim=WIDTH,
            )
        )
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() > 1:  # new random weights hardly distinguish images
                    parameter.mul_(4.0)
                elif name.endswith("bias"):
                    parameter.normal_(std=0.1)
    return model.eval()


def write_clip_folder(folder: Path, model: CLIPModel | None = None) -> Path:
    """Write a CLIP model in transformers' layout."""
    (model or tiny_clip()).save_pretrained(folder, safe_serialization=True)
    return folder


def tiny_dino() -> Dinov2Model:
    """A DINOv2 model whose positions are for a smaller image than it gets, as in published ones."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = Dinov2Config(
            hidden_size=8, num_hidden_layers=1, num_attention_heads=1, mlp_ratio=2, image_size=IMAGE_PX, patch_size=14
        )
        return Dinov2Model(config).eval()


def write_dino_folder(folder: Path) -> Path:
    """Write a DINOv2 model in transformers' layout."""
    tiny_dino().save_pretrained(folder, safe_serialization=True)
    return folder


def aesthetic_head(*, width: int = WIDTH, seed: int = 1) -> nn.Sequential:
    """LAION's network as its authors build it, with dropout between its layers."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(width, 1024),
            nn.Dropout(0.2),
            nn.Linear(1024, 128),
            nn.Dropout(0.2),
            nn.Linear(128, 64),
            nn.Dropout(0.1),
            nn.Linear(64, 16),
            nn.Linear(16, 1),
        ).eval()


def write_aesthetic_head(file: Path, head: nn.Sequential) -> Path:
    """Write the head in its published form: pickled, each name under "layers."."""
    torch.save({f"layers.{name}": tensor for name, tensor in head.state_dict().items()}, file)
    return file


def in_open_clip(model: CLIPModel) -> dict[str, torch.Tensor]:
    """The weights of a CLIP model in the layout of OpenCLIP's module."""
    theirs = model.state_dict()
    ours = {"logit_scale": theirs["logit_scale"]}
    for tower, prefix in (("text_model", ""), ("vision_model", "visual.")):
        for index in range(2):
            ours |= _block(theirs, f"{tower}.encoder.layers.{index}", f"{prefix}transformer.resblocks.{index}")
    for name in ("weight", "bias"):
        ours[f"ln_final.{name}"] = theirs[f"text_model.final_layer_norm.{name}"]
        ours[f"visual.ln_pre.{name}"] = theirs[f"vision_model.pre_layrnorm.{name}"]
        ours[f"visual.ln_post.{name}"] = theirs[f"vision_model.post_layernorm.{name}"]
    ours["token_embedding.weight"] = theirs["text_model.embeddings.token_embedding.weight"]
    ours["positional_embedding"] = theirs["text_model.embeddings.position_embedding.weight"]
    ours["visual.class_embedding"] = theirs["vision_model.embeddings.class_embedding"]
    ours["visual.positional_embedding"] = theirs["vision_model.embeddings.position_embedding.weight"]
    ours["visual.conv1.weight"] = theirs["vision_model.embeddings.patch_embedding.weight"]
    ours["text_projection"] = theirs["text_projection.weight"].T.contiguous()
    ours["visual.proj"] = theirs["visual_projection.weight"].T.contiguous()
    return ours


def write_open_clip(file: Path, model: CLIPModel, **more: Any) -> Path:
    """Write a CLIP model in the published form of HPS v2: pickled, under "state_dict"."""
    torch.save({"state_dict": in_open_clip(model), **more}, file)
    return file


def _block(theirs: dict[str, torch.Tensor], path: str, name: str) -> dict[str, torch.Tensor]:
    ours = {}
    for kind in ("weight", "bias"):
        pieces = [theirs[f"{path}.self_attn.{letter}_proj.{kind}"] for letter in "qkv"]
        ours[f"{name}.attn.in_proj_{kind}"] = torch.cat(pieces)
        ours[f"{name}.attn.out_proj.{kind}"] = theirs[f"{path}.self_attn.out_proj.{kind}"]
        ours[f"{name}.ln_1.{kind}"] = theirs[f"{path}.layer_norm1.{kind}"]
        ours[f"{name}.ln_2.{kind}"] = theirs[f"{path}.layer_norm2.{kind}"]
        ours[f"{name}.mlp.c_fc.{kind}"] = theirs[f"{path}.mlp.fc1.{kind}"]
        ours[f"{name}.mlp.c_proj.{kind}"] = theirs[f"{path}.mlp.fc2.{kind}"]
    return ours
