"""Backups when they are due or requested."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from modules.settings.every import Every
from trainer.commands import BackupNow, CommandDesk
from trainer.step.callback import DryRunCheck, DryRunState, StepView
from trainer.step.counters import Counters


class BackupCallback:
    """Runs last after a step, so that a backup contains the results of the other callbacks."""

    def __init__(
        self,
        every: Every,
        *,
        write: Callable[[Counters], object],
        try_out: Callable[[DryRunState], None],
        desk: CommandDesk,
    ) -> None:
        """`write` writes a backup; `try_out` starts one of the dry run and discards it."""
        self._every = every
        self._write = write
        self._try_out = try_out
        self._desk = desk

    def after_step(self, view: StepView) -> None:
        """Write a backup if it is due or requested."""
        is_due = self._every.is_due(view.before.moment, view.now.moment)
        if self._desk.take(BackupNow) or is_due:
            self._write(view.now)

    def dry_run_checks(self, state: DryRunState) -> list[DryRunCheck]:
        """Return the check of writing a backup, which every run may need: a stop writes one."""
        return [DryRunCheck("writing a backup", "Close other programs.", partial(self._try_out, state))]
