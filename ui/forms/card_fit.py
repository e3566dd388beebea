"""Fits a built-in preset to the memory that is free on the card: it is made for the whole card."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modules.config.schema import Config
from modules.system.problem import format_size

if TYPE_CHECKING:
    from trainer.preflight.fit import Fit


def find_fit(config: Config) -> Fit | None:
    """Return the settings with which a config fits the memory that is free on the card now; None if none are needed.

    For a background thread.
    """
    # Imported here: the window is drawn without the estimate's code.
    from trainer.preflight.machine import this_machine
    from trainer.preflight.presets_here import fit_to_free_memory

    return fit_to_free_memory(config, this_machine())


def describe_applied_fit(fit: Fit) -> str:
    """Return a sentence that names the settings changed to fit a preset."""
    changed = "; ".join(worth.move.words for worth in fit.changes)
    return f"Fitted to the {format_size(fit.card_bytes)} that are free on the card now: {changed}. Ctrl+Z undoes it."
