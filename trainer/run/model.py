"""Loading the model of a run: its parts, their devices, and how they save memory; `trainables` adds what is trained."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from modules.adapters.protocol import Adapter, CastingAdapter
from modules.adapters.start import Start
from modules.config.quantized_parts import QuantizedParts, quantized_parts
from modules.config.schema import Config
from modules.config.sections.model import Part as PartSettings
from modules.config.sections.training import filtered_layers
from modules.config.usage import needs_autocast, rate_factor_of, trained_parts, trains_on_pixels
from modules.families.embeddings import Embedding
from modules.families.parts.attention_processor import set_attention
from modules.families.parts.fused_norms import fuse_norms
from modules.families.protocol import ModelFamily, PartMemory
from modules.families.spec import DENOISERS, PartSpec
from modules.memory.compiled_blocks import Compilation
from modules.memory.placement import Placement
from modules.memory.sharding import ShardedModule
from modules.optim.param_groups import TrainGroup
from modules.system.devices import dtype_of
from trainer import phases
from trainer.callbacks.image_sampler import EncodedPrompts, SampledModel
from trainer.data.caching import EncoderIdentities
from trainer.run.embeddings import attach_embeddings, embedding_units, fixed_embeddings_identity
from trainer.run.identities import identities_of
from trainer.run.machine import Machine
from trainer.run.placement import placement_of
from trainer.run.reading import PartReader, has_encoders_to_drop, load_family, readers_of_encoders
from trainer.run.sampled_model import (
    SamplingModel,
    load_sampling_model,
    place_sampled_model,
)
from trainer.run.trainables import (
    attach_adapters,
    rate_ratios,
    start_of,
    train_autoencoder,
    train_whole_parts,
    unit_of,
)
from trainer.step.precision import Precision
from trainer.wording import embedding_label


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
    embeddings: Sequence[Embedding] = ()
    """The embeddings, trained or only used."""
    sharded: Mapping[str, ShardedModule] = field(default_factory=dict)
    """The parts whose weights the processes of the run shard."""
    sampled: SampledModel | None = None
    """The model that samples are generated with, if it differs from the model in training."""
    measured: SampledModel | None = None
    """The model that the images for measuring rewards are generated with, if it differs from the model in training."""
    encoded: EncodedPrompts | None = None
    """The conditioning of the prompts of samples, where text encoders leave the memory after encoding."""

    @property
    def trained_placeholders(self) -> frozenset[str]:
        """The placeholders of the trained embeddings: captions that contain one are encoded in each step."""
        return frozenset(w.placeholder for w in self.embeddings if w.trained)

    @property
    def unit_names(self) -> dict[str, str]:
        """The names of embeddings for people, by their training units, which backups call by their UUIDs."""
        return {w.unit: embedding_label(w.placeholder) for w in self.embeddings}

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


def prepare_parts(family: ModelFamily, precision: Precision) -> None:
    """Prepare the parts for a precision, whatever their weight dtype is.

    A VAE runs under autocast only while it is trained; outside of it nothing changes.
    """
    for part in family.parts.values():
        precision.prepare(part.module)
        if part.spec.role in DENOISERS and precision.device.type == "cuda":
            fuse_norms(part.module)


def _prepare(family: ModelFamily, precision: Precision, channels_last: Collection[str]) -> None:
    """Prepare the parts as read for a run; trained ones enter training mode later, and leave it at their end."""
    for part in family.parts.values():
        part.module.eval()
    prepare_parts(family, precision)
    channels_innermost(family, channels_last)


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
        if part.spec.role in DENOISERS:
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
    before_denoiser: Callable[[LoadedModel], None] | None = None,
) -> LoadedModel:
    """Load the model of a config, attach its adapters, and set up the placement and the memory settings of its parts.

    `start_copy` is the run's own copy of the adapter file that it starts from: it is read if it exists, otherwise
    written. A `compilation` compiles the blocks of the denoiser. `may_stay` has the parts that stay on the training
    device in phases that do not need them (`trainer/preflight/room.py`), `checkpointed_blocks` the blocks that
    automatic checkpointing recomputes, by part. `channels_last` are the parts with the channels innermost, by default
    the config's; an automatic choice counts as off. If large text encoders need not be in memory with
    the denoiser, `before_denoiser` is called with a model that lacks it, then they leave the memory, and then the
    denoiser is read. Raises DarkroomError if nothing would be trained.
    """
    quantized = quantized_parts(config)
    read = PartReader(config, quantized, on_bytes)
    facts, denoiser = phases.phase_facts(config), config.family.denoiser.name
    if channels_last is None:
        with_channels = (p.name for p in config.family.parts if p.role != "text_encoder")
        channels_last = frozenset(with_channels if config.model.channels_last == "on" else ())
    is_late = before_denoiser is not None and has_encoders_to_drop(config, may_stay or {})
    family = read.parts(*(p.name for p in config.family.parts if not (is_late and p.name == denoiser)))
    start = start_of(config, family, start_copy) if config.training.trains == "adapter" else None
    # Before adapters are attached and parts move: the encoders' identity comes from their unchanged weights.
    identities = identities_of(config.model, family, facts, machine.precision, start, quantized)
    _prepare(family, machine.precision, channels_last)
    set_memory = partial(_set_memory, family, config, machine, compilation, checkpointed_blocks or {})
    place = partial(placement_of, family, facts, machine, may_stay)
    encoding: LoadedModel | None = None
    if is_late and before_denoiser is not None:
        if readers := readers_of_encoders(config, start, read.again, may_stay or {}):
            set_memory(())
            encoding = LoadedModel(family, (), (), place(readers), identities, start, encoded=EncodedPrompts())
            before_denoiser(encoding)
            encoding.placement.drop_readable()
        late = read.parts(denoiser)
        _prepare(late, machine.precision, channels_last)
        family.put_part(denoiser, late.parts[denoiser].module)
    if read.training_adapter is not None:
        read.training_adapter.attach(family.parts[denoiser].module)
    sampling_model = sampling_model_of(config, family, quantized, on_bytes, channels_last=channels_last)
    if not trains_on_pixels(config):
        choose_attention(family, config.training.attention, machine)
    copies = None if start_copy is None else start_copy.parent / "embeddings"
    attached = attach_embeddings(config, family, copies=copies)
    identities = identities.with_embeddings(fixed_embeddings_identity(attached))
    adapters, groups = _train(config, family, start)
    groups += embedding_units(config, attached)
    set_memory(adapters)
    placement = encoding.placement if encoding else place()
    if encoding:
        placement.add_part(denoiser, family.parts[denoiser].module)
    sampled, measured = place_sampled_model(family, placement, read.training_adapter, sampling_model)
    return LoadedModel(
        family,
        adapters,
        groups,
        placement,
        identities,
        start,
        compilation,
        attached,
        sampled=sampled,
        measured=measured,
        encoded=encoding.encoded if encoding else None,
    )


def prepare_for_training(
    family: ModelFamily, config: Config, machine: Machine
) -> tuple[list[Adapter], list[TrainGroup]]:
    """Prepare a model whose weights are on the training device already, for a run that starts anew.

    Returns its adapters and the groups of its parameters. Without embeddings and compiled or offloaded layers.
    """
    prepare_parts(family, machine.precision)
    choose_attention(family, config.training.attention, machine)
    adapters, groups = _train(config, family, None)
    _set_memory(family, config, machine, None, {}, adapters)
    return adapters, groups


def _train(config: Config, family: ModelFamily, start: Start | None) -> tuple[list[Adapter], list[TrainGroup]]:
    """Prepare the weights that a run trains, apart from embeddings; return its adapters and its parameter groups."""
    adapters: list[Adapter] = []
    parameters: Mapping[str, dict[str, torch.nn.Parameter]] = {}
    trained = {p.name for p in trained_parts(config)}
    if trains_on_pixels(config):
        parameters = train_autoencoder(family, config)
    elif config.training.trains == "full":
        layers = filtered_layers(config.training, config.family.denoiser.model.layers)
        parameters = train_whole_parts(family, trained, layers)
    elif config.training.trains == "adapter":
        adapters = attach_adapters(family, config.adapter, trained, start, run_seed=config.general.seed)
        if not needs_autocast(config):
            for adapter in adapters:
                assert isinstance(adapter, CastingAdapter), "its record states it"
                adapter.compute_in_input_dtype(dtype_of(config.training.precision))
        parameters = {adapter.part: adapter.parameters() for adapter in adapters}
    fixed = {adapter.part: adapter.fixed for adapter in adapters}
    rate, factor = config.training.learning_rate, rate_factor_of(config)
    return adapters, [
        unit_of(family.parts[name], p, config.part(name), rate, factor, rate_ratios(config, p), fixed.get(name, dict))
        for name, p in parameters.items()
    ]


def _set_memory(
    family: ModelFamily,
    config: Config,
    machine: Machine,
    compilation: Compilation | None,
    checkpointed_blocks: Mapping[str, frozenset[str]],
    adapters: Sequence[Adapter],
) -> None:
    """Set how each part saves memory; of a denoiser that is not read yet nothing is set up."""
    family.set_memory(
        {
            name: _memory_of(part.spec, config.part(name), adapters, compilation, checkpointed_blocks)
            for name, part in family.parts.items()
            if not any(p.is_meta for p in part.module.parameters())
        },
        train_device=machine.train_device,
        temp_device=machine.temp_device,
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
    identities = identities_of(config.model, family, facts, machine.precision, start, quantized)
    attached = attach_embeddings(config, family, copies=None) if facts.has_text_cache else []
    return identities.with_embeddings(fixed_embeddings_identity(attached))


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
