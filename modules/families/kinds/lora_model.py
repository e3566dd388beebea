"""Which published model an adapter file is for, by the names and the shapes of its layers together.

The metadata decide only between models that neither names nor shapes distinguish, such as SD 2.x for 512 and for 768.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from modules.families.parts.single_file.models import CONFIGS_KEY, configs_of_file
from modules.families.published import PublishedModel
from modules.families.registry import FAMILIES, files_of, published_model, published_models
from modules.formats.adapter_names import DOWN
from modules.formats.adapter_targets import AdapterTargets, Name, fits, name_of
from modules.formats.adapter_types import Shapes

_MODEL_KEYS = ("ss_v2", "ss_base_model_version", "modelspec.architecture")
INVALID_CONFIGS = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError)
"""The exceptions of invalid configs."""
_MAX_LAYERS = 20_000  # no model has as many; the first ones decide
_STRANGE = 0.05  # the share of layers that may be unknown where no shape confirms the names


@dataclass(frozen=True, slots=True)
class LoraModel:
    """The model of an adapter file.

    `models` are all published models it can be for, the likeliest first; empty if no model has its layers. `unplaced`
    are the layers that the first model does not have. `is_published_size` is False if the names match the model and the
    shapes do not. `has_denoiser`: it changes more than text encoders.
    """

    models: tuple[str, ...]
    unplaced: tuple[str, ...]
    is_published_size: bool = True
    has_denoiser: bool = False


@dataclass(frozen=True, slots=True)
class _Match:
    """How many layers of a file a model has by name, how many fit its shapes, and how many have its number of axes."""

    record: PublishedModel
    named: int
    fitting: int
    axes: int
    written: int
    has_denoiser: bool
    unplaced: tuple[str, ...]

    @property
    def score(self) -> tuple[int, ...]:
        """The order of the matches without the metadata: by shapes, or by names if the shapes fit no model."""
        wrong = self.named - self.fitting
        return (1, self.fitting - wrong, self.axes) if self.fitting > wrong else (0, self.named, 0)


def model_of_lora(layers: Mapping[str, Shapes], metadata: Mapping[str, str]) -> LoraModel:
    """Return which model an adapter file is for. `layers` are the shapes of the factors by layer, as in the file."""
    some = {layer: (name_of(layer), shapes) for layer, shapes in list(layers.items())[:_MAX_LAYERS]}
    matches = [m for record in published_models() if (m := _match(record, some, metadata)).named * 2 > len(some)]
    if not matches:
        return LoraModel((), tuple(layers))
    is_published_size = max(m.score for m in matches)[0] == 1
    if not is_published_size:  # decided by nearly all of the names alone, or by the metadata
        few = len(some) * _STRANGE
        matches = _filter_named(matches, metadata) or [m for m in matches if len(m.unplaced) <= few]
        if not matches:
            return LoraModel((), tuple(layers), is_published_size=False)
    best = max(m.score for m in matches)
    open_choice = [m for m in matches if m.score == best]
    chosen = _filter_named(open_choice, metadata) or open_choice
    most = max(m.written for m in chosen)
    chosen = [m for m in chosen if m.written == most]
    first = chosen[0]
    return LoraModel(
        tuple(m.record.name for m in chosen),
        first.unplaced,
        is_published_size=is_published_size,
        has_denoiser=first.has_denoiser,
    )


def _match(record: PublishedModel, layers: Mapping[str, tuple[Name, Shapes]], metadata: Mapping[str, str]) -> _Match:
    named = fitting = axes = 0
    has_denoiser = False
    unplaced = []
    targets = targets_of(record, metadata)
    for layer, (name, shapes) in layers.items():
        target = targets.find_by(name, shapes) if targets else None
        if target is None:
            unplaced.append(layer)
            continue
        named += 1
        fitting += fits(shapes, target.weight)
        axes += len(shapes.get(DOWN, target.weight)) == len(target.weight)
        has_denoiser = has_denoiser or not target.is_text
    written = len(_kohya_names(record).intersection(layers)) if named else 0
    return _Match(record, named, fitting, axes, written, has_denoiser, tuple(unplaced))


def _filter_named(matches: Sequence[_Match], metadata: Mapping[str, str]) -> list[_Match]:
    """Return the matches that the metadata name."""
    exact = [m for m in matches if _is_named(m.record, metadata)]
    if exact:
        return exact
    words = " ".join(f"{name}={metadata.get(name, '')}" for name in _MODEL_KEYS).lower()
    names = [
        name for family in dict.fromkeys(m.record.family for m in matches) for name in _models_by_word(family, words)
    ]
    return next(([m for m in matches if m.record.name == name] for name in names if _has(matches, name)), [])


def _has(matches: Sequence[_Match], name: str) -> bool:
    return any(m.record.name == name for m in matches)


def _models_by_word(family: str, words: str) -> Iterator[str]:
    """Yield the models of a family that the metadata name by a word."""
    yield from (model for word, model in files_of(family).lora_words if word in words)


def _is_named(record: PublishedModel, metadata: Mapping[str, str]) -> bool:
    architectures = {record.architecture, *record.variant_architectures.values()}
    architecture = metadata.get("modelspec.architecture", "").removesuffix("/lora")
    return architecture in architectures or metadata.get("ss_base_model_version") == record.kohya_name


def targets_of(record: PublishedModel, metadata: Mapping[str, str]) -> AdapterTargets | None:
    """Return the layers of a model, of the size in the metadata if it is stated there; None without any configs."""
    if CONFIGS_KEY in metadata:
        with suppress(*INVALID_CONFIGS):
            brought = json.loads(metadata[CONFIGS_KEY])
            denoiser = FAMILIES[record.family].denoiser.name
            published = record.shipped_configs()
            if not published or _structure(brought, denoiser) == _structure(published, denoiser):
                return record.adapter_targets(configs_of_file(record.name, {}, metadata))
    return _shipped_targets(record.name) if record.shipped_configs() else None


def _structure(configs: Mapping[str, Mapping[str, Any]], denoiser: str) -> tuple[Any, ...]:
    """Return the facts that models of one family of any size share: the text encoders, and the kind of the denoiser."""
    config = configs[denoiser]
    encoders = frozenset(part for part in configs if part.startswith("text_encoder"))
    return encoders, config.get("addition_embed_type"), bool(config.get("use_linear_projection"))


@cache
def _shipped_targets(model: str) -> AdapterTargets:
    record = published_model(model)
    return record.adapter_targets(record.shipped_configs())


@cache
def _shipped_names(model: str) -> frozenset[str]:
    targets = _shipped_targets(model)
    return frozenset(t.kohya_name for t in (*targets.all, *targets.matrices))


def _kohya_names(record: PublishedModel) -> frozenset[str]:
    return _shipped_names(record.name) if record.shipped_configs() else frozenset()
