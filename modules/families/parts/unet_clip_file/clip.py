"""The tensors of CLIP text encoders in the layouts of transformers, LDM and OpenCLIP, from their configs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from modules.families.parts.single_file.slots import Slot, fused_slots, limit_layers, module_slots

TEXT_PREFIX = "text_model."
_LAYER = ("layer_norm1", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj")
_REST = ("layer_norm2", "mlp.fc1", "mlp.fc2")
_OPEN_NAMES = {
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "self_attn.out_proj": "attn.out_proj",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
}


def clip_slots(config: Mapping[str, Any], *, projection: bool = False) -> tuple[Slot, ...]:
    """Return the slots of a text encoder whose original layout has transformers' own names."""
    return tuple(Slot(key, key) for key in limit_layers(_keys(config, projection=projection)))


def open_clip_slots(config: Mapping[str, Any], *, projection: bool) -> tuple[Slot, ...]:
    """Return the slots of a text encoder in OpenCLIP's layout.

    `projection`: the encoder is a CLIPTextModelWithProjection, whose projection is transposed in the original.
    """
    return tuple(limit_layers(_open_clip(config, projection=projection)))


def _keys(config: Mapping[str, Any], *, projection: bool) -> Iterator[str]:
    for name in ("token", "position"):
        yield f"{TEXT_PREFIX}embeddings.{name}_embedding.weight"
    for index in range(int(config["num_hidden_layers"])):
        for name in (*_LAYER, *_REST):
            yield from (f"{TEXT_PREFIX}encoder.layers.{index}.{name}.{p}" for p in ("weight", "bias"))
    yield from (f"{TEXT_PREFIX}final_layer_norm.{p}" for p in ("weight", "bias"))
    if projection:
        yield "text_projection.weight"


def _open_clip(config: Mapping[str, Any], *, projection: bool) -> Iterator[Slot]:
    yield Slot(f"{TEXT_PREFIX}embeddings.token_embedding.weight", "token_embedding.weight")
    yield Slot(f"{TEXT_PREFIX}embeddings.position_embedding.weight", "positional_embedding")
    for index in range(int(config["num_hidden_layers"])):
        path, original = f"{TEXT_PREFIX}encoder.layers.{index}", f"transformer.resblocks.{index}"
        for ours, theirs in _OPEN_NAMES.items():
            yield from module_slots(f"{path}.{ours}", f"{original}.{theirs}")
        for parameter in ("weight", "bias"):
            keys = (f"{path}.self_attn.{name}_proj.{parameter}" for name in "qkv")
            yield from fused_slots(keys, f"{original}.attn.in_proj_{parameter}")
    yield from module_slots(f"{TEXT_PREFIX}final_layer_norm", "ln_final")
    if projection:
        yield Slot("text_projection.weight", "text_projection", transposed=True)


def clip_key(key: str) -> str:
    """Return the key of an encoder's tensor in files, where text layers have "text_model."; empty for a buffer."""
    if key.endswith("position_ids"):
        return ""
    return key if key.startswith((TEXT_PREFIX, "text_projection.")) else f"{TEXT_PREFIX}{key}"
