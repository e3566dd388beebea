"""The tensors that published files have besides the weights of their CLIP text encoders.

Programs report them as missing otherwise: position ids, OpenCLIP's logit scale, its last block and its projection.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from modules.families.parts.unet_clip_file.clip import TEXT_PREFIX
from modules.formats.lazy_tensors import LazyTensor, lazy

_PENULTIMATE_LAYERS = 23  # in diffusers' config of a text encoder whose 24th block never runs
_LOGIT_SCALE = math.log(100.0)  # the limit in CLIP's training, which trained models reach


def clip_tensors(config: Mapping[str, Any], tensors: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """Return the unused tensors of a text encoder with transformers' names, from its config and its own tensors."""
    positions = torch.arange(int(config["max_position_embeddings"]))[None]
    return {f"{TEXT_PREFIX}embeddings.position_ids": lazy(positions)}


def open_clip_tensors(config: Mapping[str, Any], tensors: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """Return the unused tensors of a text encoder in OpenCLIP's layout, from its config and its own tensors."""
    dtype = tensors["ln_final.weight"].dtype
    unused = {"logit_scale": lazy(torch.tensor(_LOGIT_SCALE, dtype=dtype))}
    if "text_projection" not in tensors:
        width = int(config["hidden_size"])
        unused["text_projection"] = LazyTensor((width, width), dtype, lambda: torch.eye(width, dtype=dtype))
    if int(config["num_hidden_layers"]) == _PENULTIMATE_LAYERS:
        last = f"transformer.resblocks.{_PENULTIMATE_LAYERS - 1}."
        more = f"transformer.resblocks.{_PENULTIMATE_LAYERS}."
        unused |= {n.replace(last, more): t for n, t in tensors.items() if n.startswith(last)}
    return unused
