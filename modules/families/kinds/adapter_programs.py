"""Which programs load an adapter file: its layers as the rows of `program_table` distinguish them, and the answer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.lora_model import targets_of
from modules.families.kinds.record import Loads
from modules.families.parts.single_file.models import CONFIGS_KEY
from modules.families.published import ALL_PROGRAMS
from modules.families.registry import published
from modules.formats.adapter_damage import damage_in, damage_of_alpha, mismatch_in
from modules.formats.adapter_forms import Naming
from modules.formats.adapter_names import BUNDLED_EMBEDDING, DOWN, OUTPUT_SUFFIX, dora_axis, layer_and_factor
from modules.formats.adapter_targets import AdapterTarget, fits, kohya_naming_of, naming_of
from modules.formats.adapter_types import (
    ALPHA,
    DORA_SCALE,
    Shape,
    adapter_type,
    adapter_types,
    all_factors,
    lacking_factor,
)
from modules.formats.checkpoint_header import CheckpointHeader, read_scalars
from modules.formats.peft_settings import PEFT_SETTINGS, PeftAlphas
from modules.formats.program_table import (
    CHANGES,
    EXTRAS,
    MOST_UNPLACED,
    PROGRAMS,
    Answer,
    Answers,
    Place,
    Row,
    Word,
    answer_about_names,
    diffusers_loses_alpha,
)

_MOST_TENSORS = 20_000  # SDXL's adapters have about 3,000, of one that changes every layer
_NINE = 9  # the input channels of an inpainting model: latents, masked image and mask
_ATTENTION = re.compile(r".*\.attn[12]\.to_(q|k|v|out\.0)")
_OUTSIDE = re.compile(
    r"time_embedding\..*|add_embedding\..*|conv_in|conv_out"
    r"|time_text_embed\..*|x_embedder|context_embedder|proj_out|norm_out\.linear|final_layer\..*"
)
_T5 = re.compile(r"encoder\.(block|final_layer_norm)\b")
_ADDED = re.compile(r"add_embedding\.linear_[12]")
_KOHYA_PREFIXES = ("lora_te_", "lora_unet_", "lora_te1_", "lora_te2_", "lora_te3_")
_LOST_ALPHA = {"unusual alpha", "unreadable alpha"}
_COMFY_PREFIX = "diffusion_model."
_AMOUNTS: tuple[Word, ...] = ("none", "unknown", "part", "all")
_SGM: Naming = "kohya, SGM names"
_SGM_MIXED: Naming = "kohya, SGM and diffusers names"


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers of a file that every program answers alike: their naming, place, and changes (rows of `CHANGES`).

    `kohya_naming` is the naming of kohya's trainers for them.
    """

    naming: Naming
    kohya_naming: Naming
    place: Place
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AdapterContents:
    """An adapter file as the rows of the table distinguish files: groups of layers, and its other content (`EXTRAS`).

    `naming_rows` are its model's own rows about names.
    """

    naming_rows: Mapping[str, Row]
    groups: tuple[LayerGroup, ...]
    extras: tuple[str, ...] = ()


@dataclass(slots=True)
class _Layer:
    """A layer of a file: its tensors' names, the shapes of its factors, its place in the model, and its alpha."""

    name: str
    tensors: list[str]
    shapes: dict[str, Shape]
    target: AdapterTarget | None = None
    alpha: float | None = None


def adapter_loads(header: CheckpointHeader | None, kind: FileKind) -> tuple[Loads, ...]:
    """Return, for each program that supports the adapter's model, how much of a file it loads."""
    if header is None:
        return ()
    programs = published(kind.model).programs if kind.model else ALL_PROGRAMS
    if len(header.shapes) > _MOST_TENSORS:
        return tuple(Loads(program, "unknown", "more tensors than an adapter has") for program in programs)
    if not kind.model:
        return tuple(Loads(program, "unknown", "unknown for this model") for program in programs)
    if not programs:
        return ()
    contents = read_contents(header, kind.model)
    return tuple(answer_of(p, contents) for p, facts in PROGRAMS.items() if p in programs or not facts.is_main)


def answer_of(program: str, contents: AdapterContents) -> Loads:
    """Return how much of a file a program loads, by the rows of the table that apply to it."""
    answer = _add_extras(program, _answer_groups(program, contents), contents.extras)
    notes = answer.why, _advice(program, contents, answer)
    facts = PROGRAMS[program]
    return Loads(program, answer.loads, _join(notes), version=facts.version, is_main=facts.is_main)


def _answer_groups(program: str, contents: AdapterContents) -> Answer:
    answers = [_answer_group(program, group, contents.naming_rows) for group in contents.groups]
    if refused := next((answer for answer in answers if answer.refuses), None):
        return refused
    words = {answer.loads for answer in answers}
    if len(words) < 2 or words == {"all", "unknown"} or words == {"none", "unknown"}:
        word: Word = "unknown" if len(words) != 1 else next(iter(words))
        return Answer(word, _join(answer.why for answer in answers))
    return Answer("part", _join(answer.why for answer in answers if answer.loads != "unknown"))


def _answer_group(program: str, group: LayerGroup, naming_rows: Mapping[str, Row]) -> Answer:
    names = answer_about_names(program, group.naming, naming_rows, group.place)
    rows = _rows()
    changes = (rows[change].get(program, Answer("all")) for change in group.changes)
    return min((names, *changes), key=lambda answer: answer.severity)


@cache
def _rows() -> Mapping[str, Answers]:
    """Return the rows about changes: the rows for any type, and the rows of each type of adapter."""
    return {name: row for rows in (CHANGES, *(t.programs for t in adapter_types())) for name, row in rows.items()}


def _add_extras(program: str, answer: Answer, extras: Iterable[str]) -> Answer:
    more = [EXTRAS[extra][program] for extra in extras if program in EXTRAS[extra]]
    if answer.refuses:
        return answer
    worst = min((answer, *more), key=lambda a: a.severity)
    return worst if worst.refuses else replace(worst, why=_join((answer.why, *(a.why for a in more))))


def _advice(program: str, contents: AdapterContents, answer: Answer) -> str:
    """Return the advice to convert a file of plain LoRA layers into a form of which the program loads more."""
    odd_alphas = {change for group in contents.groups for change in group.changes} - {"LoRA"}
    is_plain = odd_alphas <= {"alpha in the metadata", *_LOST_ALPHA}
    if not is_plain or "bundled embeddings" in contents.extras or any(g.naming == "unknown" for g in contents.groups):
        return ""
    extras = tuple(extra for extra in contents.extras if extra == "another size")
    forms = {"kohya": [_in_kohya_form(group) for group in contents.groups]}
    if odd_alphas & _LOST_ALPHA:
        forms["PEFT"] = [_in_peft_form(group) for group in contents.groups]
    for form, groups in forms.items():
        converted = _answer_groups(program, AdapterContents(contents.naming_rows, tuple(groups)))
        if _AMOUNTS.index(_add_extras(program, converted, extras).loads) > _AMOUNTS.index(answer.loads):
            return f"convert it to the {form} form"
    return ""


def _in_kohya_form(group: LayerGroup) -> LayerGroup:
    changes = tuple(change for change in group.changes if change != "alpha in the metadata")
    return replace(group, naming=group.kohya_naming, changes=changes)


def _in_peft_form(group: LayerGroup) -> LayerGroup:
    return replace(group, naming=_peft_naming(group), changes=("LoRA", "alpha in the metadata"))


def _peft_naming(group: LayerGroup) -> Naming:
    return "PEFT, text" if group.kohya_naming == "kohya, text" else "PEFT, denoiser"


def _join(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(text for text in texts if text))


def read_contents(header: CheckpointHeader, model: str) -> AdapterContents:
    """Return an adapter file for a published model as the rows of the table distinguish files."""
    record = published(model)
    layers = _layers(header)
    targets = targets_of(record, header.metadata)
    alphas = read_scalars(header, [f"{layer.name}.{ALPHA}" for layer in layers if ALPHA in layer.shapes])
    for layer in layers:
        layer.target = targets.find(layer.name, layer.shapes) if targets else None
        layer.alpha = alphas.get(f"{layer.name}.{ALPHA}")
    is_inpainting = "inpainting" in header.metadata.get("modelspec.architecture", "")
    odd_alphas = _odd_alphas(header, layers)
    groups = [_group(layer, odd_alphas.get(layer.name, ""), is_inpainting=is_inpainting) for layer in layers]
    namings = {group.naming for group in groups}
    if {_SGM, "kohya, diffusers names"} <= namings and any(group.kohya_naming == _SGM for group in groups):
        groups = [replace(g, naming=_SGM_MIXED) if g.naming == _SGM else g for g in groups]
    extras = tuple(_extras(header, layers, record.naming_rows, groups))
    return AdapterContents(record.naming_rows, tuple(dict.fromkeys(groups)), extras)


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


def _group(layer: _Layer, odd_alpha: str, *, is_inpainting: bool) -> LayerGroup:
    target = layer.target
    naming: Naming = "unknown" if target is None else naming_of(layer.name, target, layer.tensors)
    kohya: Naming = "unknown" if target is None else kohya_naming_of(target)
    changes = (*_changes(layer, is_peft=naming.startswith("PEFT")), *([odd_alpha] if odd_alpha else []))
    return LayerGroup(naming, kohya, _place(layer, is_inpainting=is_inpainting), changes)


def _place(layer: _Layer, *, is_inpainting: bool) -> Place:
    target = layer.target
    if target is None:
        return ""
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
    elif lacking_factor(factors):
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
    if unplaced + len(embeddings) > MOST_UNPLACED:
        yield "many unplaced tensors"
    others = [n for n in header.shapes if "lora" not in n and n not in embeddings and not _is_alpha_of_comfy(n)]
    if others and not all(name.startswith(_KOHYA_PREFIXES) for name in header.shapes):
        yield "alpha in dotted names" if any(n.endswith(f".{ALPHA}") for n in others) else "names without lora"
    if CONFIGS_KEY in header.metadata:
        yield "another size"


def _is_alpha_of_comfy(name: str) -> bool:
    """Return whether it is an alpha in ComfyUI's names: diffusers reads it in models of which it knows these names."""
    return name.startswith(_COMFY_PREFIX) and name.endswith(f".{ALPHA}")
