"""Closing the window while a run trains, which a process of its own can continue; and following it again afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from modules.system.file_lock import Holder
from trainer.run_folder.backup import list_backups
from ui.features.queue.model import QueueControl
from ui.forms.context import Context
from ui.forms.preferences import LeftRun
from ui.loop.interaction import Answer, Failure
from ui.loop.run_state import RunState

if TYPE_CHECKING:
    from trainer.launch import RunRequest

StartDetached = Callable[["RunRequest"], tuple[Holder, Path]]

_STOP = "Stop writes a backup from which the run can resume."
_LEFT = "A run that is kept training is shown again by the next window."


def start_detached(request: RunRequest) -> tuple[Holder, Path]:
    """Start a run in a process of its own, which outlives the window. Raises OSError."""
    from trainer.run_folder import attached

    return attached.start_detached(request)


class Closing:
    """Asks before it closes the window during a run; hands the run over, and attaches the window to it again."""

    def __init__(
        self,
        context: Context,
        queue: QueueControl,
        *,
        close: Callable[[], None],
        start: StartDetached = start_detached,
    ) -> None:
        self._context = context
        self._queue = queue
        self._close = close
        self._start = start
        self.is_closing = False
        """Whether the window closes as soon as the run has ended."""
        self.hands_over = False
        """Whether the run that is being stopped continues in another process."""
        self._is_over = False  # the run; the session may change again until the window is closed
        context.session.changed.subscribe(self._close_when_over)

    def ask(self) -> None:
        """Close; ask first while a run is active."""
        session = self._context.session
        if not session.is_active:
            self._close()
            return
        if self.is_closing:
            return  # it will, as soon as the run has ended
        answers = [Answer("keep", "Keep the window", is_default=True), Answer("stop", "Stop and close")]
        message = f"{_STOP} The window closes when the run has ended."
        if not self._queue.owns_run:  # which is resumed by the next run of the queue
            answers.append(Answer("leave", "Close, keep training"))
            message = f"{_STOP} {_LEFT} The window closes when the backup is written."
        if session.is_attached:
            message = f"{_STOP} {_LEFT}"
        answer = self._context.interaction.choose("Training is running", message, tuple(answers), "warning")
        if answer == "leave" and session.is_attached:
            self._close()  # it has been left before
        elif answer in ("stop", "leave"):
            self.is_closing, self.hands_over = True, answer == "leave"
            self._queue.leave()
            session.stop()
            self._close_when_over()

    def look(self) -> Path | None:
        """Follow the run again that continued while the window was closed, if it still does; return its folder."""
        left = self._context.preferences.now.left_run
        if left is None:
            return None
        self._context.preferences.change(left_run=None)
        process = Holder.of(left.pid)
        if process.started != left.started:
            return None
        self.follow(Path(left.run_dir), process, left.log)
        return Path(left.run_dir)

    def follow(self, run_dir: Path, process: Holder | None = None, log: str = "") -> None:
        """Show the run of another process as the current one, with its Stop and Pause."""
        from trainer.run_folder.records import config_of
        from ui.loop.past_runs import read_state_so_far

        session = self._context.session

        def attach(read: tuple[RunState, int]) -> None:
            from trainer.run_folder.attached import AttachedRun

            if session.stage == "idle":
                state, num_bytes = read
                run = AttachedRun(run_dir, from_byte=num_bytes, process=process, log=log)
                session.attach(run, state, config_of(run_dir))
                self._context.navigation.open("run")

        self._context.pump.lasting.run(partial(read_state_so_far, run_dir), attach)

    def _close_when_over(self) -> None:
        """Close once the run has ended; stay open where it was to continue and cannot, which is shown."""
        session = self._context.session
        if session.is_active or not self.is_closing or self._is_over:
            return
        self._is_over = True
        end = session.state.finished
        if self.hands_over and (end is None or (end.outcome == "stopped" and not self._hand_over())):
            self.is_closing = self._is_over = False
            return
        self._context.root.after_idle(self._close)

    def _hand_over(self) -> bool:
        """Continue the run in a process of its own; return whether that has begun."""
        session = self._context.session
        assert session.request is not None
        request, run_dir = replace(session.request, in_window=False, datasets=None), ""
        if session.state.started is not None:
            run_dir = session.state.started.run_dir
            backups = list_backups(Path(run_dir))
            if backups:
                request = replace(request, kind="resume", resume_from=backups[-1].path)
        try:
            process, log = self._start(request)
        except OSError as error:
            text = f"The process that was to continue the run could not be started: {error}."
            advice = "Resume the run from its backup." if request.kind == "resume" else "Start the run again."
            failure = Failure("Training has stopped", text, advice)
            self._context.interaction.show_failure(failure)
            return False
        if run_dir:
            left = LeftRun(run_dir, process.pid, process.started, str(log))
            self._context.preferences.change(left_run=left)
        return True
