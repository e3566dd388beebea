"""Reads the BLIP model of ImageReward's published file as transformers' BLIP: image encoder, text encoder and head.

The authors' package cannot be used: it imports torchvision, and pins versions of timm and fairscale that do not work
with current torch. The layers of transformers' BLIP are the same. The file has no config; sizes follow from shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.models.blip.configuration_blip import BlipTextConfig, BlipVisionConfig
from transformers.models.blip.modeling_blip import BlipVisionModel
from transformers.models.blip.modeling_blip_text import BlipTextModel

from modules.formats.lazy_tensors import LazyTensor
from modules.formats.stored_tensors import read_stored
from modules.system.errors import DarkroomError

_VISION, _TEXT, _HEAD = "blip.visual_encoder.", "blip.text_encoder.", "mlp.layers."
# (the authors' name, transformers' name) of the image encoder; the text encoder's names are the same.
_PLAIN = {
    "cls_token": "embeddings.class_embedding",
    "pos_embed": "embeddings.position_embedding",
    "patch_embed.proj.weight": "embeddings.patch_embedding.weight",
    "patch_embed.proj.bias": "embeddings.patch_embedding.bias",
    "norm.weight": "post_layernorm.weight",
    "norm.bias": "post_layernorm.bias",
}
_IN_BLOCK = {
    "attn.qkv": "self_attn.qkv",
    "attn.proj": "self_attn.projection",
    "norm1": "layer_norm1",
    "norm2": "layer_norm2",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}
_HEAD_LAYERS = (0, 2, 4, 6, 7)  # between them was dropout, which is inactive at inference
_HEAD_WIDTH = 64  # of attention


def read_blip(file: Path) -> tuple[Any, Any, nn.Sequential]:
    """Return the image encoder, the text encoder and the head of ImageReward's file, float32.

    Only weights are read, never code. Raises DarkroomError where the file does not contain them.
    """
    stored, _ = read_stored(file)
    try:
        vision = _filled(BlipVisionModel(_vision_config(stored)), dict(_vision_weights(stored)))
        text = _filled(BlipTextModel(_text_config(stored), add_pooling_layer=False), _under(_TEXT, stored))
        head = nn.Sequential(*(_linear(stored, f"{_HEAD}{index}") for index in _HEAD_LAYERS))
    except (KeyError, RuntimeError) as error:
        reason = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error).splitlines()[-1].strip()
        raise DarkroomError(
            f"{file.name} is not ImageReward's model: {reason}.",
            advice="Choose ImageReward.pt of the repository THUDM/ImageReward.",
        ) from error
    return vision, text, head


def _filled(model: Any, weights: Mapping[str, torch.Tensor]) -> Any:
    """Load weights into a model; other tensors are left out. Raises RuntimeError where one is missing or differs."""
    names = model.state_dict().keys()
    model.load_state_dict({name: tensor for name, tensor in weights.items() if name in names})
    return model


def _under(prefix: str, stored: Mapping[str, LazyTensor]) -> dict[str, torch.Tensor]:
    found = {name: lazy for name, lazy in stored.items() if name.startswith(prefix) and "position_ids" not in name}
    return {name.removeprefix(prefix): lazy.make().float() for name, lazy in found.items()}


def _vision_weights(stored: Mapping[str, LazyTensor]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in _under(_VISION, stored).items():
        block, _, rest = name.removeprefix("blocks.").partition(".")
        layer, _, parameter = rest.rpartition(".")
        if name in _PLAIN:
            yield _PLAIN[name], tensor
        elif name.startswith("blocks.") and layer in _IN_BLOCK:
            yield f"encoder.layers.{block}.{_IN_BLOCK[layer]}.{parameter}", tensor


def _linear(stored: Mapping[str, LazyTensor], name: str) -> nn.Linear:
    weight, bias = (stored[f"{name}.{kind}"].make().float() for kind in ("weight", "bias"))
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    layer.weight.data, layer.bias.data = weight, bias
    return layer


def _vision_config(stored: Mapping[str, LazyTensor]) -> BlipVisionConfig:
    width, _, _, patch_px = stored[f"{_VISION}patch_embed.proj.weight"].shape
    num_patches = stored[f"{_VISION}pos_embed"].shape[1] - 1
    return BlipVisionConfig(
        hidden_size=width,
        intermediate_size=stored[f"{_VISION}blocks.0.mlp.fc1.weight"].shape[0],
        num_hidden_layers=_num_layers(stored, f"{_VISION}blocks."),
        num_attention_heads=max(width // _HEAD_WIDTH, 1),
        image_size=round(num_patches**0.5) * patch_px,
        patch_size=patch_px,
        hidden_act="gelu",
        layer_norm_eps=1e-6,  # the authors', not transformers' default
    )


def _text_config(stored: Mapping[str, LazyTensor]) -> BlipTextConfig:
    words, width = stored[f"{_TEXT}embeddings.word_embeddings.weight"].shape
    return BlipTextConfig(
        vocab_size=words,
        hidden_size=width,
        encoder_hidden_size=stored[f"{_TEXT}encoder.layer.0.crossattention.self.key.weight"].shape[1],
        intermediate_size=stored[f"{_TEXT}encoder.layer.0.intermediate.dense.weight"].shape[0],
        num_hidden_layers=_num_layers(stored, f"{_TEXT}encoder.layer."),
        num_attention_heads=max(width // _HEAD_WIDTH, 1),
        max_position_embeddings=stored[f"{_TEXT}embeddings.position_embeddings.weight"].shape[0],
        bos_token_id=words - 1,
        sep_token_id=words - 1,  # only used for writing text
    )


def _num_layers(stored: Mapping[str, LazyTensor], prefix: str) -> int:
    return len({name.removeprefix(prefix).split(".")[0] for name in stored if name.startswith(prefix)})
