"""This computer, for the page Train a LoRA: what it has, and the presets that it can train, as sentences."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from modules.config.schema import Config
from modules.data.subjects import USUAL_IMAGES
from modules.system.problem import about, count, format_size
from ui.loop.background import Report

if TYPE_CHECKING:
    from trainer.preflight.machine import Machine
    from trainer.preflight.presets_here import Offer, RunEstimate

_GB = 1e9


@dataclass(frozen=True, slots=True)
class Here:
    """This computer, the presets for it (None until they are known), and what the current settings need on it.

    `needs` is None where it is not known; then `fits`.
    """

    machine: Machine
    offers: tuple[Offer, ...] | None = None
    needs: RunEstimate | None = None
    fits: bool = True

    @property
    def has_gpu(self) -> bool:
        """Whether a run can use a GPU."""
        return self.machine.gpu is not None


def find_machine() -> Machine:
    """Return this computer. For a background thread: it runs a tool of the driver."""
    from trainer.preflight.machine import this_machine

    return this_machine()


def find_offers(machine: Machine, report: Report) -> tuple[Offer, ...]:
    """Return the presets for a machine. For a background thread, which waits while the window is busy."""
    from trainer.preflight.presets_here import offers

    return offers(machine, progress=partial(report))


def find_needs(config: Config, machine: Machine) -> tuple[RunEstimate | None, bool]:
    """Return the needs of a config on a machine, and whether it fits. For a background thread."""
    from trainer.preflight.presets_here import estimate_run, fits

    needs = estimate_run(config, machine)
    return needs, needs is None or fits(needs, machine)


def needs_key(config: Config) -> tuple[object, ...]:
    """Return the settings on which what a run needs depends."""
    parts = (config.model, config.parts, config.quantization, config.data, config.training, config.adapter)
    return (*parts, config.embeddings, config.reward, config.sampling, config.general.train_device)


def describe_machine(machine: Machine) -> str:
    """Return the hardware of this computer as a sentence."""
    if machine.gpu is not None:
        processor = f"a GPU with {machine.card_gb} GB"
    else:
        processor = f"no GPU, a processor with {count(machine.num_cores, 'core')}"
    disk = "" if machine.disk_bytes is None else f", {_whole_gb(machine.disk_bytes)} free on the disk"
    return f"This computer: {processor}, {_whole_gb(machine.memory_bytes)} of memory{disk}."


def describe_offers(here: Here) -> str:
    """Return the sentence about the offered presets, which follows the one about the computer."""
    if here.offers is None:
        return "Looking for the presets that it can train…"
    if not here.offers:
        return "It has too little memory for the presets. Try the demo, or train on a machine with a GPU."
    if here.has_gpu:
        return "These presets fit it: each sets everything. Times are rough, for a mid-range card."
    reason = "" if here.machine.why_no_gpu == "No GPU was found." else f" {here.machine.why_no_gpu}"
    only = "This preset runs" if len(here.offers) == 1 else "These presets run"
    return f"{only} on it, slowly; the others need a GPU.{reason}"


def describe_offer(offer: Offer, num_images: int) -> str:
    """Return a preset with its download, its memory and its time for so many images, or for the usual number."""
    needs = offer.needs
    images = num_images or USUAL_IMAGES
    download = f"{format_size(needs.download_bytes)} to download" if needs.download_bytes else "already downloaded"
    memory = f"{format_size(needs.memory_bytes)} of memory"
    return f"{offer.family}: {download}, {memory}, about {about(needs.seconds(images))} for {count(images, 'image')}."


def describe_misfit(here: Here, num_images: int) -> str:
    """Return why the current settings do not fit this computer; empty if they do."""
    needs, machine = here.needs, here.machine
    if needs is None or here.fits:
        return ""
    of_computer = machine.memory_bytes if machine.gpu is None else machine.gpu.total_bytes
    if needs.memory_bytes > of_computer or machine.gpu is not None:
        has = f"the card has {machine.card_gb}" if machine.gpu else f"this computer has {of_computer / _GB:.0f}"
        return f"These settings need about {format_size(needs.memory_bytes)} of memory, and {has}."
    images = num_images or USUAL_IMAGES
    time = f"about {about(needs.seconds(images))} for {count(images, 'image')}"
    return f"These settings are sized for a GPU: without one, {time}."


def describe_needs(here: Here) -> str:
    """Return the memory that the current settings need, and how much this computer has."""
    machine = here.machine
    if here.needs is None:
        return "What these settings need is not known yet."
    needed = f"At least {format_size(here.needs.memory_bytes)} of"
    if machine.gpu is not None:
        return f"{needed} the card's {machine.card_gb} GB."
    return f"{needed} this computer's {_whole_gb(machine.memory_bytes)}. Without a GPU training is slow."


def _whole_gb(size_bytes: int) -> str:
    return f"{size_bytes / _GB:,.0f} GB"
