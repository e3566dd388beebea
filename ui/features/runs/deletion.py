"""Deleting runs on the Run history page: the preview, the trash, and the way back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from modules.system.problem import count, format_size
from trainer.run_folder.records import RunRecord
from trainer.run_folder.trash import (
    Contents,
    DeletedRun,
    contents_of,
    delete_run,
    empty_trash,
    restore_run,
    trash_bytes,
)
from ui.features.runs.model import describe_deletion
from ui.forms.context import Context
from ui.loop.interaction import Answer
from ui.widgets.notices import Notice, Reply

_UNDO = "deleted runs"


class RunDeletion:
    """Asks, works in the background, and calls `refresh` afterwards."""

    def __init__(self, context: Context, refresh: Callable[[], object]) -> None:
        self._context = context
        self._refresh = refresh

    def ask(self, records: Sequence[RunRecord]) -> None:
        """Show what a deletion of runs removes, and move them to the trash if that is confirmed."""
        if records:
            work = partial(_contents, [r.run_dir for r in records])
            self._context.pump.background.run(work, partial(self._confirm_deletion, records))

    def empty_trash(self) -> None:
        """Remove the deleted runs for good, after a question with their size."""
        places = self._context.workspaces()
        self._context.pump.background.run(lambda: trash_bytes(places), partial(self._confirm_emptying, places))

    def _confirm_deletion(self, records: Sequence[RunRecord], contents: list[Contents]) -> None:
        title = f"Delete {records[0].title}?" if len(records) == 1 else f"Delete {count(len(records), 'run')}?"
        outputs = [path for record in records for path in record.outputs]
        answers = (Answer("cancel", "Cancel"), Answer("delete", "Delete", is_default=True))
        message = describe_deletion(contents, outputs)
        if self._context.interaction.choose(title, message, answers, "warning") == "delete":
            size_bytes = sum(c.size_bytes for c in contents)
            work = partial(_delete, [r.run_dir for r in records])
            self._context.pump.background.run(work, partial(self._offer_undo, size_bytes), self._report_failure)

    def _offer_undo(self, size_bytes: int, deleted: list[DeletedRun]) -> None:
        self._refresh()
        self._context.starter.look_for_backup()
        text = f"Moved {count(len(deleted), 'run')} ({format_size(size_bytes)}) to the trash."
        replies = (Reply("Undo", partial(self._restore, deleted)), Reply("Empty trash…", self.empty_trash))
        self._context.notices.show(Notice(_UNDO, text, replies))

    def _restore(self, deleted: Sequence[DeletedRun]) -> None:
        def report(places: list[Path]) -> None:
            self._context.notify(f"Brought back {count(len(places), 'run')}.")
            self._context.starter.look_for_backup()
            self._refresh()

        self._context.pump.background.run(lambda: [restore_run(d) for d in deleted], report, self._report_failure)

    def _confirm_emptying(self, places: Sequence[Path], size_bytes: int) -> None:
        if not size_bytes:
            self._context.notify("The trash is empty.")
            return
        answers = (Answer("cancel", "Cancel", is_default=True), Answer("empty", "Empty trash"))
        message = f"The deleted runs take {format_size(size_bytes)}. Afterwards they cannot be brought back."
        if self._context.interaction.choose("Empty the trash?", message, answers, "warning") == "empty":
            self._context.notices.remove(_UNDO)
            self._context.pump.background.run(
                lambda: empty_trash(places),
                lambda _done: self._report_emptied(size_bytes),
                self._report_failure,
            )

    def _report_emptied(self, size_bytes: int) -> None:
        self._context.notify(f"Freed {format_size(size_bytes)}.")
        self._refresh()

    def _report_failure(self, error: Exception) -> None:
        self._refresh()
        self._context.show_error("The runs could not be deleted", error, advice="Check that the folder is writable.")


def _contents(run_dirs: Sequence[Path]) -> list[Contents]:
    return [contents_of(run_dir) for run_dir in run_dirs]


def _delete(run_dirs: Sequence[Path]) -> list[DeletedRun]:
    return [delete_run(run_dir) for run_dir in run_dirs]
