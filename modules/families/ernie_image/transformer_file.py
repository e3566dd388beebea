"""How files contain the transformer: with diffusers' names, which ComfyUI's checkpoints have, too.

ComfyUI's have the prefix `model.diffusion_model.` or none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from modules.families.parts.single_file.slots import Slot, limited, module_slots
from modules.families.parts.single_file.transformer_file import transformer_file

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer with its path and the shape of its weight (out, in, kernel)."""

    path: str
    shape: tuple[int, ...]
    bias: bool = True


def transformer_layers(config: Config) -> Iterator[Layer]:
    """Yield the layers of an `ErnieImageTransformer2DModel` of this config that adapters can change.

    Raises ValueError where the config describes more layers than any model has.
    """
    width, inner, text = (int(config[key]) for key in ("hidden_size", "ffn_hidden_size", "text_in_dim"))
    side, channels = int(config["patch_size"]), int(config["in_channels"])
    yield Layer("x_embedder.proj", (width, channels, side, side))
    if text != width:
        yield Layer("text_proj", (width, text), bias=False)
    yield Layer("time_embedding.linear_1", (width, width))
    yield Layer("time_embedding.linear_2", (width, width))
    yield Layer("adaLN_modulation.1", (6 * width, width))
    for block in limited(_blocks(config)):
        for name in ("to_q", "to_k", "to_v", "to_out.0"):
            yield Layer(f"{block}.self_attention.{name}", (width, width), bias=False)
        for name, shape in (("gate_proj", (inner, width)), ("up_proj", (inner, width)), ("linear_fc2", (width, inner))):
            yield Layer(f"{block}.mlp.{name}", shape, bias=False)
    yield Layer("final_norm.linear", (2 * width, width))
    yield Layer("final_linear", (side**2 * int(config["out_channels"]), width))


def _blocks(config: Config) -> Iterator[str]:
    return (f"layers.{index}" for index in range(int(config["num_layers"])))


def _slots(config: Config) -> Iterator[Slot]:
    for layer in transformer_layers(config):
        yield from module_slots(layer.path, layer.path, bias=layer.bias)
    for block in _blocks(config):
        for name in ("adaLN_sa_ln", "adaLN_mlp_ln", "self_attention.norm_q", "self_attention.norm_k"):
            yield from module_slots(f"{block}.{name}", f"{block}.{name}", bias=False)


TRANSFORMER_FILE = transformer_file(
    _slots, first="layers.0.adaLN_sa_ln.", marks=(".layers.0.adaLN_sa_ln.",), diffusers_marks=()
)
