"""Whether the run fits the GPU and the disk, estimated from shapes and image counts.

On a machine without a GPU, runs that are sized for one are errors, and slow ones warnings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product

from modules.config.schema import Config
from modules.config.usage import learns_from
from modules.data.buckets import Size
from modules.data.dataset import Dataset
from modules.data.versions import num_variations
from modules.estimate.step_time import step_seconds
from modules.system import hardware
from modules.system.hardware import GpuMemory, gpu_memory
from modules.system.problem import Problem, about, count, format_size
from trainer.launch import first_device
from trainer.preflight.budget import (
    cache_memory_problems,
    disk_problems,
    layer_problems,
    memory_problems,
    start_problems,
)
from trainer.preflight.machine import Machine, this_machine
from trainer.preflight.presets_here import MAX_IMAGE_SECONDS, names_on_processor
from trainer.preflight.report import Progress, RunFigures, no_progress
from trainer.preflight.run_budget import TIGHT, Budget, problems_of_reading
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
    progress: Progress = no_progress,
) -> Iterator[Problem]:
    """Yield problems of layer names, memory and disk space.

    For a new run also which layers of the adapter file that it starts from it trains. `memory_of(device)` returns the
    GPU's memory; `progress` is called in what takes long.
    """
    config = budget.config
    yield from layer_problems(budget)
    if is_new:
        yield from start_problems(budget)
    yield from memory_problems(budget, memory_of=memory_of)
    yield from problems_of_processor(budget, total_steps=total_steps, progress=progress)
    if is_new:
        yield from problems_of_subject_length(budget, training)
    yield from problems_of_reading(budget)
    yield from memory_problems_of_sampling_model(budget)
    num_captions = num_cached_captions(config, training, validation)
    versions = cached_sizes_of(training, validation, reads_images=learns_from(config) != "prompts")
    yield from disk_problems(budget, versions, num_captions=num_captions, total_steps=total_steps)
    yield from cache_memory_problems(budget, versions, num_captions=num_captions)


def figures_of(
    budget: Budget, *, num_steps: int, memory_of: Callable[[str], GpuMemory | None] = gpu_memory
) -> RunFigures:
    """Return the figures of a run that takes so many steps. `memory_of(device)` returns the GPU's memory."""
    config = budget.config
    step = StepTimes(budget).seconds(config, num_cores=hardware.num_cores())
    gpu = memory_of(first_device(config))
    is_shared = gpu is None and hardware.here().kind_of(config.general.train_device) in ("cpu", "mps")
    device_bytes = gpu.total_bytes if gpu is not None else hardware.total_memory() if is_shared else None
    return RunFigures(step * num_steps, budget.peak_bytes, device_bytes, on_gpu=not is_shared)


def sizes_of(training: Dataset, validation: Dataset) -> Counter[Size]:
    """Return the number of training and validation images at each size."""
    return Counter(training.bucket_counts) + Counter(validation.bucket_counts)


def num_cached_captions(config: Config, training: Dataset, validation: Dataset) -> int:
    """Return how many captions a text cache has besides the empty one, at most.

    Those that a text encoder reads together with reference images count once for each of their images: with caption
    dropout also the empty one, and all of them twice where images are mirrored at random.
    """
    sees, captions = config.family.seen_with_captions is not None, set[object]()
    for dataset in (training, validation):
        dropped = ("",) if dataset is training and config.data.caption_dropout > 0 else ()
        for example in dataset.examples:
            texts = dataset.texts(example, run_seed=config.general.seed)
            if not (sees and example.input_files):
                captions.update(texts)
                continue
            files = tuple(file.path for file in example.input_files.values())
            num_flips = 2 if dataset.concepts[example.concept].image.flip == "random" else 1
            captions.update(product((*texts, *dropped), [files], range(num_flips)))
    return len(captions - {""})


def cached_sizes_of(training: Dataset, validation: Dataset, *, reads_images: bool = True) -> Counter[Size]:
    """Return the number of cached versions of training and validation images at each size.

    Without `reads_images` training images have none, so that a size may have the number 0.
    """
    counts: Counter[Size] = Counter()
    for dataset, is_cached in ((training, reads_images), (validation, True)):
        num_images = 2 if dataset.has_pairs else 1
        for concept in dataset.concepts:
            variations = num_variations(concept) * num_images if is_cached else 0
            of_concept = dataset.buckets[concept.first_example : concept.first_example + concept.num_examples]
            shared = {id(sizes): sizes for sizes in of_concept}  # a few, which most examples share
            for number, num_examples in Counter(map(id, of_concept)).items():
                for size in shared[number]:
                    counts[size] += variations * num_examples
    return counts


_LONG_SECONDS = 1800.0  # a run of less is not worth a warning
_DEVICE = "general.train_device"


def problems_of_processor(
    budget: Budget,
    *,
    total_steps: int,
    machine_of: Callable[[Config], Machine] = this_machine,
    progress: Progress = no_progress,
) -> Iterator[Problem]:
    """Yield an error for a run that needs a GPU where there is none, a warning for one that takes long without it.

    Nothing where the run may use a GPU, or where that is not certain. A run that only takes too long is a warning, too,
    if the processor was chosen by name. `machine_of(config)` returns the hardware of this machine.
    """
    config = budget.config
    if hardware.here().kind_of(config.general.train_device) != "cpu":
        return
    machine, needed = machine_of(config), budget.peak_bytes
    is_chosen = config.general.train_device.strip().lower() == "cpu"
    why = "The training device is the processor (cpu)." if is_chosen else machine.why_no_gpu
    if needed > TIGHT * machine.memory_bytes:
        has = f"the computer has {format_size(machine.memory_bytes)}"
        message = f"{why} The run needs about {format_size(needed)} of memory, and {has}."
        yield Problem(_DEVICE, message, advice=_other_ways(machine, progress), remedy="preset")
        return
    step = step_seconds(StepTimes(budget).facts(config), num_cores=machine.num_cores)
    times = (
        f"On {count(machine.num_cores, 'core')} of the processor a step takes about {about(step)}, and the "
        f"{count(total_steps, 'step')} of the run about {about(step * total_steps)}, without the samples."
    )
    all_the_same = "" if is_chosen else " To train here all the same, set the device to cpu."
    if step > MAX_IMAGE_SECONDS * config.training.batch_size * config.training.accumulation_steps:
        yield Problem(
            _DEVICE,
            f"{why} The run is sized for a GPU. {times}",
            "warning" if is_chosen else "error",
            _other_ways(machine, progress) + all_the_same,
            "preset",
        )
    elif step * total_steps > _LONG_SECONDS:
        yield Problem(
            _DEVICE, f"{why} {times}", "warning", "Smaller images and fewer steps are faster. A GPU takes minutes."
        )


def _other_ways(machine: Machine, progress: Progress) -> str:
    """Return the advice: presets that the processor can train, or another machine."""
    names = " or ".join(names_on_processor(machine, progress))
    smaller = f"Choose a smaller model, such as the preset {names}" if names else "Choose a smaller model"
    return f"{smaller}, or train on a machine with a GPU, your own or a rented one (Machines…, --on NAME)."
