"""The contents of an adapter file as the rows of `program_table` distinguish files: groups of layers, and the rest."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from modules.families.kinds.lora_model import targets_of
from modules.families.parts.single_file.models import CONFIGS_KEY
from modules.families.registry import published_model
from modules.formats.adapter_damage import damage_in, damage_of_alpha, mismatch_in
from modules.formats.adapter_forms import Naming
from modules.formats.adapter_names import BUNDLED_EMBEDDING, DOWN, OUTPUT_SUFFIX, dora_axis, layer_and_factor
from modules.formats.adapter_targets import AdapterTarget, comfy_naming_of, fits, kohya_naming_of, naming_of
from modules.formats.adapter_types import (
    ALPHA,
    DORA_SCALE,
    Shape,
    adapter_type,
    all_factors,
    missing_factor,
)
from modules.formats.checkpoint_header import CheckpointHeader, read_scalars
from modules.formats.peft_settings import PEFT_SETTINGS, PeftAlphas
from modules.formats.program_table import MAX_UNPLACED, Answers, Place, Row, answer_about_names, diffusers_loses_alpha

_NINE = 9  # the input channels of an inpainting model: latents, masked image and mask
_ATTENTION = re.compile(r".*\.attn[12]\.to_(q|k|v|out\.0)")
_OUTSIDE = re.compile(
    r"time_embedding\..*|add_embedding\..*|conv_in|conv_out"
    r"|time_text_embed\..*|timestep_embedder\..*|(?:early|single)_stream_modulations\..*|x_embedder|x_embedders\..*"
    r"|context_embedder(?:\..*)?|txt_in\..*|proj_out|norm_out\.linear|final_layer\..*"
    r"|input_proj|llm_cond_proj|t_embedding\..*|adaln_proj"
)
_T5 = re.compile(r"encoder\.(block|final_layer_norm)\b")
_ADDED = re.compile(r"add_embedding\.linear_[12]")
_KOHYA_PREFIXES = ("lora_te_", "lora_unet_", "lora_te1_", "lora_te2_", "lora_te3_")
_COMFY_PREFIX = "diffusion_model."
_SGM: Naming = "kohya, SGM names"
_SGM_MIXED: Naming = "kohya, SGM and diffusers names"


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers of a file that every program answers alike: their naming, place, and changes (rows of `CHANGES`).

    `kohya_naming` is the naming of kohya's trainers for them, `comfy_naming` our naming in ComfyUI's form.
    """

    naming: Naming
    kohya_naming: Naming
    comfy_naming: Naming
    place: Place
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AdapterContents:
    """An adapter file as the rows of the table distinguish files: groups of layers, and its other content (`EXTRAS`).

    `naming_rows` and `extra_rows` are its model's own rows about names and about other content, and `versions` the
    versions of programs that these are about.
    """

    naming_rows: Mapping[str, Row]
    groups: tuple[LayerGroup, ...]
    extras: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    extra_rows: Mapping[str, Answers] = field(default_factory=dict)


@dataclass(slots=True)
class _Layer:
    """A layer of a file: its tensors' names, the shapes of its factors, its place in the model, and its alpha."""

    name: str
    tensors: list[str]
    shapes: dict[str, Shape]
    target: AdapterTarget | None = None
    alpha: float | None = None


def read_contents(header: CheckpointHeader, model: str) -> AdapterContents:
    """Return the contents of an adapter file for a published model, as the rows of the table distinguish them."""
    record = published_model(model)
    layers = _layers(header)
    targets = targets_of(record, header.metadata)
    alphas = read_scalars(header, [f"{layer.name}.{ALPHA}" for layer in layers if ALPHA in layer.shapes])
    for layer in layers:
        layer.target = targets.find(layer.name, layer.shapes) if targets else None
        layer.alpha = alphas.get(f"{layer.name}.{ALPHA}")
    is_inpainting = "inpainting" in header.metadata.get("modelspec.architecture", "")
    odd_alphas = _odd_alphas(header, layers)
    renamed = targets.renamed if targets else frozenset()
    groups = [
        _group(layer, odd_alphas.get(layer.name, ""), is_inpainting=is_inpainting, renamed=renamed) for layer in layers
    ]
    namings = {group.naming for group in groups}
    if {_SGM, "kohya, diffusers names"} <= namings and any(group.kohya_naming == _SGM for group in groups):
        groups = [replace(g, naming=_SGM_MIXED) if g.naming == _SGM else g for g in groups]
    extras = tuple(_extras(header, layers, record.naming_rows, groups))
    return AdapterContents(record.naming_rows, tuple(dict.fromkeys(groups)), extras, record.versions, record.extra_rows)


def _layers(header: CheckpointHeader) -> list[_Layer]:
    layers: dict[str, _Layer] = {}
    for name, shape in header.shapes.items():
        if not name.startswith(BUNDLED_EMBEDDING):
            layer, factor = layer_and_factor(name)
            layer = layer or name.rpartition(".")[0] or name  # any other tensor counts as a layer of its name
            entry = layers.setdefault(layer, _Layer(layer, [], {}))
            entry.tensors.append(name)
            entry.shapes[factor] = shape
    return list(layers.values())


def _group(layer: _Layer, odd_alpha: str, *, is_inpainting: bool, renamed: Container[tuple[str, str]]) -> LayerGroup:
    target = layer.target
    naming: Naming = "unknown" if target is None else naming_of(layer.name, target, layer.tensors)
    kohya: Naming = "unknown" if target is None else kohya_naming_of(target)
    changes = (*_changes(layer, is_peft=naming.startswith("PEFT")), *([odd_alpha] if odd_alpha else []))
    comfy: Naming = "unknown" if target is None else comfy_naming_of(target)
    return LayerGroup(naming, kohya, comfy, _place(layer, is_inpainting=is_inpainting, renamed=renamed), changes)


def _place(layer: _Layer, *, is_inpainting: bool, renamed: Container[tuple[str, str]]) -> Place:
    target = layer.target
    if target is None:
        return ""
    if any((piece.part, piece.path) in renamed for piece in target.pieces or (target,)):
        return "renamed"
    if _T5.match(target.path):
        return "T5"
    if target.is_norm:
        return "norm"
    if target.path == "text_projection":
        return "text projection"
    if target.path == "conv_in" and (is_inpainting or _has_nine_inputs(layer.shapes, target.weight)):
        return "inpainting input"
    if _ADDED.fullmatch(target.path):
        return "added embedding"
    if _OUTSIDE.fullmatch(target.path):
        return "outside"
    return "attention" if _ATTENTION.fullmatch(target.path) else ""


def _has_nine_inputs(shapes: Mapping[str, Shape], weight: Shape) -> bool:
    nine = (weight[0], _NINE, *weight[2:])
    return weight != nine and fits(shapes, nine) and not fits(shapes, weight)


def _changes(layer: _Layer, *, is_peft: bool) -> Iterator[str]:
    """Yield the rows of `CHANGES` that a layer's factors and alpha belong to."""
    shapes, factors = layer.shapes, frozenset(layer.shapes) - {ALPHA}
    if damage_in(shapes) or mismatch_in(shapes) or (layer.alpha is not None and damage_of_alpha(layer.alpha, shapes)):
        yield "damaged"
    if "" in factors or not factors & all_factors():
        yield "unknown"
    elif missing_factor(factors):
        yield "incomplete"
    elif known := adapter_type(factors):
        yield from known.rows(shapes, layer.alpha)
    if scale := shapes.get(DORA_SCALE):
        yield "DoRA of PEFT" if is_peft else f"DoRA of {dora_axis(scale)}"


def _odd_alphas(header: CheckpointHeader, layers: Iterable[_Layer]) -> dict[str, str]:
    """Return the row of `CHANGES` about a layer's alpha, by the names of the LoRA layers that have such an alpha."""
    loras = [x for x in layers if x.target is not None and len(x.shapes.get(DOWN, ())) > 1]
    odd: dict[str, str] = {}
    if PEFT_SETTINGS in header.metadata:
        settings = PeftAlphas(header.metadata)
        for layer in (x for x in loras if ALPHA not in x.shapes and x.target is not None):
            assert layer.target is not None
            rank = layer.shapes[DOWN][0]
            if settings.find(layer.target.part, layer.target.path, rank) not in (None, rank):
                odd[layer.name] = "alpha in the metadata"
    by_part: dict[str, dict[str, _Layer]] = {}
    for layer in loras:
        if layer.target is not None and layer.name.startswith(_KOHYA_PREFIXES):
            by_part.setdefault(layer.target.part, {})[layer.name] = layer
    for part_layers in by_part.values():
        ranks = {name: layer.shapes[DOWN][0] for name, layer in part_layers.items()}
        stored = {name: layer.alpha for name, layer in part_layers.items() if ALPHA in layer.shapes}
        if None in stored.values() and len(set(ranks.values())) > 1:  # alphas mostly follow the ranks
            odd |= {name: "unreadable alpha" for name, layer in part_layers.items() if _is_alpha_lost(layer)}
        for name in unusual_alphas(ranks, stored):
            if name not in stored or _is_alpha_lost(part_layers[name]):
                odd[name] = "unusual alpha"
    return odd


def _is_alpha_lost(layer: _Layer) -> bool:
    if layer.target is None:
        return False
    is_bare = naming_of(layer.name, layer.target, layer.tensors) == "kohya, text without text_model"
    return diffusers_loses_alpha(layer.target.part, layer.target.path, is_bare=is_bare)


def unusual_alphas(ranks: Mapping[str, int], alphas: Mapping[str, float | None]) -> set[str]:
    """Return the LoRA layers of one part whose alpha is not the most common one; a layer without one has its rank.

    `alphas` are the alphas of layers that have one, None for an unreadable one: then none is known to be unusual.
    """
    if not alphas or None in alphas.values():
        return set()
    # Of equally common alphas, the first one by the layers' names: programs read the tensors in that order.
    usual = Counter(alphas[name] for name in sorted(alphas)).most_common(1)[0][0]
    return {name for name, rank in ranks.items() if alphas.get(name, float(rank)) != usual}


def _extras(
    header: CheckpointHeader, layers: Iterable[_Layer], naming_rows: Mapping[str, Row], groups: Iterable[LayerGroup]
) -> Iterator[str]:
    embeddings = [name for name in header.shapes if name.startswith(BUNDLED_EMBEDDING)]
    if embeddings:
        yield "bundled embeddings"
    if any(name.endswith(OUTPUT_SUFFIX) for name in embeddings):
        yield "embeddings at the output"
    unplaced = sum(
        len(layer.tensors)
        for layer, group in zip(layers, groups, strict=True)
        if answer_about_names("Forge", group.naming, naming_rows, group.place).loads == "none"
    )
    if unplaced + len(embeddings) > MAX_UNPLACED:
        yield "many unplaced tensors"
    others = [n for n in header.shapes if "lora" not in n and n not in embeddings and not _is_alpha_of_comfy(n)]
    if others and not all(name.startswith(_KOHYA_PREFIXES) for name in header.shapes):
        yield "alpha in dotted names" if any(n.endswith(f".{ALPHA}") for n in others) else "names without lora"
    if any(_is_alpha_of_comfy(name) for name in header.shapes):
        yield "alpha in ComfyUI's names"
    if CONFIGS_KEY in header.metadata:
        yield "another size"
        if any(layer.target is not None and layer.target.pieces for layer in layers):
            yield "matrices of another size"


def _is_alpha_of_comfy(name: str) -> bool:
    """Return whether it is an alpha in ComfyUI's names: diffusers reads it in models of which it knows these names."""
    return name.startswith(_COMFY_PREFIX) and name.endswith(f".{ALPHA}")
