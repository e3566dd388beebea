"""Reads a CLIP model in OpenCLIP's layout, in which HPS v2 is published, as transformers' `CLIPModel`.

OpenCLIP joins query, key and value into one matrix and stores its projections transposed. The file has no config; the
sizes are derived from the shapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers.models.clip.configuration_clip import CLIPConfig
from transformers.models.clip.modeling_clip import CLIPModel

from modules.formats.lazy_tensors import LazyTensor
from modules.formats.stored_tensors import read_stored
from modules.system.errors import DarkroomError

# (OpenCLIP's name, transformers' name); the first match is used.
_PLAIN = {
    "logit_scale": "logit_scale",
    "token_embedding.weight": "text_model.embeddings.token_embedding.weight",
    "positional_embedding": "text_model.embeddings.position_embedding.weight",
    "visual.class_embedding": "vision_model.embeddings.class_embedding",
    "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "visual.conv1.weight": "vision_model.embeddings.patch_embedding.weight",
}
_NORMS = {
    "ln_final": "text_model.final_layer_norm",
    "visual.ln_pre": "vision_model.pre_layrnorm",
    "visual.ln_post": "vision_model.post_layernorm",
}
_TRANSPOSED = {"text_projection": "text_projection.weight", "visual.proj": "visual_projection.weight"}
_IN_BLOCK = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "attn.out_proj": "self_attn.out_proj",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}
_BLOCK = re.compile(r"(visual\.)?transformer\.resblocks\.(\d+)\.(.+?)[._](weight|bias)")
_HEAD_WIDTH = 64
_VISION_HEADS = {1280: 16, 1408: 16, 1664: 16}  # ViT-H, g and bigG: 80, 88 and 104 wide


def read_open_clip(file: Path) -> Any:
    """Return the `CLIPModel` of a file in OpenCLIP's layout, float32. Only weights are read, never code.

    Raises DarkroomError where the file does not contain such a model.
    """
    stored, _ = read_stored(file)
    stored = {name.removeprefix("module."): tensor for name, tensor in stored.items()}
    try:
        config = _config_of(stored)
    except KeyError as error:
        raise DarkroomError(
            f"{file.name} is not a CLIP model in OpenCLIP's layout: {error.args[0]} is missing.",
            advice="Choose HPS_v2_compressed.pt or HPS_v2.1_compressed.pt of the repository xswu/HPSv2.",
        ) from error
    model, loading = CLIPModel.from_pretrained(
        None,
        config=config,
        state_dict=dict(_rename_weights(stored)),
        output_loading_info=True,
        dtype=torch.float32,
        trust_remote_code=False,
    )
    missing = [*loading["missing_keys"], *loading["mismatched_keys"]]
    if missing:  # the library would initialise them at random and continue
        raise DarkroomError(
            f"{len(missing)} weights of the CLIP model are missing from {file.name}; the first is {missing[0]}.",
            advice="The download is damaged; download it again.",
        )
    return model


def _rename_weights(stored: Mapping[str, LazyTensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every weight under transformers' name, float32; unknown tensors are left out."""
    for name, lazy in stored.items():
        module, _, parameter = name.rpartition(".")
        if name in _PLAIN:
            yield _PLAIN[name], lazy.make().float()
        elif name in _TRANSPOSED:
            yield _TRANSPOSED[name], lazy.make().float().T.contiguous()
        elif module in _NORMS:
            yield f"{_NORMS[module]}.{parameter}", lazy.make().float()
        elif match := _BLOCK.fullmatch(name):
            yield from _rename_in_block(match, lazy)


def _rename_in_block(match: re.Match[str], lazy: LazyTensor) -> Iterator[tuple[str, torch.Tensor]]:
    tower = "vision_model" if match[1] else "text_model"
    path, tensor = f"{tower}.encoder.layers.{match[2]}", lazy.make().float()
    if match[3] == "attn.in_proj":
        for letter, piece in zip("qkv", tensor.chunk(3), strict=True):
            yield f"{path}.self_attn.{letter}_proj.{match[4]}", piece
    elif match[3] in _IN_BLOCK:
        yield f"{path}.{_IN_BLOCK[match[3]]}.{match[4]}", tensor


def _config_of(stored: Mapping[str, LazyTensor]) -> CLIPConfig:
    """Return the config derived from the shapes. Raises KeyError with the name of a missing tensor."""
    words, text_width = stored["token_embedding.weight"].shape
    vision_width, _, _, patch_px = stored["visual.conv1.weight"].shape
    num_patches = stored["visual.positional_embedding"].shape[0] - 1
    text = {
        "vocab_size": words,
        "hidden_size": text_width,
        "intermediate_size": stored["transformer.resblocks.0.mlp.c_fc.weight"].shape[0],
        "num_hidden_layers": _num_blocks(stored, "transformer."),
        "num_attention_heads": max(text_width // _HEAD_WIDTH, 1),
        "max_position_embeddings": stored["positional_embedding"].shape[0],
        "hidden_act": "gelu",
        "bos_token_id": words - 2,
        "eos_token_id": words - 1,
    }
    vision = {
        "hidden_size": vision_width,
        "intermediate_size": stored["visual.transformer.resblocks.0.mlp.c_fc.weight"].shape[0],
        "num_hidden_layers": _num_blocks(stored, "visual.transformer."),
        "num_attention_heads": _VISION_HEADS.get(vision_width, max(vision_width // _HEAD_WIDTH, 1)),
        "image_size": round(num_patches**0.5) * patch_px,
        "patch_size": patch_px,
        "hidden_act": "gelu",
    }
    return CLIPConfig(text_config=text, vision_config=vision, projection_dim=stored["text_projection"].shape[1])


def _num_blocks(stored: Mapping[str, LazyTensor], prefix: str) -> int:
    return len({n.split(".resblocks.")[1].split(".")[0] for n in stored if n.startswith(f"{prefix}resblocks.")})
