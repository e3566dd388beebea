"""Backups when they are due or asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from modules.settings.every import Every
from trainer.commands import BackupNow, CommandDesk
from trainer.step.callback import DryRunCheck, DryRunState, StepView
from trainer.step.counters import Counters


class BackupCallback:
    """Comes last after a step, so that a backup holds all that the step led to."""

    def __init__(
        self,
        every: Every,
        *,
        write: Callable[[Counters], object],
        try_out: Callable[[DryRunState], None],
        desk: CommandDesk,
    ) -> None:
        """`write` makes a backup; `try_out` begins one of a run in small and gives it up."""
        self._every = every
        self._write = write
        self._try_out = try_out
        self._desk = desk

    def after_step(self, view: StepView) -> None:
        """Back up if it is due or asked for."""
        is_due = self._every.is_due(view.before.moment, view.now.moment)
        if self._desk.take(BackupNow) or is_due:
            self._write(view.now)

    def dry_run_checks(self, small: DryRunState) -> list[DryRunCheck]:
        """Return the trial of a backup, which every run may need: a stop leaves one."""
        return [DryRunCheck("writing a backup", "Close other programs.", partial(self._try_out, small))]
