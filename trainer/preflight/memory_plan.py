"""The run plan of a config for the memory estimate: parts per phase, trained parts and settings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from modules.adapters.ranks import layers_with_rank, settings_by_layer
from modules.adapters.registry import ADAPTERS
from modules.adapters.settings import AdapterSection, adapter_layers, decomposition_axis
from modules.config import usage
from modules.config.quantized_parts import QuantizedParts, quantized_parts
from modules.config.schema import Config
from modules.config.sections.quantization import quantized_layers
from modules.config.sections.training import filtered_layers
from modules.data.buckets import Size
from modules.data.samples import shares_of_step
from modules.data.tiles import SMALLEST_TILES, VAE_TILES, WHOLE, Tiling
from modules.estimate.architecture import Architecture
from modules.estimate.run_plan import RUNTIME_BYTES, Average, Phase, RunPlan, Sample, SampledImages
from modules.families.spec import LatentSpec, PartSpec
from modules.memory.part_plan import FLOAT32_BYTES, AdapterPlan, PartPlan, Trains
from modules.objectives.rollout_facts import RolloutFacts
from modules.rewards.settings import wanted_files
from modules.settings.layer_filter import EVERYTHING, LayerFilter, invalid_entry
from modules.settings.shared_types import CheckpointMode
from modules.system import hardware
from modules.system.ranks import current_rank
from trainer import phases
from trainer.launch import num_processes
from trainer.preflight.part_files import with_stored_bytes
from trainer.preflight.ranks import sharded_parts
from trainer.preflight.training_adapter import training_adapter_bytes

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_COMPUTE_BYTES = {"bfloat16": 2, "float16": 2}
_AVERAGES: Mapping[str, Average] = {"off": "off", "train_device": "here", "temp_device": "elsewhere"}
PHASES: Mapping[Phase, str] = {
    "encoding images": phases.CACHE_IMAGES,
    "encoding captions": phases.CACHE_CAPTIONS,
    "training": phases.TRAIN,
    "validating": phases.VALIDATE,
    "sampling": phases.SAMPLE_DENOISE,
    "decoding samples": phases.SAMPLE_DECODE,
}
"""The phases of the estimate, and their names in a run."""
_TEXT_LAYERS = LayerFilter(("layers.",))


def run_plan(config: Config, architecture: Architecture, sizes: Iterable[Size]) -> RunPlan | None:
    """Return the plan that determines a run's memory; None for a config that the estimate does not support."""
    spec = config.family
    if config.training.trains not in ("adapter", "full", "embedding", "vae"):
        return None
    presets, trains_adapter = spec.denoiser.model.layers, config.training.trains == "adapter"
    chosen = adapter_layers(config.adapter, presets) if trains_adapter else filtered_layers(config.training, presets)
    if invalid_entry(chosen) is not None or invalid_entry(quantized_layers(config.quantization, presets)) is not None:
        return None
    quantized = quantized_parts(config)
    if any(quantized.plain_dtype(p.name, config.part(p.name).dtype) not in ITEM_BYTES for p in spec.parts):
        return None
    formats = {
        part.name: with_stored_bytes(config, part, quantized.formats[part.name], architecture.configs[part.name])
        for part in spec.parts
        if part.name in quantized.formats
    }
    if any(f is None for f in formats.values()):
        return None
    quantized = replace(quantized, formats={n: f for n, f in formats.items() if f is not None})
    here = hardware.here()
    device = here.kind_of(config.general.train_device)
    fuses_norms = device not in ("cpu", "mps") and not here.is_mac
    plans = {
        p.name: _part_plan(config, p, architecture.configs, quantized, fuses_norms=fuses_norms) for p in spec.parts
    }
    sizes = tuple(sizes)
    sizes_px = tuple(_as_image(spec.latents, size) for size in sizes)
    reconstructs = usage.trains_on_pixels(config)
    world_size = max(current_rank().world_size, num_processes(config))
    step_batch, num_shares = shares_of_step(config.training.batch_size, config.training.accumulation_steps, world_size)
    samples = () if reconstructs else tuple(_samples(config, sizes_px))
    return RunPlan(
        plans=plans,
        on_device=_on_device(config, has_samples=bool(samples)),
        sizes=sizes_px,
        batch_size=config.training.batch_size,
        accumulates=num_shares > 1 or usage.method_of(config).splits_batches,
        optimizer=config.training.optimizer,
        has_master_weights=config.training.low_precision_updates == "master",
        average=_AVERAGES[config.training.ema.mode],
        encodes_in_training=not usage.data_in_use(config).latent_cache and _reads_images(config) and not reconstructs,
        samples=samples,
        scales_loss=config.training.precision == "float16",
        is_fused=usage.updates_in_backward(config),
        sampled=_sampling_sizes(config, sizes_px),
        images_per_pass=usage.images_per_pass(config),
        reconstructs=reconstructs,
        is_perceptual=usage.uses_perceptual_distance(config),
        has_originals=usage.copies_originals(config),
        step_batch=step_batch,
        sharded=frozenset(sharded_parts(config, world_size)),
        num_shards=world_size,
        summed_bytes=_summed_bytes(config) if world_size > 1 else None,
        sums_in_float32=config.multi_gpu.reduce_precision.startswith("float32"),
        training_adapter_bytes=training_adapter_bytes(config),
        keeps_other_denoiser=bool(config.sampling.model.strip())
        and usage.uses_denoiser(config)
        and _never_offloads(config),
        tiles=WHOLE if config.model.circular_padding else VAE_TILES,
        sample_tiles=sample_tiles(config),
        references=_reference_sizes(config),
        clips=tuple(size for size in sizes if size.num_frames > 1),
        runtime_bytes=0 if device == "cpu" else RUNTIME_BYTES,
    )


def _as_image(latents: LatentSpec, size: Size) -> tuple[int, int]:
    """Return the sides of an image with as many latents; a clip counts as its frames on top of each other."""
    return size.width_px, size.height_px * latents.frames(size.num_frames)


def _reference_sizes(config: Config) -> tuple[tuple[int, int], ...]:
    """Return the size that the pipeline gives reference images, if they have it: a square of its area."""
    fit = usage.fit_of_references(config)
    if fit is None or fit.follows_image:
        return ()
    side_px = math.isqrt(fit.sizes.area_px)
    return ((side_px, side_px),)


def sample_tiles(config: Config) -> Tiling:
    """Return the smallest tiles in which samples are decoded: no others than by their size in deterministic runs.

    With circular padding there are none.
    """
    if config.model.circular_padding:
        return WHOLE
    return VAE_TILES if config.general.deterministic else SMALLEST_TILES


def _summed_bytes(config: Config) -> int:
    """Return how much of the gradients several processes may sum at a time; 0 for a part after the other."""
    return config.multi_gpu.async_reduce_buffer_mb * 10**6 if config.multi_gpu.async_reduce else 0


def _samples(config: Config, sizes_px: Sequence[tuple[int, int]]) -> Iterator[Sample]:
    """Yield the images that the run samples: samples, and images to measure a reward on (`measured_prompts`).

    A part that guides them runs on a batch of its own.
    """
    doubles = not config.family.names_of("guidance")
    rollout, is_measured = usage.rollout_of(config), usage.method_of(config).needs_reward_models
    measures = is_measured and not config.reward.measure_every.is_never
    samples = not config.sampling.every.is_never or config.sampling.at_start or config.sampling.at_end
    prompts = [p for p in config.sampling.prompts if p.enabled]
    if samples or measures:
        yield from (Sample(p.width_px, p.height_px, doubles and p.guidance > 1) for p in prompts)
    if measures and not prompts and rollout is not None:
        yield from (Sample(*size, doubles and rollout.guidance > 1) for size in sizes_px)


def _sampling_sizes(config: Config, sizes_px: Sequence[tuple[int, int]]) -> SampledImages | None:
    """Return the memory facts of a method that samples images."""
    rollout, in_use = usage.rollout_of(config), usage.scorers_of(config)
    if rollout is None:
        return None
    scorers = in_use.all if in_use is not None else ()
    return SampledImages(
        backprop_steps=rollout.gradient_steps,
        is_guided=rollout.is_guided,
        trains_guided=rollout.trains_guided,
        size_px=rollout.size,
        kept_latents_bytes=_kept_latents_bytes(config, rollout, sizes_px) if _never_offloads(config) else 0,
        copies_weights=usage.keeps_reference_copy(config),
        reward_models_bytes=sum(wanted.loaded_bytes for scorer in scorers for wanted in wanted_files(scorer)),
    )


def _kept_latents_bytes(config: Config, rollout: RolloutFacts, sizes_px: Sequence[tuple[int, int]]) -> int:
    """Return the bytes of the states that the samples of an accumulation group keep, in float32.

    They are those before and after each trained step, and the finished latents. None are kept in one graph.
    """
    if rollout.gradient_steps:
        return 0
    spec, training = config.family, config.training
    width_px, height_px = rollout.size or max(sizes_px, key=lambda s: s[0] * s[1], default=(0, 0))
    num_states = min(rollout.steps + 1, 2 * rollout.trained_steps + 1)
    num_images = training.batch_size * training.accumulation_steps * rollout.samples_per_prompt
    factor = spec.latents.factor
    elements = spec.latents.channels * (width_px // factor) * (height_px // factor)
    return num_images * num_states * elements * FLOAT32_BYTES


def _part_plan(
    config: Config,
    part: PartSpec,
    configs: Mapping[str, Mapping[str, object]],
    quantized: QuantizedParts,
    *,
    fuses_norms: bool,
) -> PartPlan:
    settings = config.part(part.name)
    weight_bytes = ITEM_BYTES[quantized.plain_dtype(part.name, settings.dtype)]
    if part.role == "vae":
        # A VAE that overflows in float16 has the fallback dtype; images are encoded without autocast.
        overflows = settings.dtype == "float16" and config.family.latents.overflows_in_float16
        stays = overflows and bool(configs[part.name].get("force_upcast", True))
        weight_bytes = ITEM_BYTES[config.training.fallback_train_dtype] if stays else weight_bytes
        return _vae_plan(config, part, weight_bytes) if usage.trains_on_pixels(config) else PartPlan(weight_bytes)
    trains: Trains = "nothing"
    if part in usage.trained_parts(config):
        trains = "full" if config.training.trains == "full" else "adapter"
    return PartPlan(
        weight_bytes=weight_bytes,
        compute_bytes=_COMPUTE_BYTES.get(config.training.precision, 0),
        autocasts=usage.needs_autocast(config),
        trains=trains,
        adapter=_adapter_plan(config.adapter, part) if trains == "adapter" else None,
        unreached=config.model.family.unreached_layers(part.name, configs[part.name], config.model.variant),
        layers=filtered_layers(config.training, part.model.layers) if part.role == "denoiser" else EVERYTHING,
        checkpointing=_least_kept(settings.checkpointing),
        offloads=settings.offload_activations,
        offload_fraction=0.0 if _never_offloads(config) else settings.offload_fraction,
        quantized=quantized.formats.get(part.name),
        trains_embeddings=part.name in usage.trained_encoders(config) and bool(usage.trained_embeddings(config)),
        fuses_norms=fuses_norms,
    )


def _least_kept(mode: CheckpointMode) -> CheckpointMode:
    """Return a mode as it saves most: "auto" checkpoints all blocks if it must."""
    return "block" if mode == "auto" else mode


def _vae_plan(config: Config, part: PartSpec, weight_bytes: int) -> PartPlan:
    """Return the plan of a VAE that is trained: of its decoder alone, or of all of it."""
    settings = config.part(part.name)
    return PartPlan(
        weight_bytes,
        compute_bytes=_COMPUTE_BYTES.get(config.training.precision, 0),
        trains="full",
        unreached=("encoder.", "quant_conv") if config.training.vae.decoder_only else (),
        checkpointing=_least_kept(settings.checkpointing),
        offloads=settings.offload_activations,
    )


def _adapter_plan(settings: AdapterSection, part: PartSpec) -> AdapterPlan | None:
    memory = ADAPTERS[settings.name].memory
    if memory is None:
        return None
    return AdapterPlan(
        settings,
        memory,
        ITEM_BYTES[settings.dtype],
        _TEXT_LAYERS if part.role == "text_encoder" else adapter_layers(settings, part.model.layers),
        has_dropout=settings.dropout > 0,
        settings_at=settings_by_layer(settings, part.name),
        decomposes=decomposition_axis(settings),
        has_rank=layers_with_rank(settings, part.name),
    )


def _on_device(config: Config, *, has_samples: bool) -> dict[Phase, frozenset[str]]:
    """Return the phases of the run, with the parts that are on the training device."""
    spec = config.family
    facts = phases.phase_facts(config)
    validates = any(c.enabled and c.dataset_kind == "validation" for c in config.concepts)
    are_there: dict[Phase, bool] = {
        "encoding images": facts.has_latent_cache and (_reads_images(config) or validates),
        "encoding captions": facts.has_text_cache,
        "training": True,
        "validating": not config.validation.every.is_never,
        "sampling": has_samples,
        "decoding samples": has_samples,
    }
    unread = frozenset[str]() if usage.guides_samples(config) else frozenset(spec.names_of("guidance"))
    everything = frozenset(p.name for p in spec.parts)
    return {
        phase: (everything if _never_offloads(config) else phases.needed_parts(PHASES[phase], spec, facts)) - unread
        for phase, is_there in are_there.items()
        if is_there
    }


def _reads_images(config: Config) -> bool:
    return usage.learns_from(config) != "prompts"


def _never_offloads(config: Config) -> bool:
    """Return whether the offload device is the training device."""
    return config.general.temp_device.strip().lower() == config.general.train_device.strip().lower()
