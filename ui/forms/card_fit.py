"""Fits a preset to the memory that is free on the card: it is made for the whole card."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from modules.config.schema import Config
from modules.settings.edit import get_path
from modules.system.problem import format_size
from ui.forms.model import Document, FormModel
from ui.loop.background import Background, Job, cancel

if TYPE_CHECKING:
    from trainer.preflight.fit import Fit


class CardFit:
    """Fits a preset that has just been loaded, in the background; one of the user's own stays as it is."""

    def __init__(
        self,
        form: FormModel,
        background: Background,
        notify: Callable[[str], None],
        *,
        is_card_free: Callable[[], bool],
    ) -> None:
        """`is_card_free` returns whether the next run trains here, on a card that no run of this window uses."""
        self._form = form
        self._background = background
        self._notify = notify
        self._is_card_free = is_card_free
        self._job: Job | None = None

    def follow_load(self, loaded_text: str, apply: Callable[[Config], None]) -> None:
        """Apply what fits the loaded preset, or report that it does not fit, after the text about its load."""
        cancel(self._job)
        if self._is_card_free():
            loaded = self._form.document
            done = partial(self._follow_fit, loaded, loaded_text, apply)
            self._job = self._background.run(partial(find_fit, loaded.config), done)

    def _follow_fit(self, loaded: Document, loaded_text: str, apply: Callable[[Config], None], fit: Fit | None) -> None:
        """Apply a fit, or report it; another load or a run may have begun, and the user may be typing."""
        form = self._form
        if fit is None or form.baseline is not loaded.baseline or not self._is_card_free():
            return
        if fit.fits and loaded.source.kind == "built_in" and not form.drafts:
            paths = [path for change in fit.changes for path, _ in change.move.values]
            if all(form.value(path) == get_path(loaded.config, path) for path in paths):  # else the user's stays
                config = form.config
                for change in fit.changes:
                    config = change.move.apply_to(config)
                apply(config)
                self._notify(describe_applied_fit(fit))
        elif form.config is loaded.config:
            self._notify(f"{loaded_text} {describe_misfit(fit)}")


def find_fit(config: Config) -> Fit | None:
    """Return the settings with which a config fits the memory that is free on the card now, or come nearest.

    None if it fits as it is. For a background thread.
    """
    # Imported here: the window is drawn without the estimate's code.
    from trainer.preflight.machine import this_machine
    from trainer.preflight.presets_here import fit_to_free_memory

    return fit_to_free_memory(config, this_machine(config))


def describe_applied_fit(fit: Fit) -> str:
    """Return a sentence that names the settings changed to fit a preset."""
    changed = "; ".join(worth.move.words for worth in fit.changes)
    return f"Fitted to the {format_size(fit.card_bytes)} that are free on the card now: {changed}. Ctrl+Z undoes it."


def describe_misfit(fit: Fit) -> str:
    """Return a sentence on a preset that needs more memory than is free, and is left as it is."""
    needed, free = format_size(fit.before_bytes), format_size(fit.card_bytes)
    what = "finds settings that fit" if fit.fits else "shows what comes nearest"
    return f"It needs about {needed} of memory, and {free} are free on the card now. Fit to my card {what}."
