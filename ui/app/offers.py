"""The notices that the window shows by itself: a run or a queue that ended unexpectedly and can be resumed, and a fork
that is prepared.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ui.features.queue.model import QueueControl
from ui.features.run.model import Starter
from ui.forms.preferences import Preferences
from ui.loop.background import Background
from ui.widgets.notices import CRASHED_RUN, Notice, Notices, Reply

if TYPE_CHECKING:
    from trainer.run_folder.records import RunRecord

QUEUE, FORK, EDITED = "queue", "fork", "edited item"


class Offers:
    """Keeps the notices about runs up to date."""

    def __init__(
        self,
        notices: Notices,
        starter: Starter,
        queue: QueueControl,
        preferences: Preferences,
        background: Background,
        *,
        show_run: Callable[[Path], object],
        show_queue: Callable[[], None],
        save_edited: Callable[[], None],
    ) -> None:
        self._notices = notices
        self._starter = starter
        self._queue = queue
        self._preferences = preferences
        self._background = background
        self._show_run = show_run
        self._show_queue = show_queue
        self._save_edited = save_edited
        starter.changed.subscribe(self._follow_fork)
        queue.changed.subscribe(self._follow_queue)

    def look(self, workspaces: tuple[Path, ...]) -> None:
        """Offer to resume what ended unexpectedly: once, when the window opens.

        What the window has left to another process, and follows again, has not.
        """
        self._queue.refresh(done=lambda: self._look_for_runs(workspaces))

    def _look_for_runs(self, workspaces: tuple[Path, ...]) -> None:
        from trainer.run_folder.records import newest_unfinished

        interrupted = self._queue.interrupted_item
        if interrupted is not None and self._preferences.now.left_queue is None:
            self._offer_queue(interrupted.name, num_open=sum(i.is_waiting for i in self._queue.queue.items))
        queue_run_dir = interrupted.run_dir if interrupted else ""
        self._background.run(lambda: newest_unfinished(workspaces), partial(self._offer_run, queue_run_dir))

    def _offer_run(self, queue_run_dir: str, record: RunRecord | None) -> None:
        if record is None or str(record.run_dir) in (queue_run_dir, self._preferences.now.dismissed_run):
            return
        backup = record.newest_backup
        if backup is None or not self._starter.can_start:
            return
        self._notices.show(
            Notice(
                CRASHED_RUN,
                describe_crash(record),
                (
                    Reply(f"Resume at step {backup.step:,}", partial(self._starter.resume_run, backup)),
                    Reply("Show run", partial(self._show_run, record.run_dir), stays=True),
                ),
                on_dismiss=lambda: self._preferences.change(dismissed_run=str(record.run_dir)),
            )
        )

    def _offer_queue(self, name: str, *, num_open: int) -> None:
        text = f"The queue was interrupted while it trained {name}. It resumes from the newest backup of that run"
        more = f", then {num_open:,} more." if num_open else "."
        replies = (Reply("Continue the queue", self._queue.run), Reply("Show queue", self._show_queue, stays=True))
        self._notices.show(Notice(QUEUE, text + more, replies))

    def _follow_fork(self) -> None:
        source = self._starter.fork_from
        if source is None:
            self._notices.remove(FORK)
            return
        text, reason = f"A fork of {source.run}, from {source.label} ({source.place}).", self._starter.why_not
        replies: tuple[Reply, ...] = (Reply("Start", self._starter.start, stays=True),)
        if reason:
            text, replies = f"{text} {reason} Then press Start.", ()
        elif self._starter.is_fork_trained:
            text += " It has trained all epochs that are set: set more of them, then press Start."
        else:
            text += " Change what is to be different, then press Start."
        shown = next((n for n in self._notices.items if n.key == FORK), None)
        if shown is None or (shown.text, bool(shown.replies)) != (text, bool(replies)):
            self._notices.show(Notice(FORK, text, replies, self._starter.cancel_fork, "Cancel the fork"))

    def _follow_queue(self) -> None:
        if self._queue.is_running or self._queue.is_run_elsewhere:
            self._notices.remove(QUEUE)
        number = self._queue.editing
        if number is None:
            self._notices.remove(EDITED)
            return
        items = enumerate(self._queue.queue.items, start=1)  # by place: items are moved, and keep their numbers
        place, name = next(((place, item.name) for place, item in items if item.number == number), (number, ""))
        text = f"You are editing {name}, item {place} of the queue."
        self._notices.show(
            Notice(
                EDITED,
                text,
                (Reply("Save to the queue", self._save_edited),),
                on_dismiss=lambda: self._queue.edit(None),
                dismiss_label="Discard",
            )
        )


def describe_crash(record: RunRecord) -> str:
    """Return the sentence about a run that ended unexpectedly: when, at which step, and its newest backup."""
    backup = record.newest_backup
    step = f" at step {record.step:,} of {record.total_steps:,}" if record.total_steps else ""
    run = f"The run of {record.started:%d %B, %H:%M}" if record.started else f"The run {record.name}"
    backup_text = f" Its newest backup is step {backup.step:,} ({backup.created[11:16]})." if backup else ""
    return f"{run} ended unexpectedly{step}.{backup_text}"
