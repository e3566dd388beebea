"""The layers of an adapter file, each with the naming of its file and the factors it has. Torch-free.

A naming is how a program spells the names of layers (formats.md 5.1). The same layer of SDXL is
`lora_unet_input_blocks_4_1_proj_in` in kohya's files, `unet.down_blocks.1.attentions.0.proj_in` in PEFT's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from modules.families.parts.single_file.models import configs_of_file
from modules.families.published import NamedLayer
from modules.families.registry import published, published_models
from modules.formats.adapter_names import (
    ALPHA,
    BUNDLED_EMBEDDING,
    DORA_SCALE,
    DOWN,
    GLORA_FACTORS,
    LOHA_FACTORS,
    LOKR_FACTORS,
    MID,
    UP,
    layer_and_factor,
)
from modules.formats.checkpoint_header import CheckpointHeader

Naming = Literal[
    "kohya, SGM names",
    "kohya, diffusers names",
    "kohya, text",
    "kohya, lora_te1_ for lora_te_",
    "kohya, lora_te_ for lora_te1_",
    "kohya, text without text_model",
    "OFT of sd-scripts",
    "SimpleTuner",
    "PEFT, UNet",
    "PEFT, text",
    "PEFT, text without text_model",
    "before PEFT, UNet",
    "before PEFT, text",
    "UNet without unet.",
    "other factors in PEFT names",
    "raw PEFT",
    "ComfyUI, UNet",
    "ComfyUI, text",
    "unknown",
]
Sort = Literal[
    "LoRA",
    "Tucker LoRA",
    "DoRA",
    "LoHa",
    "LoKr",
    "OFT",
    "BOFT",
    "diagonal OFT",
    "OFTv2",
    "GLoRA",
    "norm",
    "difference",
    "unknown",
]
_TEXT = "text_model."
# Prefixes of text layers as they are in the files of another family's models.
_OTHER_PREFIXES: Mapping[str, tuple[str, Naming]] = {
    "lora_te": ("lora_te1", "kohya, lora_te1_ for lora_te_"),
    "lora_te1": ("lora_te", "kohya, lora_te_ for lora_te1_"),
}
_CLIPS = ("clip_l", "clip_g", "clip_h")  # ComfyUI's names of the text encoders
_PEFT: frozenset[Naming] = frozenset({"PEFT, UNet", "PEFT, text", "PEFT, text without text_model"})
_PEFT_ENDS = (".lora_A.weight", ".lora_B.weight", ".lora_magnitude_vector", f".{ALPHA}")
_LINEAR_LAYER = (".lora_linear_layer.down.weight", ".lora_linear_layer.up.weight")
_OLD_ENDS = (
    *("_lora.down.weight", "_lora.up.weight", ".lora.down.weight", ".lora.up.weight"),
    *(".lora_A.default.weight", ".lora_B.default.weight"),
    *_LINEAR_LAYER,
)


@dataclass(frozen=True, slots=True)
class FileLayer:
    """A layer of an adapter file: its naming, the layer of the model it changes, and the sort of its change.

    `tensors` are the names of its tensors in the file. `path` is diffusers' and empty for a layer that the model does
    not have. `kohya_naming` is that of kohya's trainers for this layer of this model.
    """

    name: str
    naming: Naming
    kohya_naming: Naming
    path: str
    is_norm: bool
    sort: Sort
    tensors: tuple[str, ...]

    @property
    def is_usual(self) -> bool:
        """Whether the layer is named as kohya's trainers name it for this model."""
        return self.naming == self.kohya_naming


@dataclass(frozen=True, slots=True)
class AdapterContents:
    """An adapter file: the model it fits, its layers, and the tensors of its bundled embeddings."""

    model: str
    layers: tuple[FileLayer, ...]
    embeddings: tuple[str, ...]

    @property
    def is_mixed(self) -> bool:
        """Whether it has both namings of the UNet in kohya's files."""
        return {"kohya, SGM names", "kohya, diffusers names"} <= {layer.naming for layer in self.layers}

    def tensors(self) -> Iterator[str]:
        """Yield the names of all tensors."""
        for layer in self.layers:
            yield from layer.tensors
        yield from self.embeddings


@dataclass(slots=True)
class _Found:
    factors: set[str] = field(default_factory=set)
    tensors: list[str] = field(default_factory=list)
    num_axes: int = 0


def read_contents(header: CheckpointHeader, model: str) -> AdapterContents:
    """Return the contents of an adapter file for a published model; for "" that of the first model that has all of its
    layers.
    """
    found = _by_layer(header)
    models = [model] if model else [m.name for m in published_models()]
    for name in models:
        names = _names(name, header.metadata)
        layers = tuple(_layer(layer, tensors, names) for layer, tensors in found.items())
        if model or (layers and all(x.path for x in layers)):
            embeddings = tuple(n for n in header.shapes if n.startswith(BUNDLED_EMBEDDING))
            return AdapterContents(name, layers, embeddings)
    return AdapterContents("", tuple(_layer(layer, tensors, _Names()) for layer, tensors in found.items()), ())


def _by_layer(header: CheckpointHeader) -> Mapping[str, _Found]:
    found: dict[str, _Found] = defaultdict(_Found)
    for name, shape in header.shapes.items():
        if name.startswith(BUNDLED_EMBEDDING):
            continue
        layer, factor = layer_and_factor(name)
        if not layer:
            layer, factor = name.rpartition(".")[0] or name, "unknown"
        entry = found[layer]
        entry.factors.add(factor)
        entry.tensors.append(name)
        if factor == "oft_blocks":
            entry.num_axes = len(shape)
    return found


def _layer(name: str, found: _Found, names: _Names) -> FileLayer:
    tensors, sort = tuple(found.tensors), _sort(frozenset(found.factors), found.num_axes)
    if name not in names.places:
        return FileLayer(name, "unknown", "unknown", "", False, sort, tensors)
    naming, layer = names.places[name]
    kohya = names.unet if layer.original else "kohya, text"
    return FileLayer(name, _with_factors(naming, tensors), kohya, layer.path, layer.is_norm, sort, tensors)


def _with_factors(naming: Naming, tensors: tuple[str, ...]) -> Naming:
    """Return the naming of a dotted layer by how its factors are spelled, which programs tell apart, too."""
    if naming not in _PEFT or all(t.endswith(_PEFT_ENDS) for t in tensors):
        return naming
    if naming == "PEFT, UNet" and all(t.endswith(_OLD_ENDS) for t in tensors):
        return "before PEFT, UNet"
    if naming == "PEFT, text" and all(t.endswith(_LINEAR_LAYER) for t in tensors):
        return "before PEFT, text"
    return "other factors in PEFT names"


@cache
def _sort(factors: frozenset[str], num_axes: int) -> Sort:
    factors -= {ALPHA}
    if "unknown" in factors or not factors:
        return "unknown"
    if factors & {"w_norm", "b_norm"}:
        return "norm"
    if factors & {"diff", "diff_b", "set_weight"}:
        return "difference"
    if "oft_blocks" in factors:
        return "BOFT" if num_axes == 4 else "OFT"
    if factors & {"oft_diag", "oft_R.weight"}:
        return "diagonal OFT" if "oft_diag" in factors else "OFTv2"
    if factors & GLORA_FACTORS:
        return "GLoRA"
    if factors & LOHA_FACTORS - {DORA_SCALE}:
        return "LoHa"
    if factors & LOKR_FACTORS - {DORA_SCALE}:
        return "LoKr"
    if factors & {DOWN, UP} and MID in factors:
        return "Tucker LoRA"
    return "DoRA" if DORA_SCALE in factors else "LoRA"


@dataclass(frozen=True, slots=True)
class _Names:
    """Every name of every layer of a model, and the naming of its UNet in kohya's files."""

    places: Mapping[str, tuple[Naming, NamedLayer]] = field(default_factory=dict)
    unet: Naming = "unknown"


def _names(model: str, metadata: Mapping[str, str]) -> _Names:
    """Return the names of a model's layers, from the configs in the file's metadata where it has them."""
    record = published(model)
    for configs in (configs_of_file(model, {}, metadata), record.shipped_configs()):
        with suppress(KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError):  # invalid metadata
            places = _all_names(record.lora.layers(configs))
            written = (places[name] for name in record.lora.written(configs) if name in places)
            return _Names(places, next((naming for naming, layer in written if layer.original), "unknown"))
    return _Names()


def _all_names(layers: tuple[NamedLayer, ...]) -> Mapping[str, tuple[Naming, NamedLayer]]:
    names: dict[str, tuple[Naming, NamedLayer]] = {}
    for layer in layers:
        for name, naming in _unet_names(layer) if layer.original else _text_names(layer):
            names.setdefault(name, (naming, layer))
    return names


def _unet_names(layer: NamedLayer) -> Iterator[tuple[str, Naming]]:
    path, original = layer.path.replace(".", "_"), layer.original.replace(".", "_")
    yield f"{layer.prefix}_{path}", "kohya, diffusers names"
    yield f"{layer.prefix}_{original}", "kohya, SGM names"
    yield f"lycoris_{path}", "SimpleTuner"
    yield f"oft_unet_{path}", "OFT of sd-scripts"
    yield f"oft_unet_{original}", "OFT of sd-scripts"
    yield f"{layer.part}.{layer.path}", "PEFT, UNet"
    yield layer.path, "UNet without unet."
    yield f"base_model.model.{layer.path}", "raw PEFT"
    yield f"diffusion_model.{layer.original}", "ComfyUI, UNet"


def _text_names(layer: NamedLayer) -> Iterator[tuple[str, Naming]]:
    path, bare = layer.path.replace(".", "_"), layer.path.removeprefix(_TEXT)
    yield f"{layer.prefix}_{path}", "kohya, text"
    if layer.prefix in _OTHER_PREFIXES:
        other, naming = _OTHER_PREFIXES[layer.prefix]
        yield f"{other}_{path}", naming
    yield f"{layer.prefix}_{bare.replace('.', '_')}", "kohya, text without text_model"
    yield f"{layer.part}.{layer.path}", "PEFT, text"
    yield f"{layer.part}.{bare}", "PEFT, text without text_model"
    yield from ((f"base_model.model.{name}", "raw PEFT") for name in (layer.path, bare))
    yield from ((f"text_encoders.{clip}.transformer.{layer.path}", "ComfyUI, text") for clip in _CLIPS)
