"""The end of a run: what can be resumed now, and why a run has failed, with the remedy for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from modules.config.schema import Config
from modules.system.remedies import REMEDIES
from ui.features.run.model import Starter
from ui.forms.context import Context
from ui.loop.interaction import ACTIONS_OF_REMEDIES, Failure
from ui.loop.wording import describe_continuation

if TYPE_CHECKING:  # the window needs it when a run fails
    from trainer.events import RunFailed

_MAX_DETAILS_CHARS = 50_000


class RunEnds:
    """Looks for the backup of a run that has ended, and shows its failure unless another part of the window does."""

    def __init__(self, context: Context, starter: Starter, *, is_shown_elsewhere: Callable[[], bool]) -> None:
        self._context = context
        self._starter = starter
        self._is_shown_elsewhere = is_shown_elsewhere
        self._was_active = False
        context.session.changed.subscribe(self._follow)

    def _follow(self) -> None:
        is_active = self._context.session.is_active
        if self._was_active and not is_active:
            self._starter.look_for_backup()
            if self._context.session.state.failed is not None and not self._is_shown_elsewhere():
                self._read_failure()
        self._was_active = is_active

    def _read_failure(self) -> None:
        """Read the details of the failed run in the background, then show them."""
        state = self._context.session.state
        if (failed := state.failed) is not None:
            run_dir = state.started.run_dir if state.started is not None else ""
            show = partial(self._show_failure, failed, self._context.session.config)
            self._context.pump.lasting.run(lambda: run_failure(failed, run_dir), show)

    def _show_failure(self, failed: RunFailed, config: Config | None, failure: Failure) -> None:
        remedy = failed.remedy
        is_base_model = config is not None and failed.missing_model in ("", config.model.base_model)
        action = ACTIONS_OF_REMEDIES.get(remedy, "") if is_base_model or remedy == "tokens" else ""
        offer = REMEDIES[remedy].label if action else ""
        if self._context.interaction.show_failure(replace(failure, offer=offer)):
            self._context.actions.run(action)


def run_failure(failed: RunFailed, run_dir: str = "") -> Failure:
    """Return the error message of a failed run: message, advice, what there is to continue from, file of details.

    Reads files of the run: for a background thread.
    """
    from trainer.run_folder.elsewhere import elsewhere_of

    file = Path(failed.details_path) if failed.details_path else None
    try:
        details = file.read_text(encoding="utf-8", errors="replace")[-_MAX_DETAILS_CHARS:] if file else ""
    except OSError:
        file, details = None, ""
    elsewhere = elsewhere_of(Path(run_dir)) if run_dir else None
    remote = elsewhere.remote if elsewhere is not None else ""
    advice = f"{failed.advice} {describe_continuation(failed, run_dir, remote)}".strip()
    return Failure("Training failed", failed.message, advice, details, file)
