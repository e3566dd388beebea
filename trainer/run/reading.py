"""Reading a base model, or some of its parts, with quantized weights and a merged training adapter.

Large text encoders leave the memory before the denoiser is read, so that both are never in it together. A run whose
text is cached needs them for its captions and for the prompts of its samples alone. They are encoded first; whatever
needs an encoder later, such as a changed prompt, has it read again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import nn

from modules.adapters.start import Start
from modules.adapters.training_adapter import TrainingAdapter
from modules.config.quantized_parts import NOTHING_QUANTIZED, QuantizedParts
from modules.config.schema import Config
from modules.config.sections.model import Model
from modules.config.usage import unread_parts
from modules.data.cache.store import CacheStore, EntryStore
from modules.families.parts.circular_padding import pad_circularly
from modules.families.parts.single_file.packed_weights import PackedWeights, packed_weights
from modules.families.protocol import NONE_LATER, LayersReadLater, LoadRequest, ModelFamily, Part, StaysPacked
from modules.families.registry import FAMILIES
from modules.families.separate_parts import file_of_part
from modules.families.settings import FamilySettings
from modules.families.spec import VARIANT_LABELS, FamilySpec
from modules.quantization.linear import quantize_layers
from modules.quantization.registry import ChosenFormat
from modules.system.devices import dtype_of
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from modules.system.paths import from_root
from modules.system.secrets import hub_access
from modules.system.secrets_file import load_secrets
from trainer import phases
from trainer.run.sampled_model import merge_training_adapter
from trainer.run.trainables import PartOf


def quantize_parts(
    family: ModelFamily,
    formats: Mapping[str, ChosenFormat],
    *,
    without: Collection[str] = (),
    cache_dir: str = "",
    files: Mapping[str, str] | None = None,
) -> None:
    """Quantize the parts that have a format, layer by layer and in place, except those in `without`.

    The same weights are always quantized to the same bytes, so a resumed run has the model of the interrupted one.
    `cache_dir` keeps quantized weights and their low-rank products, so that they are computed once; `files` are those
    that parts are read from, whose packed weights are used as they are. Raises DarkroomError where a part has no layer
    to quantize.
    """
    for name, chosen in formats.items():
        if name in without:
            continue
        part = family.parts[name]
        packed = _packed_in_file(family.spec, part, chosen, (files or {}).get(name, ""))
        is_cached = bool(cache_dir) and chosen.residual is not None
        cache: EntryStore | None = CacheStore(from_root(cache_dir)) if is_cached else None
        layers = quantize_layers(part.module, chosen, cache=cache, packed=packed)
        if not layers:
            raise DarkroomError(
                f"{part.spec.label} is set to {chosen.format.label}, but none of its layers is quantized.",
                advice="Choose other quantized layers, or another weight dtype.",
            )


def _packed_in_file(spec: FamilySpec, part: Part, chosen: ChosenFormat, file: str) -> PackedWeights:
    path = from_root(file)
    weights = packed_weights(spec, part.spec, path, part.module, chosen) if file and not path.is_dir() else {}
    if chosen.format.is_stored and not weights:
        raise DarkroomError(
            f"{part.spec.label} is set to {chosen.format.label}, but {path.name or 'it'} has no quantized weights.",
            advice="Choose a GGUF file as the file of the part, or another weight dtype.",
        )
    return weights


def load_family(
    model: Model,
    part_of: PartOf,
    on_bytes: Callable[[float, float], None] | None = None,
    *,
    without_weights: Collection[str] = (),
    fallback_dtype: str = "float32",
    quantized: QuantizedParts = NOTHING_QUANTIZED,
    before_quantizing: Callable[[ModelFamily], None] | None = None,
    may_be_distilled: bool = False,
) -> ModelFamily:
    """Load a base model through the factory its family names.

    `part_of(name)` returns the settings of a part; `on_bytes(done, total)` is called during a download. The weights of
    the parts in `without_weights` are not read; these parts are on the meta device. `fallback_dtype` is for a VAE
    that overflows in float16; the weights of the `quantized` parts are quantized here, after `before_quantizing` was
    called with the model, whose weights are all read by then. `may_be_distilled` is as in `LoadRequest`.
    """
    family = FAMILIES[model.family.name]
    left_out = {p.name for p in family.parts if p.optional and not part_of(p.name).include}
    spec = family.without(left_out)
    load: Callable[[LoadRequest[FamilySettings]], ModelFamily] = load_factory(spec.factory)
    loaded = load(
        LoadRequest(
            model.base_model,
            model.family,
            dtypes={p.name: dtype_of(quantized.plain_dtype(p.name, part_of(p.name).dtype)) for p in spec.parts},
            part_files={
                p.name: file for p in spec.parts if (file := file_of_part(p, part_of(p.name).file, model.base_model))
            },
            stays_packed=_stays_packed(quantized),
            read_later=_read_later(quantized) if before_quantizing is None else NONE_LATER,
            without_weights=without_weights,
            left_out=left_out,
            fallback_dtype=dtype_of(fallback_dtype),
            may_be_distilled=may_be_distilled,
            variant=model.variant,
            offline=model.offline,
            hub_cache_dir=model.hub_cache_dir,
            hub=hub_access(load_secrets().secrets),
            on_bytes=on_bytes,
        )
    )
    _require_variant(loaded, model.variant, name=model.base_model)
    if before_quantizing is not None:
        before_quantizing(loaded)
    quantize_parts(
        loaded,
        quantized.formats,
        without=without_weights,
        cache_dir=quantized.cache_dir,
        files=quantized.files,
    )
    if model.circular_padding:
        for part in loaded.parts.values():
            if part.spec.role != "text_encoder":
                pad_circularly(part.module)
    return loaded


def _stays_packed(quantized: QuantizedParts) -> StaysPacked:
    """Return which layers keep the weights of their file as they are stored: in blocks, or in float8 with scales."""

    def stays(part: str, layer: str, packed_in: Literal["gguf", "float8"]) -> bool:
        chosen = quantized.formats.get(part)
        if chosen is None or not chosen.takes(layer):
            return False
        return chosen.format.is_stored if packed_in == "gguf" else chosen.keeps_scaled_float8

    return stays


@dataclass(eq=False)
class PartReader:
    """Reads the parts of a run's base model; `training_adapter` is merged into the denoiser as that is read."""

    config: Config
    quantized: QuantizedParts
    on_bytes: Callable[[float, float], None] | None
    training_adapter: TrainingAdapter | None = None

    def parts(self, *names: str) -> ModelFamily:
        """Return the model with the weights of some parts, except of those that a run does not need at all."""
        unread = {*unread_parts(self.config), *(p.name for p in self.config.family.parts if p.name not in names)}
        return self._load(self.config.model, unread, merges=self.config.family.denoiser.name not in unread)

    def again(self, name: str) -> torch.nn.Module:
        """Return a part as it was read before; a download is not looked for again."""
        others = {p.name for p in self.config.family.parts if p.name != name}
        return self._load(self.config.model.model_copy(update={"offline": True}), others).parts[name].module

    def _load(self, model: Model, without: Collection[str], *, merges: bool = False) -> ModelFamily:
        return load_family(
            model,
            self.config.part,
            self.on_bytes,
            without_weights=without,
            fallback_dtype=self.config.training.fallback_train_dtype,
            quantized=self.quantized,
            before_quantizing=self._merge if merges and self.config.model.training_adapter.strip() else None,
        )

    def _merge(self, family: ModelFamily) -> None:
        self.training_adapter = merge_training_adapter(self.config, family)


def _read_later(quantized: QuantizedParts) -> LayersReadLater:
    """Return which layers have their weights read one by one, as they are quantized."""
    return {part: chosen.takes for part, chosen in quantized.formats.items() if not chosen.format.is_stored}


def _require_variant(family: ModelFamily, variant: str, *, name: str) -> None:
    """Raise DarkroomError where a model, called `name`, is of another variant than `model.variant`."""
    if family.variant == variant:
        return
    raise DarkroomError(
        f"The model variant is set to {VARIANT_LABELS[variant]}, but {name} is of the variant "
        f"{VARIANT_LABELS[family.variant]}.",
        advice=f"Set the model variant to {VARIANT_LABELS[family.variant]}, or choose another model.",
    )


def has_encoders_to_drop(config: Config, may_stay: Mapping[str, frozenset[str]]) -> bool:
    """Return whether a run has large text encoders that leave the memory; `may_stay` are the parts that do not."""
    return bool(phases.encoders_to_drop(config, may_stay))


def readers_of_encoders(
    config: Config,
    start: Start | None,
    read: Callable[[str], nn.Module],
    may_stay: Mapping[str, frozenset[str]],
) -> dict[str, Callable[[], nn.Module]]:
    """Return functions that read each text encoder that leaves the memory again.

    One that keeps layers of the file that the run starts from stays: they are not in the model's files.
    """
    names = phases.encoders_to_drop(config, may_stay)
    return {name: partial(read, name) for name in names if start is None or not start.kept_in(name)}
