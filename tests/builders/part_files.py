"""Files of single parts of a model, as users of ComfyUI have them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import save_file

State = Mapping[str, torch.Tensor]
ScaleNames = Literal["scale_weight", "weight_scale", "weight_scale of rows"]
_LARGEST = 448.0


def scaled_float8(state: State, names: ScaleNames, *, keeps: tuple[str, ...] = ("norm", "embed")) -> State:
    """The matrices in float8 with a scale for each, or for each of their rows; those with a name in `keeps` as they
    are.
    """
    written: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        if tensor.ndim != 2 or any(word in name for word in keeps) or not name.endswith(".weight"):
            written[name] = tensor.contiguous()
            continue
        largest = tensor.abs().amax(dim=1, keepdim=True) if names.endswith("rows") else tensor.abs().max()
        scale = largest.float() / _LARGEST
        layer = name.removesuffix(".weight")
        written[name] = (tensor / scale).to(torch.float8_e4m3fn)
        written[f"{layer}.{names.partition(' ')[0]}"] = scale
        if names == "scale_weight":
            written[f"{layer}.scale_input"] = torch.ones(())
        else:
            text = json.dumps({"format": "float8_e4m3fn"}).encode()
            written[f"{layer}.comfy_quant"] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    mark = {"scaled_fp8": torch.empty(0, dtype=torch.float8_e4m3fn)} if names == "scale_weight" else {}
    return {**written, **mark}


def dequantized(state: State) -> dict[str, torch.Tensor]:
    """The weights that a file in scaled float8 stands for, in float32."""
    found = {}
    for name, tensor in state.items():
        layer = name.removesuffix(".weight")
        scale = state.get(f"{layer}.scale_weight", state.get(f"{layer}.weight_scale"))
        if tensor.dtype == torch.float8_e4m3fn and scale is not None:
            found[name] = tensor.float() * scale
        elif name.endswith((".weight", ".bias", "_token")):
            found[name] = tensor
    return found


def write_shards(folder: Path, state: State) -> Path:
    """Write weights as two files with an index, which is returned."""
    folder.mkdir()
    names = sorted(state)
    halves = [names[: len(names) // 2], names[len(names) // 2 :]]
    places = {}
    for number, half in enumerate(halves, start=1):
        file = f"model-0000{number}-of-00002.safetensors"
        save_file({n: state[n].contiguous() for n in half}, folder / file)
        places |= dict.fromkeys(half, file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return index


def llama_names(state: State) -> dict[str, torch.Tensor]:
    """The weights of a decoder in the names of llama.cpp, as in its GGUF files."""
    words = {
        "embed_tokens": "token_embd",
        "layers": "blk",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.o_proj": "attn_output",
        **{f"self_attn.{x}_proj": f"attn_{x}" for x in "qkv"},
        **{f"self_attn.{x}_norm": f"attn_{x}_norm" for x in "qk"},
        **{f"mlp.{x}_proj": f"ffn_{x}" for x in ("gate", "up", "down")},
    }

    def renamed(name: str) -> str:
        if name.startswith("norm."):
            return f"output_{name}"
        for ours, theirs in words.items():
            name = name.replace(ours, theirs)
        return name

    return {renamed(name): tensor for name, tensor in state.items()}
