"""Putting a run together, from a config to parts that fit. Below this file nobody sees the whole config."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch

from modules.adapters.protocol import Adapter, AdapterKind, kind_of
from modules.adapters.registry import ADAPTERS
from modules.adapters.stored import read_layers
from modules.adapters.targets import target_layers
from modules.config.schema import Config
from modules.config.sections.model import Part as PartSettings
from modules.data.cache.store import weights_fingerprint
from modules.data.dataset import Dataset
from modules.data.order import SampleIndex
from modules.families.protocol import ModelFamily, Part, PartMemory
from modules.families.registry import FAMILIES
from modules.memory.guard import DeviceGuard
from modules.memory.placement import Placement
from modules.optim.ema import Ema
from modules.optim.param_groups import TrainGroup, kept_parameters, named_parameters, optimizer_groups
from modules.optim.registry import build_optimizer, is_fused
from modules.optim.schedules import learning_rate_factor
from modules.system.devices import Device, resolve_device
from modules.system.dtypes import dtype_of
from modules.system.errors import DarkroomError
from modules.system.paths import from_root
from modules.system.secrets import hub_access
from modules.system.secrets_file import load_secrets
from modules.system.seeds import derive_seed
from trainer import phases
from trainer.commands import CommandDesk
from trainer.data.caching import Caches, EncoderIdentities, Encoders
from trainer.data.loader import Loader
from trainer.data.sources import (
    CachedConditioning,
    CachedLatents,
    ConditioningSource,
    EncodedConditioning,
    EncodedLatents,
    LatentSource,
)
from trainer.events import PhaseChanged
from trainer.preflight import plans_of
from trainer.run.event_log import EventLog
from trainer.step.evaluation import Evaluation
from trainer.step.precision import Precision
from trainer.step.stepper import Stepper


@dataclass(frozen=True, eq=False)
class Machine:
    """What a run computes on, and in which numbers."""

    train_device: Device
    temp_device: Device
    precision: Precision
    guard: DeviceGuard | None


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """The model of a run, what is trained of it, its parts in their places. A fine-tune has no adapters."""

    family: ModelFamily
    adapters: Sequence[Adapter]
    groups: Sequence[TrainGroup]
    placement: Placement
    identities: EncoderIdentities


def machine_of(config: Config) -> Machine:
    """Return the devices and the precision of a run. Raises DarkroomError for a device that is not there."""
    device = resolve_device(config.general.train_device)
    return Machine(
        train_device=device,
        temp_device=resolve_device(config.general.temp_device),
        precision=Precision(config.training.precision, device),
        guard=DeviceGuard() if config.general.debug_checks else None,
    )


def load_family(config: Config, on_bytes: Callable[[float, float], None] | None = None) -> ModelFamily:
    """Load the model of a config through the factory its family names; `on_bytes(done, total)` follows a download."""
    module_name, function = FAMILIES[config.model.family].factory.split(":")
    factory: Callable[..., object] = getattr(importlib.import_module(module_name), function)
    family = factory(
        config.model.base_model,
        dtypes={p.name: dtype_of(config.part(p.name).dtype) for p in FAMILIES[config.model.family].parts},
        clip_skip=config.model.clip_skip,
        clip_skip_2=config.model.clip_skip_2,
        prediction=config.model.prediction_type,
        zero_terminal_snr=config.model.zero_terminal_snr,
        vae_file=config.model.vae_file,
        offline=config.model.offline,
        hub_cache_dir=config.model.hub_cache_dir,
        hub=hub_access(load_secrets().secrets),
        on_bytes=on_bytes,
    )
    return cast(ModelFamily, family)


def prepare_parts(family: ModelFamily, precision: Precision) -> None:
    """Make the parts that run under autocast work in a precision, whatever their weight dtype is."""
    for part in family.parts.values():
        if part.spec.role != "vae":  # runs outside autocast, in its own dtype
            precision.prepare(part.module)


def load_model(config: Config, machine: Machine, on_bytes: Callable[[float, float], None] | None = None) -> LoadedModel:
    """Load the model, attach what is trained, and set up where its parts are and how they save memory.

    Raises DarkroomError where nothing would be trained.
    """
    family = load_family(config, on_bytes)
    for part in family.parts.values():
        part.module.eval()  # trained parts enter training mode below, and leave it when they stop
    # Before adapters are attached and parts move: the identity of the encoders is that of their own weights.
    identities = _identities(config, family, machine)
    prepare_parts(family, machine.precision)
    if config.training.trains == "full":
        adapters, groups = [], _whole_parts(config, family)
    else:
        adapters = _attach(config, family)
        groups = [_unit(config, family.parts[a.part], a.parameters()) for a in adapters]
    family.set_memory(
        {name: _memory_of(config.part(name), name, adapters) for name in family.parts},
        train_device=machine.train_device,
        temp_device=machine.temp_device,
    )
    facts = phases.phase_facts(config)
    placement = Placement(
        {name: part.module for name, part in family.parts.items()},
        train_device=machine.train_device,
        temp_device=machine.temp_device,
        needed_in=lambda phase: phases.needed_parts(phase, family.spec, facts),
        guard=machine.guard,
    )
    return LoadedModel(family, adapters, groups, placement, identities)


def _memory_of(settings: PartSettings, part: str, adapters: Sequence[Adapter]) -> PartMemory:
    """Return how a part saves memory. Whatever waits, its adapter stays with it: it is small, and learns there."""
    own = (name for a in adapters if a.part == part for name in a.parameters())
    return PartMemory(
        settings.checkpointing,
        settings.offload_activations,
        settings.offload_fraction,
        resident=frozenset(name.removeprefix(f"{part}.") for name in own),
    )


def build_stepper(config: Config, model: LoadedModel, machine: Machine, *, total_steps: int) -> Stepper:
    """Return what moves the weights. The trained parts are on the training device by now."""
    for group in model.groups:
        group.master_weight(config.training.low_precision_updates)
    ema = None
    if config.training.ema.mode != "off":
        on_train_device = config.training.ema.mode == "train_device"
        ema = Ema(
            named_parameters(model.groups),
            decay=config.training.ema.decay,
            update_every_steps=config.training.ema.update_every_steps,
            device=machine.train_device if on_train_device else machine.temp_device,
            exact=lambda: kept_parameters(model.groups),
        )
    schedule = config.training.schedule
    weights = named_parameters(model.groups)
    return Stepper(
        model.groups,
        build_optimizer(optimizer_groups(model.groups), config.training.optimizer),
        scaler=machine.precision.make_scaler(),
        clip_grad_norm=config.training.clip_grad_norm,
        rate_factor=lambda step: learning_rate_factor(schedule, step=step, total_steps=total_steps),
        ema=ema,
        rounding_generators=lambda step, name: _rounding_generators(
            config.general.seed, step, name, weights[name].device
        ),
        is_fused=is_fused(config.training.optimizer),
    )


def _rounding_generators(run_seed: int, step: int, name: str, device: torch.device) -> torch.Generator:
    # On the weight's device: there is a number for every number of it. Of each weight's own: they move in any order.
    return torch.Generator(device).manual_seed(derive_seed(run_seed, f"rounding {name}", step))


def evaluation_of(model: LoadedModel, stepper: Stepper) -> Evaluation:
    """Return how the model is looked at: through its averages, without dropout."""
    modules = {g.part: model.family.parts[g.part].module for g in model.groups if g.part is not None}
    return Evaluation(list(modules.values()), stepper.ema, stepper.optimizer, model.groups)


def caches_of(config: Config, model: LoadedModel, machine: Machine, desk: CommandDesk, log: EventLog) -> Caches:
    """Return the caches of a run."""
    return Caches(
        from_root(config.general.cache_dir),
        model.identities,
        Encoders(model.family, machine.train_device, machine.precision),
        model.placement,
        desk,
        log.emit,
    )


def cached_loader(
    config: Config, dataset: Dataset, model: LoadedModel, machine: Machine, caches: Caches, *, is_validation: bool
) -> Loader:
    """Fill the caches with what a data set needs and return its loader; images that turn out broken are left out."""
    dataset, latents = _latent_source(config, dataset, model, machine, caches)
    return Loader(
        dataset=dataset,
        plans=plans_of(config, dataset),
        latents=latents,
        conditioning=_conditioning_source(config, dataset, model, machine, caches),
        device=machine.train_device,
        caption_dropout=0.0 if is_validation else config.data.caption_dropout,
        run_seed=config.general.seed,
        threads=config.data.loader_threads,
    )


def plan_fingerprint(loader: Loader) -> str:
    """Return a hash of the images of a run, their sizes and captions: what the order of an epoch hangs on."""
    facts = [
        [str(e.image.path), e.image.size_bytes, list(e.image.captions), [str(p.bucket) for p in e.resize_crops]]
        for e in loader.dataset.examples
    ]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=12).hexdigest()


def _latent_source(
    config: Config, dataset: Dataset, model: LoadedModel, machine: Machine, caches: Caches
) -> tuple[Dataset, LatentSource]:
    device, dtype = machine.train_device, machine.precision.compute_dtype
    if not config.data.latent_cache:
        return dataset, EncodedLatents(dataset, model.family, device, dtype)
    caches.emit(PhaseChanged("scanning", f"{len(dataset.examples)} images"))
    jobs = caches.image_jobs(dataset, verify=config.data.verify_cache)
    broken = caches.build_latents(jobs, threads=config.data.loader_threads)
    if broken:
        dataset = dataset.without(broken)
        renumbered = {old: new for new, old in enumerate(sorted({n for n, _ in jobs} - broken))}
        jobs = {(renumbered[n], r): job for (n, r), job in jobs.items() if n not in broken}

    def rebuild(sample_index: SampleIndex) -> torch.Tensor:
        return caches.rebuild_latents(jobs[sample_index.example, sample_index.resolution])

    keys = {place: job.key for place, job in jobs.items()}
    return dataset, CachedLatents(caches.latent_store, keys, device, dtype, rebuild)


def _conditioning_source(
    config: Config, dataset: Dataset, model: LoadedModel, machine: Machine, caches: Caches
) -> ConditioningSource | None:
    device, dtype = machine.train_device, machine.precision.compute_dtype
    learning = {g.part for g in model.groups}
    if any(p.role == "text_encoder" and p.name in learning for p in model.family.spec.parts):
        return None
    if not config.data.text_cache:
        return EncodedConditioning(model.family, caches.encoders.caption, device, dtype)
    caches.build_text({c for e in dataset.examples for c in e.image.captions})
    return CachedConditioning(caches.text_store, caches.caption_key, model.family, device, dtype, caches.rebuild_text)


def _attach(config: Config, family: ModelFamily) -> list[Adapter]:
    settings = config.adapter
    kind = kind_of(ADAPTERS[settings.name])
    adapters: list[Adapter] = []
    for name, part in family.parts.items():
        if not part.spec.trainable or not config.part(name).train:
            continue
        targets = target_layers(
            part.module,
            part.spec.role,
            layers=settings.layers,
            custom_layers=settings.custom_layers,
            reaches=part.reaches,
        )
        if not targets:
            raise DarkroomError(
                f"{part.spec.label} is to be trained, but none of its layers can learn with these settings.",
                advice="Lower clip skip, choose other layers, or switch its training off.",
            )
        seed = derive_seed(config.general.seed, f"adapter {name}")
        adapters.append(kind.attach(name, part.module, targets, settings, seed=seed))
        part.module.train()
    if settings.start_from.strip():
        _start_from(from_root(settings.start_from.strip()), kind, family, adapters)
    return adapters


def _start_from(path: Path, kind: AdapterKind, family: ModelFamily, adapters: Sequence[Adapter]) -> None:
    """Give fresh adapters the weights of a file of their kind. Raises DarkroomError where it does not fit the run."""
    by_part = read_layers(path, kind, family.lora_naming, {name: part.module for name, part in family.parts.items()})
    trained = {adapter.part: adapter for adapter in adapters}
    for part, layers in by_part.items():
        if part not in trained:
            label = family.parts[part].spec.label
            raise DarkroomError(
                f"{path.name} has a LoRA on the {label}, which is not trained in this run.",
                advice=f"Switch the training of {label} on, or start from another LoRA.",
            )
        trained[part].load(layers, where=path.name)


def _whole_parts(config: Config, family: ModelFamily) -> list[TrainGroup]:
    """Make the parts that learn trainable themselves: every weight that a gradient can reach."""
    groups = []
    for name, part in family.parts.items():
        if part.spec.trainable and config.part(name).train:
            reached = {n: p for n, p in part.module.named_parameters() if part.reaches(n.rpartition(".")[0])}
            for parameter in reached.values():
                parameter.requires_grad_(True)
            part.module.train()
            groups.append(_unit(config, part, {f"{name}.{n}": p for n, p in reached.items()}))
    return groups


def _unit(config: Config, part: Part, parameters: dict[str, torch.nn.Parameter]) -> TrainGroup:
    """Return the training unit that a part is, or its adapter: it has the part's name and settings."""
    settings = config.part(part.spec.name)
    own = settings.learning_rate
    return TrainGroup(
        part.spec.name,
        parameters,
        config.training.learning_rate if own is None else own,
        module=part.module,
        part=part.spec.name,
        label=part.spec.label,
        stop_after=settings.stop_after,
    )


def _identities(config: Config, family: ModelFamily, machine: Machine) -> EncoderIdentities:
    """Return what stands for the encoders in cache keys, as far as a cache is used."""
    facts = phases.phase_facts(config)
    fingerprints: Mapping[str, str] = {
        name: weights_fingerprint(part.module)
        for name, part in family.parts.items()
        if (part.spec.role == "vae" and facts.has_latent_cache)
        or (part.spec.role == "text_encoder" and facts.has_text_cache)
    }
    images = [fingerprints.get(p.name, "") for p in family.spec.parts if p.role == "vae"]
    texts = [fingerprints.get(p.name, "") for p in family.spec.parts if p.role == "text_encoder"]
    return EncoderIdentities(
        # Images are encoded outside autocast, but in TF32 where the run's precision allows it on this device.
        images="|".join([*images, family.image_identity(), f"tf32 {machine.precision.tf32}"]),
        captions="|".join([*texts, family.text_identity(), machine.precision.name]),
    )
