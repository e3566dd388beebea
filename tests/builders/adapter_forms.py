"""Adapter files of every form, as each program names them, from one set of layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from modules.families.parts.unet_clip_file.unet import unet_layers
from modules.families.registry import published_model
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_names import DOWN, MID, UP
from modules.formats.adapter_types import DORA_SCALE

Tensors = dict[str, torch.Tensor]
TEXT = {"text_encoder": "clip_l", "text_encoder_2": "clip_g"}


def weight_shapes(model: str, configs: Mapping[str, Any]) -> dict[tuple[str, str], tuple[int, ...]]:
    """The shapes of the weights of all layers that adapters can change, by part and path."""
    return {(t.part, t.path): t.weight for t in published_model(model).adapter_targets(configs).all}


def lora_layers(
    model: str,
    configs: Mapping[str, Any],
    *,
    ranks: tuple[int, ...] = (2,),
    alpha: float = 1.5,
    dtype: torch.dtype = torch.float32,
    takes: Callable[[str, str], bool] = lambda part, path: True,
) -> list[AdapterLayer]:
    """A random LoRA on every linear and convolution layer that `takes`, its ranks one after the other."""
    generator = torch.Generator().manual_seed(0)
    layers: list[AdapterLayer] = []
    for (part, path), (rows, *inner) in sorted(weight_shapes(model, configs).items()):
        if inner and takes(part, path):
            rank = ranks[len(layers) % len(ranks)]
            down = torch.randn(rank, *inner, generator=generator) * 0.1
            up = torch.randn(rows, rank, *(1 for _ in inner[1:]), generator=generator) * 0.1
            layers.append(AdapterLayer(part, path, {DOWN: down.to(dtype), UP: up.to(dtype)}, alpha))
    return layers


def with_dora(layers: Iterable[AdapterLayer], *, by_input: bool = False) -> list[AdapterLayer]:
    """The layers with a DoRA scale per output, or per input."""
    found = []
    for layer in layers:
        down, up = layer.factors[DOWN], layer.factors[UP]
        shape = [1, down.shape[1]] if by_input else [up.shape[0], 1]
        scale = torch.linspace(0.5, 1.5, prod(shape)).reshape(*shape, *(1 for _ in down.shape[2:]))
        found.append(AdapterLayer(layer.part, layer.path, {**layer.factors, DORA_SCALE: scale}, layer.alpha))
    return found


def with_tucker(layers: Iterable[AdapterLayer]) -> list[AdapterLayer]:
    """The layers, those of kernels above 1x1 in Tucker's form."""
    generator = torch.Generator().manual_seed(1)
    found = []
    for layer in layers:
        rank, columns, *kernel = layer.factors[DOWN].shape
        factors = dict(layer.factors)
        if kernel and kernel != [1, 1]:
            factors[DOWN] = torch.randn(rank, columns, 1, 1, generator=generator)
            factors[MID] = torch.randn(rank, rank, *kernel, generator=generator)
        found.append(AdapterLayer(layer.part, layer.path, factors, layer.alpha))
    return found


def norm_layers(model: str, configs: Mapping[str, Any]) -> list[AdapterLayer]:
    """LyCORIS' changes of the norms of a UNet."""
    shapes = weight_shapes(model, configs)
    names = ("w_norm", "b_norm")
    return [
        AdapterLayer(part, path, {name: torch.full(shape, 0.5) for name in names})
        for (part, path), shape in sorted(shapes.items())
        if len(shape) == 1 and part == "unet"
    ]


def of_kind(layers: Iterable[AdapterLayer], kind: str) -> list[AdapterLayer]:
    """LoHa, LoKr or OFT layers on the same layers of the model as those of a LoRA."""
    generator = torch.Generator().manual_seed(2)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * 0.1

    found = []
    for layer in layers:
        rows, columns = layer.factors[UP].shape[0], prod(layer.factors[DOWN].shape[1:])
        if kind == "loha":
            factors = {f"hada_w{n}_a": random(rows, 2) for n in (1, 2)} | {
                f"hada_w{n}_b": random(2, columns) for n in (1, 2)
            }
        elif kind == "oft":
            factors = {"oft_blocks": random(rows // 2, 2, 2)}
        else:
            factors = {"lokr_w1": random(1, 1), "lokr_w2_a": random(rows, 2), "lokr_w2_b": random(2, columns)}
        found.append(AdapterLayer(layer.part, layer.path, factors, 1.0))
    return found


@dataclass(frozen=True)
class Form:
    """A form of files: what `inspect` calls it, the name of a layer from part, path and original path, and the names of
    the factors. `alphas`: it has a tensor for each; `holds` is which parts it can name.
    """

    name: str
    layer: Callable[[str, str, str], str]
    factors: Mapping[str, str]
    alphas: bool = True
    holds: tuple[str, ...] = ("unet", "text_encoder", "text_encoder_2")


KOHYA = {DOWN: "lora_down.weight", UP: "lora_up.weight"}
PEFT = {DOWN: "lora_A.weight", UP: "lora_B.weight", DORA_SCALE: "lora_magnitude_vector"}
NAMED_PEFT = {DOWN: "lora_A.default.weight", UP: "lora_B.default.weight"}


def _kohya(prefixes: Mapping[str, str], *, sgm: bool = False) -> Callable[[str, str, str], str]:
    return lambda part, path, original: f"{prefixes[part]}_{(original if sgm else path).replace('.', '_')}"


_PREFIXES = {"unet": "lora_unet", "text_encoder": "lora_te1", "text_encoder_2": "lora_te2"}
_ONE_ENCODER = {"unet": "lora_unet", "text_encoder": "lora_te"}


def _comfy(part: str, path: str, original: str) -> str:
    return f"diffusion_model.{original}" if part == "unet" else f"text_encoders.{TEXT[part]}.transformer.{path}"


def _dotted(part: str, path: str, original: str) -> str:
    return f"{part}.{path}"


def _without_text_model(part: str, path: str, original: str) -> str:
    return f"{part}.{path.removeprefix('text_model.')}"


FORMS = {
    "kohya, diffusers names": Form("kohya", _kohya(_PREFIXES), KOHYA),
    "kohya, SGM names": Form("kohya", _kohya(_PREFIXES, sgm=True), KOHYA),
    "kohya, lora_te": Form("kohya", _kohya(_ONE_ENCODER), KOHYA, holds=("unet", "text_encoder")),
    "LyCORIS": Form("lycoris", _kohya({"unet": "lycoris"}), KOHYA, holds=("unet",)),
    "PEFT": Form("diffusers", _dotted, PEFT, alphas=False),
    "PEFT, no text_model": Form("diffusers", _without_text_model, PEFT, alphas=False),
    "PEFT, denoiser alone": Form("diffusers", lambda part, path, original: path, PEFT, alphas=False, holds=("unet",)),
    "raw PEFT": Form("raw_peft", lambda p, path, o: f"base_model.model.{path}", PEFT, alphas=False, holds=("unet",)),
    "raw PEFT, parts": Form("raw_peft", lambda p, path, o: f"base_model.model.{p}.{path}", NAMED_PEFT, alphas=False),
    "diffusers before PEFT": Form("diffusers", _dotted, {DOWN: "lora.down.weight", UP: "lora.up.weight"}, alphas=False),
    "ComfyUI": Form("comfy", _comfy, {DOWN: "lora_A.weight", UP: "lora_B.weight"}),
    "ComfyUI, kohya's factors": Form("comfy", _comfy, KOHYA),
    "OneTrainer's raw": Form("raw", _dotted, KOHYA),
    "OneTrainer's original": Form("raw", lambda part, path, original: original, KOHYA, holds=("unet",)),
}
"""Every form of LoRA files; the processors of old diffusers are `processor_tensors`."""


def tensors_in(form: Form, layers: Iterable[AdapterLayer], configs: Mapping[str, Any]) -> Tensors:
    """The tensors of a file of a form; every layer must be in a part that the form holds."""
    originals = {layer.path: layer.original for layer in unet_layers(configs["unet"])}
    tensors: Tensors = {}
    for layer in layers:
        original = originals.get(layer.path, layer.path)
        name = form.layer(layer.part, layer.path, original)
        for factor, tensor in layer.factors.items():
            tensors[f"{name}.{form.factors.get(factor, factor)}"] = tensor.clone()
        if form.alphas and layer.alpha is not None:
            tensors[f"{name}.alpha"] = torch.tensor(layer.alpha, dtype=next(iter(layer.factors.values())).dtype)
    return tensors


def processor_tensors(layers: Iterable[AdapterLayer], *, prefix: str) -> Tensors:
    """Attention layers of a UNet as diffusers wrote them before PEFT: `attn1.processor.to_q_lora.down.weight`."""
    tensors: Tensors = {}
    for layer in layers:
        attention, _, target = layer.path.removesuffix(".0").rpartition(".")
        name = f"{prefix}{attention}.processor.{target}_lora"
        tensors |= {f"{name}.down.weight": layer.factors[DOWN], f"{name}.up.weight": layer.factors[UP]}
    return tensors


def change_of(layer: AdapterLayer) -> torch.Tensor:
    """What a LoRA layer adds to its weight, as a matrix."""
    down, up = layer.factors[DOWN].double(), layer.factors[UP].double()
    if MID in layer.factors:
        down = torch.einsum("ijkl,jm->imkl", layer.factors[MID].double(), down.flatten(1))
    return up.flatten(1) @ down.flatten(1) * layer.scale
