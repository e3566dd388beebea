"""Closing the window while a run trains, which a process of its own can continue; and following it again afterwards."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from modules.config.codec import load_file
from modules.config.schema import Config
from modules.system.errors import DarkroomError
from modules.system.file_errors import plain_reason
from trainer.run_status import RunStatus
from ui.features.queue.model import QueueControl
from ui.forms.context import Context
from ui.forms.preferences import LeftProcess
from ui.loop.interaction import Answer, Failure
from ui.widgets.panel import call_later

if TYPE_CHECKING:
    from trainer.run_folder.attached import DetachedProcess
    from ui.loop.run_state import RunState

_STAY = Answer("keep", "Keep the window", is_default=True)
_STOP_AND_CLOSE = Answer("stop", "Stop and close")
_NEXT_ITEM = "It is about to train its next item."
_COMPARING = "The losses of the images are being measured. Stopped now, they give no report. The run stays as it is."
_SLOW = (
    "The run writes its backup, or waits for a disk or the network. If the window ends now, what was trained since the "
    "last backup is lost."
)
_STOP = "Stop writes a backup from which the run can resume."
_LEFT = "A run that is kept training is shown again by the next window."
_LEFT_QUEUE = "A queue that is kept running also trains its other items; the next window shows it again."
_LEFT_LAST = "A run that is kept training is shown again by the next window; the queue stops after it."


class Closing:
    """Asks before it closes the window during a run; hands the run over, and attaches the window to it again.

    A run in a process of its own is noted in the session as soon as it starts: the window may end unexpectedly.
    """

    def __init__(
        self,
        context: Context,
        queue: QueueControl,
        *,
        close: Callable[[], None],
        end_now: Callable[[], None],
        save: Callable[[], None],
        opens_file: bool,
    ) -> None:
        """`opens_file`: the window opens with a config file instead of the settings of the one before."""
        self._context = context
        self._queue = queue
        self._close, self._end_now = close, end_now
        self._save, self._opens_file = save, opens_file
        self.is_closing = False
        """Whether the window closes as soon as the run has ended."""
        self.hands_over = False
        """Whether the run that is being stopped continues in another process."""
        self._is_asking = False
        self._must_close = False  # the system has requested it
        self._is_between = False  # it closes between two runs of the queue
        self._is_over = False  # the run; the session may change again until the window is closed
        self._followed = ""  # the run of the queue of another process that was followed last
        queue.changed.subscribe(self._follow_queue)
        queue.changed.subscribe(self._close_when_over)
        context.session.changed.subscribe(self._note_process)
        context.session.changed.subscribe(self._close_when_over)

    def ask(self) -> None:
        """Close; ask first while a run is active or the queue runs, and once more if that takes long to stop."""
        session = self._context.session
        if not (session.is_active or self._queue.is_running):
            self._close()
            return
        if self._is_asking:
            return
        self._is_asking = True
        try:
            answer = self._choose_whether_to_wait() if self.is_closing else self._choose()
        finally:
            self._is_asking = False
        if answer == "end" and self.is_closing and session.attached is None:
            self._end_now()
            return
        # While the question was open.
        has_ended = answer == "stop" and not (session.is_active or self._queue.is_running)
        if has_ended or (answer in ("leave", "end") and session.attached is not None):  # or it has its own process
            self._close()
        elif answer in ("stop", "leave"):
            self._stop_and_close(hands_over=answer == "leave")

    def _choose_whether_to_wait(self) -> str | None:
        answers = (Answer("wait", "Keep waiting", is_default=True), Answer("end", "End now"))
        return self._context.interaction.choose("The run has not ended yet", _SLOW, answers, "warning")

    def _choose(self) -> str | None:
        """Ask how to close; return the name of the answer, None if there is none."""
        session, interaction = self._context.session, self._context.interaction
        answers = (_STAY, _STOP_AND_CLOSE, Answer("leave", "Close, keep training"))
        left_queue = _LEFT_LAST if self._queue.is_last else _LEFT_QUEUE
        if not session.is_active:
            return interaction.choose("The queue is running", f"{_NEXT_ITEM} {left_queue}", answers, "warning")
        if session.request is not None and session.request.kind == "report":  # nothing is trained that could continue
            return interaction.choose("Images are being compared", _COMPARING, (_STAY, _STOP_AND_CLOSE), "warning")
        is_queue = self._queue.owns_run or self._queue.is_run_elsewhere
        message = f"{_STOP} {left_queue if is_queue else _LEFT}"
        if session.attached is None:
            message += " The window closes when the backup is written."
        return interaction.choose("Training is running", message, answers, "warning")

    def end(self) -> None:
        """Close without a question, at a signal to end; a run of this process is stopped, with its backup."""
        session = self._context.session
        self._must_close = True
        if not session.is_active or session.attached is not None:
            self._close()
        elif not self.is_closing:
            self._stop_and_close(hands_over=False)

    def _stop_and_close(self, *, hands_over: bool) -> None:
        self.is_closing, self.hands_over = True, hands_over
        self._is_between = not self._context.session.is_active and self._queue.is_running
        self._queue.leave()
        self._context.session.stop()
        self._close_when_over()

    def look(self) -> None:
        """Follow the run or the queue again that continued without the window, if it still does."""
        preferences = self._context.preferences
        for name in ("left_run", "left_queue"):
            left: LeftProcess | None = getattr(preferences.now, name)
            if left is not None and not left.is_alive:
                preferences.change(**{name: None})
        if preferences.now.left_run is not None:
            self._follow(partial(_read_left, preferences.now.left_run), is_of_form=not self._opens_file)

    def left_runs(self) -> tuple[Path | None, ...]:
        """Return the runs that a window has left to other processes, such as those of the queue on other machines.

        Reads files: for a background thread.
        """
        now, queue = self._context.preferences.now, self._queue.queue
        running, there = queue.on("").running, [Path(i.run_dir) for i in queue.items if i.machine and i.is_running]
        followed = now.left_run.find_run_dir() if now.left_run is not None else None
        of_queue = Path(running.run_dir) if now.left_queue is not None and running is not None else None
        return followed, of_queue, *there

    def follow(self, run_dir: Path, *, opens_page: bool = True) -> None:
        """Show the run of another process as the current one, with its Stop and Pause."""
        self._follow(partial(_read_so_far, run_dir), opens_page=opens_page)

    def follow_elsewhere(self, run_dir: Path, *, resumes: bool = False) -> None:
        """Let a process of its own follow a run on another machine, or resume it, and show it as the current one."""
        from trainer.run_folder.attached import start_following

        self._follow(lambda: _read_so_far(run_dir, start_following(run_dir, resumes=resumes)))

    def _follow_queue(self) -> None:
        """Follow the runs of the queue that this window, or the one before, has left to a process of its own."""
        left, session, queue = self._context.preferences.now.left_queue, self._context.session, self._queue
        if left is None or queue.is_running:
            return
        from trainer.run_folder.run_lock import holder_of

        is_left = queue.runner is not None and queue.runner.pid == left.pid
        queue.is_last = is_left and left.only_next
        if session.is_reserved != is_left:
            session.is_reserved = is_left
            session.changed()
        item = queue.queue.on("").running
        if not is_left or item is None or not item.run_dir or session.stage != "idle":
            return
        if item.run_dir != self._followed and holder_of(Path(item.run_dir)) is not None:
            is_first, self._followed = not self._followed, item.run_dir
            self._follow(partial(_read_so_far, Path(item.run_dir)), opens_page=is_first)

    def _follow(self, read: Callable[[], _RunSoFar], *, opens_page: bool = True, is_of_form: bool = False) -> None:
        session = self._context.session

        def attach(so_far: _RunSoFar) -> None:
            from trainer.run_folder.attached import AttachedRun

            if session.stage == "idle":
                run = AttachedRun(so_far.run_dir, from_byte=so_far.num_bytes, detached=so_far.detached)
                config = so_far.config_beside(self._context.form.config)
                session.attach(run, so_far.state, config, is_of_form=is_of_form)
                if opens_page:
                    self._context.navigation.open("run")

        fail = partial(self._context.show_error, "The run cannot be followed")
        self._context.pump.lasting.run(read, attach, fail)

    def _note_process(self) -> None:
        """Let the next window find the process of a run that has just started, however this window ends."""
        session, left = self._context.session, self._context.preferences.now.left_run
        detached = session.attached.detached if session.attached is not None else None
        if detached is None or (left is not None and left.pid == detached.process.pid):
            return
        from trainer.run_folder.backup import find_backup

        request, run_dir = session.request, ""
        if request is not None and request.kind == "resume" and request.resume_from is not None:
            with suppress(DarkroomError):  # the run itself reports it
                run_dir = str(find_backup(request.resume_from).run_dir)
        self._leave(run_dir, detached)
        self._save()

    def _leave(self, run_dir: str, detached: DetachedProcess) -> None:
        process = detached.process
        left = LeftProcess(pid=process.pid, started=process.started, log=str(detached.log), run_dir=run_dir)
        self._context.preferences.change(left_run=left)

    def _close_when_over(self) -> None:
        """Close once the run has ended; stay open where it failed, or was to continue and cannot, which is shown."""
        session = self._context.session
        if session.is_active or not self.is_closing or self._is_over:
            return
        if self._is_between and self._queue.is_between_runs:
            return
        self._is_over = True
        if not (self._is_left_in_order() or self._must_close):
            self.is_closing = self._is_over = False
            self._queue.stay()
            return
        call_later(self._context.root, 0, self._close)  # not `after_idle`: what is being built might run that

    def _is_left_in_order(self) -> bool:
        """Hand the run over if it is to continue; return whether the window can close."""
        end = self._context.session.state.finished
        if self._is_between:
            is_complete = not self._queue.is_running or self._queue.queue.on("").next is None
            return not self.hands_over or is_complete or self._hand_queue_over()
        if not self.hands_over:  # the queue shows that its run has failed
            return end is not None or self._queue.owns_run
        if end is None:
            return False
        is_over = end.status is not RunStatus.STOPPED
        if self._queue.owns_run:
            return (is_over and self._queue.is_last) or self._hand_queue_over()
        return is_over or self._hand_run_over()

    def _hand_queue_over(self) -> bool:
        from trainer.run_queue import running

        is_last = self._queue.is_last
        self._queue.hand_over()
        try:
            process, log = running.start_detached_queue(only_next=is_last)
        except OSError as error:
            text = f"The process that was to continue the queue could not be started: {plain_reason(error)}."
            failure = Failure("The queue has stopped", text, "Run the queue again: the run resumes from its backup.")
            self._context.interaction.show_failure(failure)
            return False
        left = LeftProcess(pid=process.pid, started=process.started, log=str(log), only_next=is_last)
        self._context.preferences.change(left_queue=left)
        return True

    def _hand_run_over(self) -> bool:
        from trainer.run_folder import attached
        from trainer.run_folder.backup import list_backups

        session = self._context.session
        assert session.request is not None
        request, run_dir = replace(session.request, in_window=False, datasets=None), ""
        if session.state.started is not None:
            run_dir = session.state.started.run_dir
            backups = list_backups(Path(run_dir))
            if backups:
                request = replace(request, kind="resume", resume_from=backups[-1].path)
        try:
            detached = attached.start_detached(request)
        except OSError as error:
            text = f"The process that was to continue the run could not be started: {plain_reason(error)}."
            advice = "Resume the run from its backup." if request.kind == "resume" else "Start the run again."
            failure = Failure("Training has stopped", text, advice)
            self._context.interaction.show_failure(failure)
            return False
        self._leave(run_dir, detached)
        return True


class _RunSoFar(NamedTuple):
    """The run of another process: its folder if it has one yet, its state, and how many bytes of its log this is."""

    run_dir: Path | None
    state: RunState
    num_bytes: int
    config: Config | None
    detached: DetachedProcess | None = None
    numbered: Config | None = None  # the config with the destination that was chosen, not the one that was asked for

    def config_beside(self, settings: Config) -> Config | None:
        """Return its config with the destination that these settings have, if they are those of the run."""
        numbered = self.numbered
        is_reopened = numbered is not None and settings.output.destination == numbered.output.destination
        return numbered if is_reopened else self.config


def _read_so_far(run_dir: Path, detached: DetachedProcess | None = None) -> _RunSoFar:
    from trainer.run_folder.destination import requested_destination
    from trainer.run_folder.records import config_of
    from ui.loop.past_runs import read_state_so_far

    config = config_of(run_dir)
    asked = requested_destination(config, run_dir) if config is not None else None
    return _RunSoFar(run_dir, *read_state_so_far(run_dir), asked, detached, config)


def _read_left(left: LeftProcess) -> _RunSoFar:
    from ui.loop.run_state import RunState

    detached, run_dir = left.detached, left.find_run_dir()
    if run_dir is not None:
        return _read_so_far(run_dir, detached)
    config = load_file(detached.config_file).config if detached.config_file.is_file() else None
    return _RunSoFar(None, RunState(phase="starting"), 0, config, detached)
