"""Whether a run fits: its memory on the GPU and its files on the disk, checked before it starts.

Estimates only warn, except that a result, a first backup or a download that cannot be written is an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from modules.adapters.ranks import unused_ranks
from modules.adapters.registry import ADAPTERS
from modules.config.schema import Config
from modules.config.usage import inpaints, inputs_of, num_references
from modules.estimate import disk
from modules.estimate.run import MemoryEstimate
from modules.memory.part_plan import FLOAT32_BYTES
from modules.settings.every import Every
from modules.system import hardware
from modules.system.errors import DarkroomError
from modules.system.hardware import GpuMemory, free_memory, gpu_memory
from modules.system.paths import from_root
from modules.system.problem import Problem, count, format_size
from trainer.data.hub_datasets import hub_cache_dir
from trainer.launch import first_device
from trainer.preflight.memory_plan import ITEM_BYTES
from trainer.preflight.model_files import downloaded_folder
from trainer.preflight.room import automatic_parts
from trainer.preflight.run_budget import TIGHT, Budget, Counts, describe_reading, model_download_bytes
from trainer.preflight.search import Worth, advice, peak_with
from trainer.preflight.start_from import notes_on_start, trained_layers
from trainer.preflight.trained_layers import TrainedPart, idle_layer_names, of_all_ranks, parts_trained

FreeBytes = Callable[[Path], int | None]
_LONGER = 1.05  # times as long is worth mentioning
_LARGE_CAPTION_BYTES = 40_000_000


def start_problems(budget: Budget) -> Iterator[Problem]:
    """Yield which layers of its start file a new run trains, and which it keeps; nothing without such a file.

    Lines of the ranks by layer that take no layer are an error.
    """
    config, plans, passes = budget.config, budget.run.plans, budget.passes
    if config.training.trains == "adapter":
        with contextlib.suppress(DarkroomError):  # a line that cannot be read: a rule reports it
            of_all = of_all_ranks(plans)
            layers = [(part, path) for part in of_all for path in trained_layers(passes, of_all, part)]
            if (problem := unused_ranks(config.adapter, layers)) is not None:
                yield problem
        yield from _problems_of_layers(budget)
    if budget.start is not None:
        yield from notes_on_start(config, budget.start, passes, plans)


def _problems_of_layers(budget: Budget) -> Iterator[Problem]:
    """Yield the problems of the adapter's settings for the shapes of the layers that get one."""
    config, passes, plans = budget.config, budget.passes, budget.run.plans
    if (problems_of := ADAPTERS[config.adapter.name].problems) is None:
        return
    shapes = [
        passes.weights(part, plans[part]).shapes[f"{path}.weight"]
        for part in plans
        for path in trained_layers(passes, plans, part)
    ]
    yield from problems_of(config.adapter, shapes)


def layer_problems(budget: Budget) -> Iterator[Problem]:
    """Yield an error for each layer name of a layer filter that matches no layer."""
    yield from idle_layer_names(budget.passes, budget.run.plans)


def trained_parts(budget: Budget) -> tuple[TrainedPart, ...]:
    """Return the trained layers of each part of a run."""
    return tuple(parts_trained(budget.config, budget.passes, budget.run.plans))


def describe_download(budget: Budget) -> str:
    """Return the download of the base model at the start and its size, as a sentence; empty without a download."""
    size = model_download_bytes(budget)
    name = budget.config.model.base_model.strip()
    what = name if downloaded_folder(budget.config) is None else f"The rest of {name}"
    return f"{what} is downloaded first, about {format_size(size)}." if size else ""


def describe_memory(budget: Budget, placed: Budget) -> str:
    """Return the estimate as a line for the preview.

    `placed` is the budget with the free memory of the training device, which automatic checkpointing uses; the same
    budget if that is not known.
    """
    estimate = placed.memory()
    note = "Estimated for the published model, because yours is not downloaded yet." if estimate.is_published else ""
    return " ".join(filter(None, (str(estimate), _describe_blocks(budget, placed), describe_reading(budget), note)))


def _describe_blocks(least: Budget, placed: Budget) -> str:
    """Return a sentence about what automatic checkpointing will do; empty without it.

    `least` is the budget in which it recomputes everything, `placed` the one for the free memory, the same if that is
    not known.
    """
    if not automatic_parts(least.config):
        return ""
    if placed is least:
        return "Gradient checkpointing uses more where more is free, and recomputes less."
    num_blocks = sum(len(p.checkpointed_blocks) for p in placed.run.plans.values())
    if not num_blocks:
        enough = format_size(least.peak_bytes)
        more = f"; with it, {enough} would be enough" if enough != format_size(placed.peak_bytes) else ""
        return f"So much is free that gradient checkpointing is not needed{more}."
    return (
        f"Gradient checkpointing recomputes {count(num_blocks, 'block')} to fit the memory that is free now; the run "
        f"needs at least {format_size(least.peak_bytes)}."
    )


def memory_problems(budget: Budget, *, memory_of: Callable[[str], GpuMemory | None] = gpu_memory) -> Iterator[Problem]:
    """Yield a warning if a run needs more memory than its GPU has free, with the settings that would reduce it.

    `memory_of(device)` returns the GPU's memory; that it is not known is yielded, too.
    """
    device = first_device(budget.config)
    gpu = memory_of(device)
    if gpu is not None:
        yield from _too_much(budget, budget.memory(), gpu)
    elif hardware.here().kind_of(device) == "cuda" and not hardware.here().why_unknown:
        yield Problem(
            "general.train_device",
            "No tool reports the GPU's memory, so whether the run fits is not checked.",
            "info",
            "Compare the estimate with the memory of the GPU.",
        )


def disk_problems(
    budget: Budget,
    versions: Counts,
    *,
    num_captions: int,
    total_steps: int,
    free: FreeBytes = disk.free_bytes,
) -> Iterator[Problem]:
    """Yield an error if the result, the first backup or the model's download has no room, a warning if it is scarce.

    `versions`, here and below, are the sizes of the cached versions of images with their counts, `num_captions` is the
    number of distinct captions; `free(path)` returns the free bytes of a path's file system.
    """
    need = disk_need(budget, versions, num_captions=num_captions)
    download = model_download_bytes(budget)
    least = model_download_bytes(budget, most_weight_bytes=2)
    errors = list(_problems_of_places(budget.config, need, least, free))
    yield from errors or _tight(budget.config, need, download, total_steps, free)
    yield from _large_captions(budget, num_captions)


def _large_captions(budget: Budget, num_captions: int) -> Iterator[Problem]:
    """Yield a note on the cache if encoded captions are as large as images."""
    text = budget.config.family.text
    tokens = text.usual_tokens or text.chunk_tokens
    _, all_bytes = _cache_bytes(budget, {}, num_captions)
    each = all_bytes / (num_captions + 1)
    if each >= _LARGE_CAPTION_BYTES:
        yield Problem(
            "data.text_cache",
            f"Each token of a caption takes {format_size(each / tokens)} in the cache: with {tokens} tokens, about "
            f"{format_size(each)} for a caption and {format_size(all_bytes)} for the "
            f"{count(num_captions, 'caption')} of this run and the empty one.",
            "info",
            "Shorter captions need less, and so does a cache in 16 bits (the cache dtype).",
        )


def cache_memory_problems(
    budget: Budget, versions: Counts, *, num_captions: int, free: Callable[[], int] = free_memory
) -> Iterator[Problem]:
    """Yield a warning if caches in memory would not fit. `free()` returns the free bytes of the computer's memory."""
    if budget.config.data.cache_location != "memory":
        return
    needed = sum(_cache_bytes(budget, versions, num_captions))
    if needed > TIGHT * (available := free()):
        yield Problem(
            "data.cache_location",
            f"The caches need about {format_size(needed)} of memory, and {format_size(available)} are free.",
            "warning",
            "Keep them on disk, or in 16 bits (the cache dtype).",
        )


def _too_much(budget: Budget, estimate: MemoryEstimate, gpu: GpuMemory) -> Iterator[Problem]:
    if estimate.peak.total_bytes <= TIGHT * gpu.free_bytes:
        return
    used = gpu.total_bytes - gpu.free_bytes
    available = f"The GPU has {format_size(gpu.total_bytes)}"
    if used > TIGHT * 0.1 * gpu.total_bytes:
        available += f", of which other programs use {format_size(used)}"
    limit_bytes = round(TIGHT * gpu.free_bytes)
    worths = advice(budget, limit_bytes=limit_bytes)
    ways = [_describe(worth) for worth in worths]
    text = _sentence("; ".join(ways)) if ways else "Use smaller images or train less of the model."
    if len(ways) > 1:
        least = peak_with(budget, [w.move for w in worths])
        fits = "which fits" if least <= limit_bytes else "which is still too much: use smaller images, too"
        text += f" With all of them the run needs about {format_size(least)}, {fits}."
    path = worths[0].move.path if worths else "data.resolution_px"
    yield Problem(path, f"{estimate} This does not fit in the GPU's memory. {available}.", "warning", text, "memory")


def _describe(worth: Worth) -> str:
    """Return a change with its saving, and with its cost if a step takes longer with it."""
    slower = f" (a step takes {worth.time_factor:.2g} times as long)" if worth.time_factor > _LONGER else ""
    saves = (
        f"saves about {format_size(worth.saved_bytes)}" if worth.saved_bytes > 0 else "saves memory after the others"
    )
    return f"{worth.move.words} {saves}{slower}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def disk_need(budget: Budget, versions: Counts, *, num_captions: int) -> disk.DiskNeed:
    """Return the disk space a run needs: caches, one backup, the result."""
    config, run = budget.config, budget.run
    weights = {name: budget.passes.weights(name, plan) for name, plan in run.plans.items()}
    on_disk = config.data.cache_location == "disk"
    latents, text = _cache_bytes(budget, versions, num_captions) if on_disk else (0, 0)
    return disk.DiskNeed(
        backup_bytes=disk.backup_bytes(
            weights,
            run.plans,
            optimizer=run.optimizer,
            has_master_weights=run.has_master_weights,
            has_average=run.average != "off",
            has_reference=run.sampled is not None and run.sampled.copies_weights,
        ),
        result_bytes=disk.result_bytes(
            weights,
            run.plans,
            is_whole_model=config.training.trains == "full",
            item_bytes=ITEM_BYTES.get(config.output.dtype, FLOAT32_BYTES),
        ),
        latents_bytes=latents,
        text_bytes=text,
    )


def _cache_bytes(budget: Budget, versions: Counts, num_captions: int) -> tuple[int, int]:
    """Return the bytes of the caches of latents and of captions, 0 for one that the run does not have."""
    config, run = budget.config, budget.run
    spec = config.family
    kept_bytes = ITEM_BYTES.get(config.data.cache_dtype, FLOAT32_BYTES)
    encoders = spec.names_of("vae") or spec.names_of("denoiser")  # without a VAE pixels have the denoiser's dtype
    item_bytes = min(run.plans[encoders[0]].weight_bytes, kept_bytes)
    latents = disk.latents_bytes(versions, spec.latents, item_bytes=item_bytes)
    further = sum(i.delivery == "latents" and not i.reference for i in inputs_of(config))
    latents *= 1 + further + num_references(config)
    if config.masks.enabled or inpaints(config):
        latents += disk.latents_bytes(versions, replace(spec.latents, channels=1), item_bytes=FLOAT32_BYTES)
    text = disk.text_bytes(num_captions, num_elements=budget.passes.text_elements(), item_bytes=kept_bytes)
    return (
        latents if "encoding images" in run.on_device else 0,
        text if "encoding captions" in run.on_device else 0,
    )


def _backs_up(config: Config) -> bool:
    return config.backup.at_end or not config.backup.every.is_never


def _problems_of_places(config: Config, need: disk.DiskNeed, download_bytes: int, free: FreeBytes) -> Iterator[Problem]:
    for path, name, what, size in (
        ("model.hub_cache_dir", str(hub_cache_dir(config)), "The download of the base model", download_bytes),
        ("output.destination", config.output.destination, "The result", need.result_bytes),
        ("general.workspace_dir", config.general.workspace_dir, "A backup", need.backup_bytes * _backs_up(config)),
    ):
        available = free(from_root(name))
        if available and size > available:  # if nothing is free, the check of the output paths has reported it
            yield Problem(
                path,
                f"{what} needs about {format_size(size)} in {name}, and {format_size(available)} are free.",
                advice="Free some space there, or choose another folder.",
                remedy="space",
            )


def _keeps_best(config: Config) -> bool:
    """Return whether the run validates and keeps the best model."""
    has_images = any(c.enabled and c.dataset_kind == "validation" for c in config.concepts)
    return config.validation.keep_best and not config.validation.every.is_never and has_images


def _tight(
    config: Config, need: disk.DiskNeed, download_bytes: int, total_steps: int, free: FreeBytes
) -> Iterator[Problem]:
    """Yield a warning for each file system that the whole run may fill."""
    epochs = config.training.epochs
    backups = disk.num_backups(
        config.backup.keep, _times(config.backup.every, total_steps, epochs) + config.backup.at_end
    )
    saves = int(_times(config.backup.save_every, total_steps, epochs)) + _keeps_best(config)
    items = [
        ("general.cache_dir", config.general.cache_dir, "caches", need.cache_bytes),
        (
            "general.workspace_dir",
            config.general.workspace_dir,
            "backups",
            backups * need.backup_bytes * _backs_up(config),
        ),
        ("general.workspace_dir", config.general.workspace_dir, "saves", saves * need.result_bytes),
        ("output.destination", config.output.destination, "result", need.result_bytes),
        ("model.hub_cache_dir", str(hub_cache_dir(config)), "base model", download_bytes),
    ]
    by_system: dict[int | None, list[tuple[str, str, str, int]]] = {}
    for item in items:
        by_system.setdefault(disk.file_system_of(from_root(item[1])), []).append(item)
    for group in by_system.values():
        largest = max(group, key=lambda t: t[3])
        available, total = free(from_root(largest[1])), sum(t[3] for t in group)
        if available is not None and total > TIGHT * available:
            parts = ", ".join(f"{format_size(size)} {what}" for _, _, what, size in group if size)
            yield Problem(
                largest[0],
                f"The run may write about {format_size(total)} ({parts}), and {format_size(available)} are free there.",
                "warning",
                "Free some space, keep fewer rolling backups, save less often, or choose another folder.",
                "space",
            )


def _times(every: Every, total_steps: int, epochs: int) -> float:
    """Return how often something is due in a run; by time it counts once, because the duration is not known."""
    if every.is_never:
        return 0
    match every.unit:
        case "step":
            return total_steps // every.n
        case "epoch":
            return epochs // every.n
        case _:
            return 1
