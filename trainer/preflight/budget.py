"""Whether a run fits: its memory on the card, its files on the disk, told before it starts. Torch-free.

Estimates warn and never forbid, but for a result or a first backup that cannot be written at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from modules.config.schema import Config
from modules.data.buckets import Size
from modules.estimate.architecture import Architecture, architecture_of
from modules.estimate.disk import (
    DiskNeed,
    backup_bytes,
    file_system_of,
    free_bytes,
    latents_bytes,
    num_backups,
    result_bytes,
    text_bytes,
)
from modules.estimate.passes import Passes
from modules.estimate.run import MemoryEstimate, RunPlan, estimate, in_gb
from modules.families.registry import FAMILIES, memory_of
from modules.memory.tape import FLOAT32_BYTES
from modules.settings.every import Every
from modules.system.gpu_memory import GpuMemory, gpu_memory
from modules.system.paths import from_root
from modules.system.problem import Problem
from trainer.preflight.memory_plan import ITEM_BYTES, run_plan
from trainer.preflight.savings import peak_with_all, worthwhile_savings

Counts = Mapping[Size, int]
FreeBytes = Callable[[Path], int | None]

_TIGHT = 0.95  # of what is free: the estimate is within a few percent, and the allocator wants some air
# What reading shapes from a config.json raises that says something else than it should: a name that is missing, a text
# or nothing where a number is multiplied, a list where an object is asked. It holds for nothing but that reading.
_NO_CONFIG = (KeyError, TypeError, ValueError, IndexError, AttributeError)


@dataclass(frozen=True, slots=True, eq=False)
class Budget:
    """A run as the estimates see it: its model's passes and its plan."""

    config: Config
    architecture: Architecture
    passes: Passes
    run: RunPlan

    def memory(self) -> MemoryEstimate:
        """Return the memory it takes on its device."""
        return estimate(self.passes, self.run, is_published=self.architecture.is_published)


def memory_estimate(config: Config, sizes: Counts) -> MemoryEstimate | None:
    """Return what a run takes on its training device, from shapes alone; None where its model does not tell.

    `sizes` are those of its images with their numbers, as `Dataset.bucket_counts` gives them.
    """
    try:
        budget = _budget(config, sizes)
        return budget.memory() if budget else None
    except _NO_CONFIG:  # a part's config.json that is none; the check of the model says so
        return None


def describe_memory(config: Config, sizes: Counts) -> str:
    """Return the estimate as a line for the preview; nothing where there is none."""
    found = memory_estimate(config, sizes)
    if found is None:
        return ""
    return f"{found} Counted for the published model, for yours is not here yet." if found.is_published else str(found)


def memory_problems(
    config: Config, sizes: Counts, *, memory_of: Callable[[str], GpuMemory | None] = gpu_memory
) -> Iterator[Problem]:
    """Yield a warning where a run takes more than its card has free, with what would help and by how much.

    `memory_of(device)` tells what the card has; nothing is said where it does not know.
    """
    card = memory_of(config.general.train_device)
    if card is None:
        return
    try:
        budget = _budget(config, sizes)
        found = budget.memory() if budget else None
    except _NO_CONFIG:
        return
    if budget is not None and found is not None:
        yield from _too_much(budget, found, card)


def disk_need(config: Config, sizes: Counts, *, num_captions: int) -> DiskNeed | None:
    """Return what a run writes: caches, one backup, the result; None where its model does not tell.

    `num_captions` are the different captions.
    """
    try:
        budget = _budget(config, sizes)
        return _disk_need(budget, sizes, num_captions) if budget else None
    except _NO_CONFIG:
        return None


def disk_problems(
    config: Config, sizes: Counts, *, num_captions: int, total_steps: int, free: FreeBytes = free_bytes
) -> Iterator[Problem]:
    """Yield an error where the result or the first backup cannot be written, a warning where all together is tight.

    `num_captions` are the different captions; `free(path)` tells the free bytes where a path lies.
    """
    need = disk_need(config, sizes, num_captions=num_captions)
    if need is None:
        return
    refused = list(_cannot_be_written(config, need, free))
    yield from refused or _tight(config, need, total_steps, free)


def _budget(config: Config, sizes: Counts) -> Budget | None:
    architecture = architecture_of(config.model.base_model, config.model.family)
    run = run_plan(config, architecture, sizes) if architecture and sizes else None
    if architecture is None or run is None:
        return None
    return Budget(config, architecture, Passes(FAMILIES[config.model.family], architecture.configs), run)


def _too_much(budget: Budget, found: MemoryEstimate, card: GpuMemory) -> Iterator[Problem]:
    if found.peak.total_bytes <= _TIGHT * card.free_bytes:
        return
    used = card.total_bytes - card.free_bytes
    has = f"the card has {in_gb(card.total_bytes)}"
    if used > _TIGHT * 0.1 * card.total_bytes:
        has += f", of which other programs use {in_gb(used)}"
    savings = worthwhile_savings(budget.config, budget.passes, budget.run)
    told = [f"{w.saving.words} ({w.saving.path}) saves about {in_gb(w.saved_bytes)}" for w in savings]
    advice = _sentence("; ".join(told)) if told else "Use smaller images or train less of the model."
    if len(told) > 1:
        least = peak_with_all(budget.passes, budget.run, savings)
        fits = "which fits" if least <= _TIGHT * card.free_bytes else "which is still too much: use smaller images, too"
        advice += f" All of it together comes to about {in_gb(least)}, {fits}."
    path = savings[0].saving.path if savings else "data.resolution_px"
    yield Problem(path, f"{found} That is more than there is room for: {has}.", "warning", advice)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _disk_need(budget: Budget, sizes: Counts, num_captions: int) -> DiskNeed:
    config, run, configs = budget.config, budget.run, budget.architecture.configs
    spec = FAMILIES[config.model.family]
    weights = {name: budget.passes.weights(name, plan) for name, plan in run.plans.items()}
    encoders = spec.names_of("vae") or spec.names_of("denoiser")  # pixels are kept as the denoiser reads them
    latents = latents_bytes(
        {(s.width_px, s.height_px): n for s, n in sizes.items()},
        factor=spec.latent_factor,
        channels=spec.latent_channels,
        item_bytes=run.plans[encoders[0]].weight_bytes,
    )
    text = text_bytes(num_captions, size=memory_of(config.model.family).text_size(configs), item_bytes=FLOAT32_BYTES)
    return DiskNeed(
        backup_bytes=backup_bytes(
            weights,
            run.plans,
            optimizer=run.optimizer,
            keeps_copies=run.keeps_copies,
            has_average=run.average != "off",
        ),
        result_bytes=result_bytes(
            weights,
            run.plans,
            is_whole_model=config.training.trains == "full",
            item_bytes=ITEM_BYTES.get(config.output.dtype, FLOAT32_BYTES),
        ),
        latents_bytes=latents if "encoding images" in run.on_device else 0,
        text_bytes=text if "encoding captions" in run.on_device else 0,
    )


def _backs_up(config: Config) -> bool:
    return config.backup.at_end or not config.backup.every.is_never


def _cannot_be_written(config: Config, need: DiskNeed, free: FreeBytes) -> Iterator[Problem]:
    for path, name, what, size in (
        ("output.destination", config.output.destination, "The result", need.result_bytes),
        ("general.workspace_dir", config.general.workspace_dir, "A backup", need.backup_bytes * _backs_up(config)),
    ):
        there = free(from_root(name))
        if there and size > there:  # where nothing at all is free, the check of places has said so
            yield Problem(
                path,
                f"{what} takes about {in_gb(size)}, and where {name} lies {in_gb(there)} are free.",
                advice="Make room there, or choose another place.",
            )


def _tight(config: Config, need: DiskNeed, total_steps: int, free: FreeBytes) -> Iterator[Problem]:
    """Yield a warning for each file system that all of a run may fill up."""
    epochs = config.training.epochs
    backups = num_backups(config.backup.keep, _times(config.backup.every, total_steps, epochs) + config.backup.at_end)
    saves = int(_times(config.backup.save_every, total_steps, epochs)) + config.validation.keep_best
    takers = [
        ("general.cache_dir", config.general.cache_dir, "caches", need.cache_bytes),
        (
            "general.workspace_dir",
            config.general.workspace_dir,
            "backups",
            backups * need.backup_bytes * _backs_up(config),
        ),
        ("general.workspace_dir", config.general.workspace_dir, "saves", saves * need.result_bytes),
        ("output.destination", config.output.destination, "result", need.result_bytes),
    ]
    by_system: dict[int | None, list[tuple[str, str, str, int]]] = {}
    for taker in takers:
        by_system.setdefault(file_system_of(from_root(taker[1])), []).append(taker)
    for group in by_system.values():
        largest = max(group, key=lambda t: t[3])
        there, total = free(from_root(largest[1])), sum(t[3] for t in group)
        if there is not None and total > _TIGHT * there:
            parts = ", ".join(f"{in_gb(size)} {what}" for _, _, what, size in group if size)
            yield Problem(
                largest[0],
                f"The run may write about {in_gb(total)} ({parts}), and {in_gb(there)} are free there.",
                "warning",
                "Make room, keep fewer backups (backup.keep), save less often (backup.save_every), or choose another "
                "place.",
            )


def _times(every: Every, total_steps: int, epochs: int) -> float:
    """Return how often something is due in a run; what goes by time counts once, for nobody knows how long it is."""
    if every.is_never:
        return 0
    match every.unit:
        case "step":
            return total_steps // every.n
        case "epoch":
            return epochs // every.n
        case _:
            return 1
