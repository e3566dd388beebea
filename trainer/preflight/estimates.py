"""Whether the run fits the GPU and the disk, estimated from shapes and image counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

from modules.config.usage import learns_from, step_passes
from modules.data.buckets import Size
from modules.data.dataset import Dataset
from modules.data.versions import num_variations
from modules.estimate.step_time import step_seconds
from modules.system import hardware
from modules.system.hardware import GpuMemory, gpu_memory
from modules.system.problem import Problem
from trainer.preflight.budget import (
    cache_memory_problems,
    disk_problems,
    layer_problems,
    memory_problems,
    start_problems,
)
from trainer.preflight.host_memory import problems_of_reading
from trainer.preflight.processor import problems_of_processor
from trainer.preflight.report import RunFigures
from trainer.preflight.run_budget import Budget
from trainer.preflight.sampling_model import memory_problems_of_sampling_model
from trainer.preflight.search import StepTimes
from trainer.preflight.subject_length import problems_of_subject_length


def problems_of_estimates(
    budget: Budget,
    training: Dataset,
    validation: Dataset,
    *,
    total_steps: int,
    is_new: bool = True,
    memory_of: Callable[[str], GpuMemory | None] = gpu_memory,
) -> Iterator[Problem]:
    """Yield problems of layer names, memory and disk space.

    For a new run also which layers of the adapter file that it starts from it trains. `memory_of(device)` returns the
    GPU's memory.
    """
    config = budget.config
    yield from layer_problems(budget)
    if is_new:
        yield from start_problems(budget)
    yield from memory_problems(budget, memory_of=memory_of)
    yield from problems_of_processor(budget, total_steps=total_steps)
    if is_new:
        yield from problems_of_subject_length(budget, training)
    yield from problems_of_reading(budget)
    yield from memory_problems_of_sampling_model(budget)
    seed = config.general.seed
    captions = {c for d in (training, validation) for e in d.examples for c in d.texts(e, run_seed=seed) if c}
    versions = cached_sizes_of(training, validation, reads_images=learns_from(config) != "prompts")
    yield from disk_problems(budget, versions, num_captions=len(captions), total_steps=total_steps)
    yield from cache_memory_problems(budget, versions, num_captions=len(captions))


def figures_of(
    budget: Budget, *, num_steps: int, memory_of: Callable[[str], GpuMemory | None] = gpu_memory
) -> RunFigures:
    """Return the figures of a run that takes so many steps. `memory_of(device)` returns the GPU's memory."""
    config = budget.config
    batch_size, accumulation = config.training.batch_size, config.training.accumulation_steps
    # A step of the method Denoising, times the passes of this one.
    denoising = replace(StepTimes(budget).facts(config), batch_size=batch_size)
    step = step_seconds(denoising, num_cores=hardware.num_cores())
    step *= step_passes(config).times_denoising(batch_size * accumulation)
    gpu = memory_of(config.general.train_device)
    is_shared = gpu is None and hardware.here().kind_of(config.general.train_device) in ("cpu", "mps")
    device_bytes = gpu.total_bytes if gpu is not None else hardware.total_memory() if is_shared else None
    return RunFigures(step * num_steps, budget.peak_bytes, device_bytes, on_gpu=not is_shared)


def sizes_of(training: Dataset, validation: Dataset) -> Counter[Size]:
    """Return the number of training and validation images at each size."""
    return Counter(training.bucket_counts) + Counter(validation.bucket_counts)


def cached_sizes_of(training: Dataset, validation: Dataset, *, reads_images: bool = True) -> Counter[Size]:
    """Return the number of cached versions of training and validation images at each size.

    Without `reads_images` training images have none, so that a size may have the number 0.
    """
    counts: Counter[Size] = Counter()
    for dataset, is_cached in ((training, reads_images), (validation, True)):
        for example in dataset.examples:
            num_images = 2 if example.image.rejected is not None else 1
            variations = num_variations(dataset.concepts[example.concept]) * num_images
            for resize_crop in example.resize_crops:
                counts[resize_crop.bucket] += variations if is_cached else 0
    return counts
