"""Loading the model of a run: its parts, its trained parameters, their devices, and how they save memory."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch

from modules.adapters.kept_layers import attach_kept, kept_fingerprint
from modules.adapters.protocol import Adapter, kind_of
from modules.adapters.ranks import require_used_ranks
from modules.adapters.registry import ADAPTERS
from modules.adapters.settings import AdapterSettings, adapter_layers
from modules.adapters.start import Start, divided, read_content, write_content
from modules.adapters.stored import read_adapter
from modules.adapters.targets import target_layers
from modules.config.method_facts import copies_originals, rate_factor_of
from modules.config.schema import Config
from modules.config.sections.model import Model
from modules.config.sections.model import Part as PartSettings
from modules.config.sections.training import filtered_layers
from modules.data.cache.store import weights_fingerprint
from modules.families.parts.attention_processor import set_attention
from modules.families.parts.circular_padding import pad_circularly
from modules.families.protocol import ModelFamily, Part, PartMemory
from modules.families.registry import FAMILIES
from modules.families.spec import PartSpec
from modules.families.words import Word
from modules.memory.compiled_blocks import Compilation
from modules.memory.frozen_copy import FrozenCopy
from modules.memory.placement import Placement
from modules.optim.param_groups import TrainGroup
from modules.settings.layer_filter import LayerFilter, taken_layers
from modules.system.dtypes import dtype_of
from modules.system.errors import DarkroomError
from modules.system.paths import from_root
from modules.system.secrets import hub_access
from modules.system.secrets_file import load_secrets
from modules.system.seeds import derive_seed
from trainer import phases
from trainer.data.caching import EncoderIdentities
from trainer.run.machine import Machine
from trainer.run.placement import originals_of, placement_of
from trainer.run.words import attach_words, fixed_words_identity, word_units
from trainer.step.precision import Precision

PartOf = Callable[[str], PartSettings]


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """The model of a run, its trained parameters, and the placement of its parts. A fine-tune has no adapters.

    `originals` are copies of the trained weights before training, if the run needs predictions of the original model.
    """

    family: ModelFamily
    adapters: Sequence[Adapter]
    groups: Sequence[TrainGroup]
    placement: Placement
    identities: EncoderIdentities
    start: Start | None = None
    """What the adapters started from, if they did not start anew."""
    originals: Sequence[FrozenCopy] = ()
    compilation: Compilation | None = None
    """The compiled blocks of the denoiser, if they are compiled."""
    words: Sequence[Word] = ()
    """The embeddings, trained or only used."""

    @property
    def trained_placeholders(self) -> frozenset[str]:
        """The placeholders of the trained embeddings: captions that contain one are encoded in each step."""
        return frozenset(w.placeholder for w in self.words if w.trained)

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
) -> ModelFamily:
    """Load a base model through the factory its family names.

    `part_of(name)` returns the settings of a part; `on_bytes(done, total)` is called during a download. The weights of
    the parts in `without_weights` are not read; these parts are on the meta device. `fallback_dtype` is that of a VAE
    that overflows in float16.
    """
    spec = FAMILIES[model.family]
    module_name, function = spec.factory.split(":")
    factory: Callable[..., object] = getattr(importlib.import_module(module_name), function)
    family = factory(
        model.base_model,
        dtypes={p.name: dtype_of(part_of(p.name).dtype) for p in spec.parts},
        clip_skip=model.clip_skip,
        clip_skip_2=model.clip_skip_2,
        prompt_weighting=model.prompt_weighting,
        prediction=model.prediction_type,
        zero_terminal_snr=model.zero_terminal_snr,
        vae_file=model.vae_file,
        offline=model.offline,
        hub_cache_dir=model.hub_cache_dir,
        hub=hub_access(load_secrets().secrets),
        on_bytes=on_bytes,
        without_weights=without_weights,
        fallback_dtype=dtype_of(fallback_dtype),
    )
    loaded = cast(ModelFamily, family)
    if model.circular_padding:
        for part in loaded.parts.values():
            if part.spec.role != "text_encoder":
                pad_circularly(part.module)
    return loaded


def prepare_parts(family: ModelFamily, precision: Precision) -> None:
    """Prepare the parts that run under autocast for a precision, whatever their weight dtype is."""
    for part in family.parts.values():
        if part.spec.role != "vae":  # runs outside autocast, in its own dtype
            precision.prepare(part.module)


def choose_attention(family: ModelFamily, name: str, machine: Machine) -> None:
    """Use an attention implementation in the denoiser. Raises DarkroomError if it does not run on the device."""
    dtype = machine.precision.compute_dtype
    for part in family.parts.values():
        if part.spec.role == "denoiser":
            own = dtype if dtype.itemsize == 2 else next(part.module.parameters()).dtype
            set_attention(part.module, name, device=machine.train_device, dtype=own)


def load_model(
    config: Config,
    machine: Machine,
    on_bytes: Callable[[float, float], None] | None = None,
    *,
    start_copy: Path | None = None,
    compilation: Compilation | None = None,
) -> LoadedModel:
    """Load the model of a config, attach its adapters, and set up the placement and the memory settings of its parts.

    `start_copy` is the run's own copy of the adapter file that it starts from: it is read if it exists, otherwise
    written. A `compilation` compiles the blocks of the denoiser. Raises DarkroomError if nothing would be trained.
    """
    family = load_family(config.model, config.part, on_bytes, fallback_dtype=config.training.fallback_train_dtype)
    for part in family.parts.values():
        part.module.eval()  # trained parts enter training mode below, and leave it when their training stops
    facts = phases.phase_facts(config)
    start = _start(config, family, start_copy) if config.training.trains == "adapter" else None
    # Before adapters are attached and parts move: the identity of the encoders is that of their own weights.
    identities = _identities(family, facts, machine.precision, start)
    prepare_parts(family, machine.precision)
    choose_attention(family, config.training.attention, machine)
    copies = None if start_copy is None else start_copy.parent / "embeddings"
    words = attach_words(config, family, copies=copies)
    identities = identities.with_words(fixed_words_identity(words))
    adapters: list[Adapter] = []
    parameters: Mapping[str, dict[str, torch.nn.Parameter]] = {}
    if config.training.trains == "full":
        parameters = _whole_parts(family, config.part, filtered_layers(config.training))
    elif config.training.trains == "adapter":
        adapters = _attach(family, config.adapter, config.part, start, run_seed=config.general.seed)
        parameters = {adapter.part: adapter.parameters() for adapter in adapters}
    rate, factor = config.training.learning_rate, rate_factor_of(config)
    groups = [
        _unit(family.parts[name], p, config.part(name), rate, factor, _ratios(config, p))
        for name, p in parameters.items()
    ] + word_units(config, words)
    family.set_memory(
        {name: _memory_of(part.spec, config.part(name), adapters, compilation) for name, part in family.parts.items()},
        train_device=machine.train_device,
        temp_device=machine.temp_device,
    )
    here, offloaded = originals_of(family, groups) if copies_originals(config) else ({}, {})
    placement = placement_of(family, facts, machine, here, offloaded)
    originals = (*here.values(), *offloaded.values())
    return LoadedModel(family, adapters, groups, placement, identities, start, originals, compilation, words)


def encoder_identities(config: Config, machine: Machine) -> EncoderIdentities:
    """Return the identities of a run's encoders as `load_model` does, but read only the weights that they depend on."""
    facts = phases.phase_facts(config)
    roles = {"vae"} if facts.has_latent_cache else set()
    roles |= {"text_encoder"} if facts.has_text_cache else set()
    others = [p.name for p in FAMILIES[config.model.family].parts if p.role not in roles]
    family = load_family(
        config.model, config.part, without_weights=others, fallback_dtype=config.training.fallback_train_dtype
    )
    start = _start(config, family, None) if config.training.trains == "adapter" else None
    identities = _identities(family, facts, machine.precision, start)
    words = attach_words(config, family, copies=None) if facts.has_text_cache else []
    return identities.with_words(fixed_words_identity(words))


def _memory_of(
    part: PartSpec, settings: PartSettings, adapters: Sequence[Adapter], compilation: Compilation | None
) -> PartMemory:
    """Return how a part saves memory. Its adapter is never offloaded: it is small, and it is trained there."""
    own = (name for a in adapters if a.part == part.name for name in a.parameters())
    return PartMemory(
        settings.checkpointing,
        settings.offload_activations,
        settings.offload_fraction,
        resident=frozenset(name.removeprefix(f"{part.name}.") for name in own),
        compilation=compilation if part.role == "denoiser" else None,
    )


def _start(config: Config, family: ModelFamily, start_copy: Path | None) -> Start | None:
    """Return what the adapters of a run start from; None for new ones."""
    settings = config.adapter
    if not settings.start_from.strip():
        return None
    trainable = ADAPTERS[settings.name].trainable_with(settings)
    assert trainable is not None  # only an adapter that is not supported yet has none
    if start_copy is not None and start_copy.exists():
        content = read_content(start_copy)
    else:
        modules = {name: part.module for name, part in family.parts.items()}
        content = read_adapter(from_root(settings.start_from.strip()), family.lora_naming, modules)
        if start_copy is not None:
            write_content(start_copy, content)
    targets = _targets(family, settings, config.part)
    return divided(content, targets, trainable, keeps=settings.other_layers == "keep")


def _targets(family: ModelFamily, settings: AdapterSettings, part_of: PartOf) -> dict[str, list[str]]:
    """Return the layers of each trained part that get an adapter. Raises DarkroomError for a part without any."""
    found = {}
    for name, part in family.parts.items():
        if not part.spec.trainable or not part_of(name).train:
            continue
        found[name] = target_layers(
            part.module,
            part.spec.role,
            layers=adapter_layers(settings),
            reaches=part.reaches,
        )
        if not found[name]:
            raise DarkroomError(
                f"{part.spec.label} is set to be trained, but none of its layers can be trained with these settings.",
                advice="Lower clip skip, choose other layers, or switch off the training of this part.",
            )
    require_used_ranks(settings, ((part, path) for part, paths in found.items() for path in paths))
    return found


def _attach(
    family: ModelFamily, settings: AdapterSettings, part_of: PartOf, start: Start | None, *, run_seed: int
) -> list[Adapter]:
    """Put what a run starts from and its adapters on the model, and return the adapters."""
    kind = kind_of(ADAPTERS[settings.name])
    adapters: list[Adapter] = []
    if start is not None:
        attach_kept({name: part.module for name, part in family.parts.items()}, start.kept, where=start.where)
    for name, targets in (_targets(family, settings, part_of) if start is None else start.targets).items():
        part = family.parts[name]
        if not targets:
            raise DarkroomError(
                f"{part.spec.label} is set to be trained, but {start.where if start else ''} has a change of another "
                "kind on each of its layers.",
                advice='Choose "Leave out" under Other layers, other layers, or another adapter type.',
            )
        seed = derive_seed(run_seed, f"adapter {name}")
        layers = start.trained[name] if start is not None else ()
        where = start.where if start is not None else ""
        adapters.append(kind.attach(name, part.module, targets, settings, seed=seed, start=layers, where=where))
        part.module.train()
    return adapters


def _whole_parts(family: ModelFamily, part_of: PartOf, layers: LayerFilter) -> dict[str, dict[str, torch.nn.Parameter]]:
    """Enable gradients on the trained weights of each trained part, and return them: those that a gradient can reach,
    of the denoiser those of `layers`.
    """
    parameters = {}
    for name, part in family.parts.items():
        if part.spec.trainable and part_of(name).train:
            own = part.module.state_dict().keys()  # without the rows of embeddings
            paths = {n: n.rpartition(".")[0] for n, _ in part.module.named_parameters() if n in own}
            trained = {path for path in paths.values() if part.reaches(path)}
            if part.spec.role == "denoiser":
                trained = set(taken_layers(layers, trained, page="Training"))
            reached = {n: p for n, p in part.module.named_parameters() if paths.get(n) in trained}
            for parameter in reached.values():
                parameter.requires_grad_(True)
            part.module.train()
            parameters[name] = {f"{name}.{n}": p for n, p in reached.items()}
    return parameters


def _ratios(config: Config, parameters: Collection[str]) -> dict[str, float]:
    """Return the ratios of the learning rates of an adapter's weights to that of their part, where they are not 1."""
    if config.training.trains != "adapter":
        return {}
    return ADAPTERS[config.adapter.name].rate_ratios(config.adapter, parameters)


def _unit(
    part: Part,
    parameters: dict[str, torch.nn.Parameter],
    settings: PartSettings,
    learning_rate: float,
    factor: float,
    rate_ratios: Mapping[str, float],
) -> TrainGroup:
    """Return the training unit of a part or its adapter, with the part's name and settings.

    `factor` is that of the learning rate scaler.
    """
    own = settings.learning_rate
    return TrainGroup(
        part.spec.name,
        parameters,
        (learning_rate if own is None else own) * factor,
        module=part.module,
        part=part.spec.name,
        label=part.spec.label,
        stop_after=settings.stop_after,
        rate_ratios=rate_ratios,
    )


def _identities(
    family: ModelFamily, facts: phases.PhaseFacts, precision: Precision, start: Start | None
) -> EncoderIdentities:
    """Return the identities of the encoders for cache keys; empty for encoders whose cache is not used.

    Layers that the run keeps on an encoder are part of it.
    """

    def fingerprint(part: Part) -> str:
        kept = start.kept_in(part.spec.name) if start is not None else []
        own = weights_fingerprint(part.module)
        return f"{own} with {kept_fingerprint(kept)}" if kept else own

    fingerprints: Mapping[str, str] = {
        name: fingerprint(part)
        for name, part in family.parts.items()
        if (part.spec.role == "vae" and facts.has_latent_cache)
        or (part.spec.role == "text_encoder" and facts.has_text_cache)
    }
    images = [fingerprints.get(p.name, "") for p in family.spec.parts if p.role == "vae"]
    texts = [fingerprints.get(p.name, "") for p in family.spec.parts if p.role == "text_encoder"]
    return EncoderIdentities(
        # Images are encoded outside autocast, but in TF32 where the run's precision allows it on this device.
        images="|".join([*images, family.image_identity(), f"tf32 {precision.tf32}"]),
        captions="|".join([*texts, family.text_identity(), precision.name]),
    )
