"""The presets that a machine can train, with the download, memory and time of each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from modules.config.presets import Preset, families_for_card, list_presets, preset_for, readable_configs
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.data.subjects import PERSON
from modules.estimate.passes import count
from modules.estimate.step_time import step_seconds
from modules.families.registry import FAMILIES, files_of, newest_families, published
from modules.memory.part_plan import PartPlan
from modules.system.paths import from_root
from trainer.preflight.machine import Machine
from trainer.preflight.model import downloaded_folder
from trainer.preflight.run_budget import TIGHT, Budget, known_budget, on_a_gpu
from trainer.preflight.search import StepTimes

MAX_IMAGE_SECONDS = 30.0
"""The longest time of an image's part of a step on a processor. A run takes a thousand of them and more: beyond this,
most of a day. A LoRA of a small model at 512 pixels takes a few seconds, one of a large model at 1024 some minutes."""
_USUAL_IMAGES = 20
_NEWEST = 2  # families that are offered first
_MOST = 3


@dataclass(frozen=True, slots=True, eq=False)
class PresetEstimate:
    """What a preset needs on a machine: its model's download (0 if it is here), its memory, and the time of a step."""

    preset: Preset
    config: Config
    download_bytes: int
    memory_bytes: int
    step_seconds: float

    @property
    def family(self) -> str:
        """The label of its family."""
        return FAMILIES[self.config.model.family.name].label

    @property
    def images_per_step(self) -> int:
        """The number of images in a step."""
        return self.config.training.batch_size * self.config.training.accumulation_steps

    @property
    def image_seconds(self) -> float:
        """The time of an image's part of a step."""
        return self.step_seconds / self.images_per_step

    def seconds(self, num_images: int) -> float:
        """Return the time of a run of the usual length for so many images, without loading and samples."""
        return math.ceil(PERSON.views(num_images) / self.images_per_step) * self.step_seconds


def offers(machine: Machine, configs: Mapping[Preset, Config] | None = None) -> tuple[PresetEstimate, ...]:
    """Return up to three presets of a LoRA that a machine can train: the newest models, and the one that is fastest.

    Without a GPU only those whose steps a processor computes soon enough, the fastest first. For a background thread.
    `configs` are those to choose from, by default all built-in ones.
    """
    configs = readable_configs(list_presets()) if configs is None else configs
    fast_first = families_for_card(configs, machine.card_gb)
    families = (*fast_first, *(f for f in newest_families() if f not in fast_first))
    presets = (preset_for(family, Config(), machine.card_gb, configs) for family in families)
    estimates = (estimate_preset(preset, configs[preset], machine) for preset in presets if preset is not None)
    fitting = [e for e in estimates if e is not None and fits(e, machine)]
    by_time = sorted(fitting, key=lambda e: e.image_seconds)
    if machine.gpu is None:
        return tuple(by_time[:_MOST])
    return tuple(dict.fromkeys((*fitting[:_NEWEST], *by_time[:1], *fitting)))[:_MOST]


def fits(estimate: PresetEstimate, machine: Machine) -> bool:
    """Return whether a machine can train a preset: its memory, the disk for the model, and the time on a processor."""
    memory = machine.memory_bytes if machine.gpu is None else machine.gpu.total_bytes
    if estimate.memory_bytes > TIGHT * memory:
        return False
    if machine.disk_bytes is not None and estimate.download_bytes > TIGHT * machine.disk_bytes:
        return False
    return machine.gpu is not None or estimate.image_seconds <= MAX_IMAGE_SECONDS


def estimate_preset(preset: Preset, config: Config, machine: Machine) -> PresetEstimate | None:
    """Return what a preset needs on a machine; None where it cannot be estimated."""
    sides = [side for side in config.data.resolution_px if isinstance(side, int)]
    side = max(sides, default=config.family.default_resolution_px)
    budget = known_budget(config, {Size(side, side): _USUAL_IMAGES})
    if budget is None:
        return None
    budget = budget if machine.gpu is None else on_a_gpu(budget)
    facts = StepTimes(budget).facts(config)
    seconds = step_seconds(facts, num_cores=machine.num_cores)
    return PresetEstimate(preset, config, _download_bytes(budget), budget.peak_bytes, seconds)


def _download_bytes(budget: Budget) -> int:
    """Return the bytes of the base model that a run downloads first; 0 for one that is on this machine."""
    config = budget.config
    name = config.model.base_model.strip()
    if from_root(name).exists() or downloaded_folder(config) is not None:
        return 0
    family = config.model.family.name
    model = published(files_of(family).repository_model(name))
    weights = (budget.passes.weights(part, PartPlan()).own.values() for part in budget.run.plans)
    return model.weight_bytes * sum(map(count, weights))
