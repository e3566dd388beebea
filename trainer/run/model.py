"""Loading the model of a run: its parts, their devices, and how they save memory; `trainables` adds what is trained."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from modules.adapters.kept_layers import kept_fingerprint
from modules.adapters.protocol import Adapter
from modules.adapters.start import Start
from modules.adapters.training_adapter import TrainingAdapter
from modules.config.quantized_parts import NOTHING_QUANTIZED, QuantizedParts, quantized_parts
from modules.config.schema import Config
from modules.config.sections.model import Model
from modules.config.sections.model import Part as PartSettings
from modules.config.sections.training import filtered_layers
from modules.config.usage import rate_factor_of, trains_on_pixels
from modules.data.cache.store import weights_fingerprint
from modules.families.embeddings import Word
from modules.families.parts.attention_processor import set_attention
from modules.families.parts.circular_padding import pad_circularly
from modules.families.protocol import LoadRequest, ModelFamily, Part, PartMemory, StaysPacked
from modules.families.registry import FAMILIES
from modules.families.settings import FamilySettings
from modules.families.spec import VARIANT_LABELS, PartSpec
from modules.memory.compiled_blocks import Compilation
from modules.memory.placement import Placement
from modules.memory.sharding import ShardedModule
from modules.optim.param_groups import TrainGroup
from modules.system.devices import dtype_of
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from modules.system.secrets import hub_access
from modules.system.secrets_file import load_secrets
from trainer import phases
from trainer.callbacks.image_sampler import SampledModel
from trainer.data.caching import EncoderIdentities
from trainer.run.embeddings import attach_embeddings, embedding_units, fixed_embeddings_identity
from trainer.run.machine import Machine
from trainer.run.placement import placement_of
from trainer.run.quantized import quantize_parts
from trainer.run.sampled_model import (
    SamplingModel,
    load_sampling_model,
    merge_training_adapter,
    place_sampled_model,
)
from trainer.run.trainables import (
    PartOf,
    attach_adapters,
    rate_ratios,
    start_of,
    train_autoencoder,
    train_whole_parts,
    unit_of,
    unread_parts,
)
from trainer.step.precision import Precision


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """The model of a run, its trained parameters, and the placement of its parts. A fine-tune has no adapters."""

    family: ModelFamily
    adapters: Sequence[Adapter]
    groups: Sequence[TrainGroup]
    placement: Placement
    identities: EncoderIdentities
    start: Start | None = None
    """The file that the adapters started from, if they did not start anew."""
    compilation: Compilation | None = None
    """The compiled blocks of the denoiser, if they are compiled."""
    embeddings: Sequence[Word] = ()
    """The embeddings, trained or only used."""
    sharded: Mapping[str, ShardedModule] = field(default_factory=dict)
    """The parts whose weights the processes of the run shard."""
    sampled: SampledModel | None = None
    """The model as samples see it, if it differs from the one in training."""
    measured: SampledModel | None = None
    """The model as the images see it on which rewards are measured."""

    @property
    def trained_placeholders(self) -> frozenset[str]:
        """The placeholders of the trained embeddings: captions that contain one are encoded in each step."""
        return frozenset(w.placeholder for w in self.embeddings if w.trained)

    @property
    def trained_modules(self) -> list[torch.nn.Module]:
        """The modules of the parts that contain trained parameters, each once."""
        names = dict.fromkeys(g.part for g in self.groups if g.part is not None)
        return [self.family.parts[name].module for name in names]

    @property
    def trains_text_encoder(self) -> bool:
        """Whether the run trains a text encoder, so that text embeddings change during the run."""
        trained = {g.part for g in self.groups}
        return any(p.role == "text_encoder" and p.name in trained for p in self.family.spec.parts)


def load_family(
    model: Model,
    part_of: PartOf,
    on_bytes: Callable[[float, float], None] | None = None,
    *,
    without_weights: Collection[str] = (),
    fallback_dtype: str = "float32",
    quantized: QuantizedParts = NOTHING_QUANTIZED,
    before_quantizing: Callable[[ModelFamily], None] = lambda family: None,
    may_be_distilled: bool = False,
) -> ModelFamily:
    """Load a base model through the factory its family names.

    `part_of(name)` returns the settings of a part; `on_bytes(done, total)` is called during a download. The weights of
    the parts in `without_weights` are not read; these parts are on the meta device. `fallback_dtype` is for a VAE
    that overflows in float16; the weights of the `quantized` parts are quantized here, after `before_quantizing` was
    called with the model. `may_be_distilled` is as in `LoadRequest`.
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
            part_files={p.name: file for p in spec.parts if (file := part_of(p.name).file.strip())},
            stays_packed=_stays_packed(quantized),
            without_weights=without_weights,
            left_out=left_out,
            fallback_dtype=dtype_of(fallback_dtype),
            may_be_distilled=may_be_distilled,
            offline=model.offline,
            hub_cache_dir=model.hub_cache_dir,
            hub=hub_access(load_secrets().secrets),
            on_bytes=on_bytes,
        )
    )
    _require_variant(loaded, model.variant, name=model.base_model)
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


def prepare_parts(family: ModelFamily, precision: Precision) -> None:
    """Prepare the parts for a precision, whatever their weight dtype is.

    A VAE runs under autocast only while it is trained; outside of it nothing changes.
    """
    for part in family.parts.values():
        precision.prepare(part.module)


def channels_innermost(family: ModelFamily, parts: Collection[str]) -> None:
    """Store the weights of the convolutions of some parts with their channels innermost, in place.

    A convolution with such a weight also returns its result so, and the operations between convolutions keep it.
    """
    for name in parts:
        family.parts[name].module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # types lack it


def choose_attention(family: ModelFamily, name: str, machine: Machine) -> None:
    """Use an attention implementation in the denoiser. Raises DarkroomError if it does not run on the device."""
    dtype = machine.precision.compute_dtype
    for part in family.parts.values():
        if part.spec.role == "denoiser":
            computes_in = dtype if dtype.itemsize == 2 else next(part.module.parameters()).dtype
            set_attention(part.module, part.spec.model, name, device=machine.train_device, dtype=computes_in)


def load_model(
    config: Config,
    machine: Machine,
    on_bytes: Callable[[float, float], None] | None = None,
    *,
    start_copy: Path | None = None,
    compilation: Compilation | None = None,
    may_stay: Mapping[str, frozenset[str]] | None = None,
    checkpointed_blocks: Mapping[str, frozenset[str]] | None = None,
    channels_last: Collection[str] | None = None,
) -> LoadedModel:
    """Load the model of a config, attach its adapters, and set up the placement and the memory settings of its parts.

    `start_copy` is the run's own copy of the adapter file that it starts from: it is read if it exists, otherwise
    written. A `compilation` compiles the blocks of the denoiser. `may_stay` has the parts that stay on the training
    device in phases that do not need them (`trainer/preflight/room.py`), `checkpointed_blocks` the blocks that
    automatic checkpointing recomputes, by part. `channels_last` are the parts with the channels innermost, by default
    the config's; an automatic choice counts as off. Raises DarkroomError if nothing would be trained.
    """
    quantized = quantized_parts(config)
    merged: list[TrainingAdapter | None] = []
    family = load_family(
        config.model,
        config.part,
        on_bytes,
        without_weights=unread_parts(config),
        fallback_dtype=config.training.fallback_train_dtype,
        quantized=quantized,
        before_quantizing=lambda loaded: merged.append(merge_training_adapter(config, loaded)),
    )
    [training_adapter] = merged
    if training_adapter is not None:
        training_adapter.attach(family.parts[config.family.denoiser.name].module)
    for part in family.parts.values():
        part.module.eval()  # trained parts enter training mode below, and leave it when their training stops
    facts = phases.phase_facts(config)
    start = start_of(config, family, start_copy) if config.training.trains == "adapter" else None
    # Before adapters are attached and parts move: the encoders' identity comes from their unchanged weights.
    identities = _identities(config.model, family, facts, machine.precision, start, quantized)
    prepare_parts(family, machine.precision)
    if channels_last is None:
        with_channels = (p.name for p in family.spec.parts if p.role != "text_encoder")
        channels_last = frozenset(with_channels if config.model.channels_last == "on" else ())
    channels_innermost(family, channels_last)
    sampling_model = sampling_model_of(config, family, quantized, on_bytes, channels_last=channels_last)
    if not trains_on_pixels(config):
        choose_attention(family, config.training.attention, machine)
    copies = None if start_copy is None else start_copy.parent / "embeddings"
    words = attach_embeddings(config, family, copies=copies)
    identities = identities.with_words(fixed_embeddings_identity(words))
    adapters: list[Adapter] = []
    parameters: Mapping[str, dict[str, torch.nn.Parameter]] = {}
    if trains_on_pixels(config):
        parameters = train_autoencoder(family, config)
    elif config.training.trains == "full":
        layers = filtered_layers(config.training, config.family.denoiser.model.layers)
        parameters = train_whole_parts(family, config.part, layers)
    elif config.training.trains == "adapter":
        adapters = attach_adapters(family, config.adapter, config.part, start, run_seed=config.general.seed)
        parameters = {adapter.part: adapter.parameters() for adapter in adapters}
    fixed = {adapter.part: adapter.fixed for adapter in adapters}
    rate, factor = config.training.learning_rate, rate_factor_of(config)
    groups = [
        unit_of(family.parts[name], p, config.part(name), rate, factor, rate_ratios(config, p), fixed.get(name, dict))
        for name, p in parameters.items()
    ] + embedding_units(config, words)
    family.set_memory(
        {
            name: _memory_of(part.spec, config.part(name), adapters, compilation, checkpointed_blocks or {})
            for name, part in family.parts.items()
        },
        train_device=machine.train_device,
        temp_device=machine.temp_device,
    )
    placement = placement_of(family, facts, machine, may_stay)
    sampled, measured = place_sampled_model(family, placement, training_adapter, sampling_model)
    return LoadedModel(
        family,
        adapters,
        groups,
        placement,
        identities,
        start,
        compilation,
        words,
        sampled=sampled,
        measured=measured,
    )


def sampling_model_of(
    config: Config,
    family: ModelFamily,
    quantized: QuantizedParts,
    on_bytes: Callable[[float, float], None] | None = None,
    *,
    channels_last: Collection[str] = (),
) -> SamplingModel | None:
    """Load the sampling model of a config for a loaded base model that has no adapters yet; None without one.

    Raises DarkroomError for a model of another architecture.
    """
    load = partial(_load_denoiser, on_bytes, channels_last=channels_last)
    return load_sampling_model(config, family, quantized, load)


def _load_denoiser(
    on_bytes: Callable[[float, float], None] | None,
    config: Config,
    quantized: QuantizedParts,
    *,
    channels_last: Collection[str],
) -> ModelFamily:
    """Load the denoiser of another model like the base model's; of the other parts only the configs."""
    denoiser = config.family.denoiser.name
    others = [p.name for p in config.family.parts if p.name != denoiser]
    family = load_family(
        config.model, config.part, on_bytes, without_weights=others, quantized=quantized, may_be_distilled=True
    )
    channels_innermost(family, {denoiser} & set(channels_last))
    return family


def encoder_identities(config: Config, machine: Machine) -> EncoderIdentities:
    """Return the identities of a run's encoders as `load_model` does, but read only the weights that they depend on."""
    facts = phases.phase_facts(config)
    roles = {"vae"} if facts.has_latent_cache else set()
    roles |= {"text_encoder"} if facts.has_text_cache else set()
    others = [p.name for p in config.family.parts if p.role not in roles]
    quantized = quantized_parts(config)
    family = load_family(
        config.model,
        config.part,
        without_weights=others,
        fallback_dtype=config.training.fallback_train_dtype,
        quantized=quantized,
    )
    start = start_of(config, family, None) if config.training.trains == "adapter" else None
    identities = _identities(config.model, family, facts, machine.precision, start, quantized)
    words = attach_embeddings(config, family, copies=None) if facts.has_text_cache else []
    return identities.with_words(fixed_embeddings_identity(words))


def _memory_of(
    part: PartSpec,
    settings: PartSettings,
    adapters: Sequence[Adapter],
    compilation: Compilation | None,
    checkpointed_blocks: Mapping[str, frozenset[str]],
) -> PartMemory:
    """Return how a part saves memory. Its adapter is never offloaded: it is small, and it is trained there.

    Automatic checkpointing without a choice of blocks recomputes all of them.
    """
    blocks = checkpointed_blocks.get(part.name)
    adapter_weights = (name for a in adapters if a.part == part.name for name in a.parameters())
    return PartMemory(
        "block" if settings.checkpointing == "auto" and blocks is None else settings.checkpointing,
        settings.offload_activations,
        settings.offload_fraction,
        resident=frozenset(name.removeprefix(f"{part.name}.") for name in adapter_weights),
        compilation=compilation if part.role == "denoiser" else None,
        chosen_blocks=blocks or frozenset(),
    )


def _identities(
    model: Model,
    family: ModelFamily,
    facts: phases.PhaseFacts,
    precision: Precision,
    start: Start | None,
    quantized: QuantizedParts,
) -> EncoderIdentities:
    """Return the identities of the encoders for cache keys; empty for encoders whose cache is not used.

    Layers that the run keeps on an encoder are part of it.
    """

    def fingerprint(part: Part) -> str:
        kept = start.kept_in(part.spec.name) if start is not None else []
        identity = weights_fingerprint(part.module)
        if (chosen := quantized.formats.get(part.spec.name)) is not None:
            identity = f"{identity} in {chosen.format.name}"  # formats with the same weights round inputs or not
        return f"{identity} with {kept_fingerprint(kept)}" if kept else identity

    hashed = {
        name: part
        for name, part in family.parts.items()
        if (part.spec.role == "vae" and facts.has_latent_cache)
        or (part.spec.role == "text_encoder" and facts.has_text_cache)
    }
    with ThreadPoolExecutor() as pool:  # a hash does not hold the interpreter lock, and SDXL's take seconds
        fingerprints = dict(zip(hashed, pool.map(fingerprint, hashed.values()), strict=True))
    images = [fingerprints.get(p.name, "") for p in family.spec.parts if p.role == "vae"]
    texts = [fingerprints.get(p.name, "") for p in family.spec.parts if p.role == "text_encoder"]
    # It rounds otherwise. An automatic choice leaves a VAE whose latents are cached as it is.
    order = ["channels last"] if model.channels_last == "on" else []
    return EncoderIdentities(
        # Images are encoded outside autocast, but in TF32 where the run's precision allows it on this device.
        images="|".join([*images, family.image_identity(), f"tf32 {precision.tf32}", *order]),
        captions="|".join([*texts, family.text_identity(), precision.name]),
    )


def _require_variant(family: ModelFamily, variant: str, *, name: str) -> None:
    """Raise DarkroomError where a model, called `name`, is of another variant than `model.variant`."""
    if family.variant == variant:
        return
    raise DarkroomError(
        f"The model variant is set to {VARIANT_LABELS[variant]}, but {name} is of the variant "
        f"{VARIANT_LABELS[family.variant]}.",
        advice=f"Set the model variant to {VARIANT_LABELS[family.variant]}, or choose another model.",
    )
