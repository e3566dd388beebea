"""Fits a preset to the memory that is free on the card: it is made for the whole card."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modules.config.schema import Config
from modules.system.problem import format_size

if TYPE_CHECKING:
    from trainer.preflight.fit import Fit


def find_fit(config: Config) -> Fit | None:
    """Return the settings with which a config fits the memory that is free on the card now, or come nearest.

    None if it fits as it is. For a background thread.
    """
    # Imported here: the window is drawn without the estimate's code.
    from trainer.preflight.machine import this_machine
    from trainer.preflight.presets_here import fit_to_free_memory

    return fit_to_free_memory(config, this_machine())


def describe_applied_fit(fit: Fit) -> str:
    """Return a sentence that names the settings changed to fit a preset."""
    changed = "; ".join(worth.move.words for worth in fit.changes)
    return f"Fitted to the {format_size(fit.card_bytes)} that are free on the card now: {changed}. Ctrl+Z undoes it."


def describe_misfit(fit: Fit) -> str:
    """Return a sentence on a preset that needs more memory than is free, and is left as it is."""
    needed, free = format_size(fit.before_bytes), format_size(fit.card_bytes)
    what = "finds settings that fit" if fit.fits else "shows what comes nearest"
    return f"It needs about {needed} of memory, and {free} are free on the card now. Fit to my card {what}."
