"""The presets that a machine can train, with the download, memory and time of each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from modules.config.presets import MAX_OFFERED, Preset, families_for_card, list_presets, preset_for, readable_configs
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.data.subjects import PERSON, USUAL_IMAGES
from modules.families.registry import FAMILIES, newest_families
from trainer.preflight.fit import Fit, fit_budget
from trainer.preflight.machine import Machine
from trainer.preflight.passes import ESTIMATING
from trainer.preflight.report import Progress, no_progress
from trainer.preflight.run_budget import TIGHT, Budget, known_budget, model_download_bytes, on_a_gpu
from trainer.preflight.search import StepTimes

MAX_IMAGE_SECONDS = 20.0
"""The longest time of an image's part of a step on a processor. A run takes a thousand of them and more: beyond this,
most of a day. A LoRA of a small model at 512 pixels takes a few seconds, one of a large model at 1024 some minutes."""
_NEWEST = 2  # families that are offered first


@dataclass(frozen=True, slots=True)
class RunEstimate:
    """The needs of a run on a machine: its model's download (0 if it is here), its memory, and the time of a step."""

    download_bytes: int
    memory_bytes: int
    step_seconds: float
    images_per_step: int

    @property
    def image_seconds(self) -> float:
        """The time of an image's part of a step."""
        return self.step_seconds / self.images_per_step

    def seconds(self, num_images: int) -> float:
        """Return the time of a run of the usual length for so many images, without loading and samples."""
        return math.ceil(PERSON.views(num_images) / self.images_per_step) * self.step_seconds


@dataclass(frozen=True, slots=True)
class Offer:
    """A preset that a machine can train: the label of its family, and its needs."""

    preset: Preset
    family: str
    needs: RunEstimate


def offers(
    machine: Machine, configs: Mapping[Preset, Config] | None = None, *, progress: Progress = no_progress
) -> tuple[Offer, ...]:
    """Return up to three presets of a LoRA that a machine can train: the newest models, and the one that is fastest.

    Without a GPU only those whose steps a processor computes soon enough, the fastest first. For a background thread.
    `configs` are those to choose from, by default all built-in ones; `progress` is called before each.
    """
    configs = readable_configs(list_presets()) if configs is None else configs
    fast_first = families_for_card(configs, machine.card_gb)
    fitting: list[Offer] = []
    for family in (*fast_first, *(f for f in newest_families() if f not in fast_first)):
        progress(ESTIMATING, len(fitting), 0)
        if (preset := preset_for(family, Config(), machine.card_gb, configs)) is None:
            continue
        needs = estimate_run(configs[preset], machine)
        if needs is not None and fits(needs, machine) and _has_room(needs, machine):
            fitting.append(Offer(preset, FAMILIES[family].label, needs))
    by_time = sorted(fitting, key=lambda offer: offer.needs.image_seconds)
    if machine.gpu is None:
        return tuple(by_time[:MAX_OFFERED])
    return tuple(dict.fromkeys((*fitting[:_NEWEST], *by_time[:1], *fitting)))[:MAX_OFFERED]


_known_names: dict[Machine, tuple[str, ...]] = {}


def names_on_processor(machine: Machine, progress: Progress = no_progress) -> tuple[str, ...]:
    """Return the names of the presets that the processor of a machine can train, the fastest first.

    All are estimated, once, which may take a minute: `progress` is called before each, and may raise to stop.
    """
    machine = replace(machine, gpu=None, disk_bytes=None, why_no_gpu="")
    if machine not in _known_names:
        _known_names[machine] = tuple(offer.preset.name for offer in offers(machine, progress=progress))
    return _known_names[machine]


def fits(needs: RunEstimate, machine: Machine) -> bool:
    """Return whether a machine can train a run: in its memory and, on a processor, soon enough."""
    memory = machine.memory_bytes if machine.gpu is None else machine.gpu.total_bytes
    is_fast = machine.gpu is not None or needs.image_seconds <= MAX_IMAGE_SECONDS
    return is_fast and needs.memory_bytes <= TIGHT * memory


def fit_to_free_memory(config: Config, machine: Machine) -> Fit | None:
    """Return the settings with which a run fits the free memory of a machine's GPU, or comes closest to fitting it.

    None if it fits as it is, or cannot be estimated. A preset is made for the whole card, of which a desktop and its
    programs have a part.
    """
    if machine.gpu is None or (budget := _square_budget(config)) is None:
        return None
    budget = on_a_gpu(budget)
    if budget.peak_bytes <= TIGHT * machine.gpu.free_bytes:
        return None
    return fit_budget(budget, card_bytes=machine.gpu.free_bytes)


def estimate_run(config: Config, machine: Machine) -> RunEstimate | None:
    """Return the needs of a run on a machine, with square images; None where they cannot be estimated."""
    budget = _square_budget(config)
    if budget is None:
        return None
    budget = budget if machine.gpu is None else on_a_gpu(budget)
    return RunEstimate(
        model_download_bytes(budget),
        budget.peak_bytes,
        StepTimes(budget).seconds(config, num_cores=machine.num_cores),
        config.training.batch_size * config.training.accumulation_steps,
    )


def download_bytes(config: Config) -> int | None:
    """Return the bytes of the base model that a run downloads first; None where its shapes are not known."""
    side = config.family.default_resolution_px
    budget = known_budget(config, {Size(side, side): 1})
    return None if budget is None else model_download_bytes(budget)


def _square_budget(config: Config) -> Budget | None:
    sides = [side for side in config.data.resolution_px if isinstance(side, int)]
    side = max(sides, default=config.family.default_resolution_px)
    return known_budget(config, {Size(side, side): USUAL_IMAGES})


def _has_room(needs: RunEstimate, machine: Machine) -> bool:
    return machine.disk_bytes is None or needs.download_bytes <= TIGHT * machine.disk_bytes
