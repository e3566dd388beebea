"""The queue in the window: shows and changes the shared file, and runs it, one child process after another.

The file is read and written in the background. The session follows the run of an item as it follows any other run.
Items for other machines are trained by processes of their own, which the window only starts: they outlive it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING

from modules.config.schema import Config
from modules.system.errors import DarkroomError
from modules.system.file_errors import plain_reason
from modules.system.file_lock import Holder
from modules.system.problem import count
from trainer.run_queue.file import QueueFile
from trainer.run_queue.items import AfterFailure, Change, Item, RunQueue
from trainer.run_status import RunStatus
from ui.loop.background import Background
from ui.loop.run_session import Launch, RunSession
from ui.loop.signal import Signal

if TYPE_CHECKING:  # the window needs these when the queue runs
    from trainer.events import RunFailed, RunFinished
    from trainer.launch import RunRequest
    from trainer.run_queue.running import QueueRun

_log = logging.getLogger(__name__)
COMPLETE = "The queue is complete."
_LOOK_SECONDS = 1.0


def _start_other_machines(file: QueueFile) -> object:
    from trainer.run_queue.running import start_other_machines

    return start_other_machines(file)


class QueueControl:
    """The queue as this window sees it. While `is_running`, this window runs it."""

    def __init__(
        self,
        file: QueueFile,
        session: RunSession,
        background: Background,
        *,
        launch_child: Launch,
        before_run: Callable[[RunRequest], None],
        notify: Callable[[str], None],
        start_other_machines: Callable[[QueueFile], object] = _start_other_machines,
    ) -> None:
        self.queue = RunQueue()
        self.problem = ""  # why the file cannot be read
        self.current: Item | None = None  # trained at the moment, by this window
        self.editing: int | None = None  # the number of the item whose config is in the form
        self.is_last = False  # stop after the current run
        self.runners: Mapping[str, Holder] = {}  # the programs that run it, by machine; "" is this computer
        self.changed: Signal[[]] = Signal()
        self._file = file
        self._session = session
        self._background = background
        self._launch = launch_child
        self._before_run = before_run
        self._notify = notify
        self._start_other_machines = start_other_machines
        self._run: QueueRun | None = None
        self._request: RunRequest | None = None
        self._is_busy = False  # taking an item, or recording an end
        self._is_leaving = False
        self._last_run_dir = ""
        self._pending_writes: list[Callable[[], RunQueue | None]] = []
        self._stamp: object = ()
        self._next_look = 0.0
        session.changed.subscribe(self._follow)

    # -- showing

    @property
    def is_running(self) -> bool:
        """Whether this window runs the queue."""
        return self._run is not None

    @property
    def is_between_runs(self) -> bool:
        """Whether this window runs the queue and takes its next item, or records how the last one ended."""
        return self.is_running and self._is_busy

    @property
    def runner(self) -> Holder | None:
        """The program that trains the items of this computer."""
        return self.runners.get("")

    @property
    def can_run(self) -> bool:
        """Whether a machine has items that no program trains."""
        return any(item.is_open and item.machine not in self.runners for item in self.queue.items)

    @property
    def is_run_elsewhere(self) -> bool:
        """Whether another program runs the queue."""
        return self.runner is not None and not self.is_running

    @property
    def owns_run(self) -> bool:
        """Whether the session's current or last run is one of the queue."""
        return self._request is not None and self._request is self._session.request

    @property
    def interrupted_item(self) -> Item | None:
        """The item that was trained when the program that ran the queue ended."""
        interrupted = (item for item in self.queue.items if item.state is RunStatus.INTERRUPTED)
        return next((item for item in interrupted if item.machine not in self.runners), None)

    def look(self, _deadline: float) -> bool:
        """Read the file again if another program changed it or has ended: a source of the pump, once a second."""
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + _LOOK_SECONDS
            if self._file.stamp() != self._stamp or any(map(self._has_ended, self.runners)):
                self.refresh()
        return False

    def _has_ended(self, machine: str) -> bool:
        """Return whether the program that ran the queue of a machine has ended; this window knows of itself."""
        return not (self.is_running and not machine) and self._file.runner_on(machine) is None

    def refresh(self, done: Callable[[], None] | None = None) -> None:
        """Read the file."""

        def read() -> tuple[object, RunQueue, Mapping[str, Holder]]:
            stamp, machines = self._file.stamp(), {"", *(item.machine for item in self._file.read().items)}
            runners = {name: runner for name in machines if (runner := self._file.runner_on(name)) is not None}
            # Last: an item whose program ends while these are read must not be kept as running without a program.
            return stamp, self._file.read(), runners

        def keep(state: tuple[object, RunQueue, Mapping[str, Holder]]) -> None:
            self._stamp, self.queue, self.runners = state
            self.problem = ""
            self._next_look = 0.0  # it may have changed since
            self.changed()
            if done is not None:
                done()

        def fail(error: Exception) -> None:
            self._stamp = self._file.stamp()  # read again once it has changed
            self._refuse(error)

        self._background.run(read, keep, fail)

    # -- changing

    def change(self, change: Change, message: str = "", done: Callable[[], None] | None = None) -> None:
        """Change the queue; then show `message` and call `done()`."""

        def keep(queue: RunQueue) -> None:
            self._keep(message, queue)
            if done is not None:
                done()

        self._background.run(lambda: self._file.change(change), keep, self._refuse)

    def add(self, name: str, config: Config, *, machine: str = "") -> None:
        """Add a copy of a config."""
        to = f"the queue of {machine}" if machine else "the queue"
        self.change(lambda queue: queue.add(name, config, machine=machine), f"Added {name} to {to}.")

    def save_edited(self, config: Config) -> None:
        """Replace the config of the item being edited."""
        number = self.editing
        if number is not None:
            self.editing = None
            name = next((item.name for item in self.queue.items if item.number == number), "")
            self.change(lambda queue: queue.edit(number, config), f"Saved {name} to the queue.")

    def edit(self, number: int | None) -> None:
        """Begin editing an item, or end it."""
        self.editing = number
        self.changed()

    def choose_after_failure(self, choice: AfterFailure) -> None:
        """Choose what happens after a run that failed."""
        self.change(lambda queue: queue.with_after_failure(choice))

    # -- running

    def run(self) -> None:
        """Run the queue in this window. If a run is active, the queue begins when that has ended.

        Other machines begin at once.
        """
        from trainer.run_queue.running import QueueRun

        if any(name not in self.runners for name in self.queue.other_machines):
            self._background.run(lambda: self._start_other_machines(self._file), lambda _: self.refresh(), self._refuse)
        only_others = self.queue.other_machines and self.queue.on("").next is None
        if self._run is None and not self._is_busy and not only_others:
            self._is_busy = True
            self._background.run(lambda: QueueRun(self._file), self._keep_run, self._fail_to_start)

    def stop_after_current(self) -> None:
        """Let the current run end, and stop the queue then; a second call cancels that."""
        self.is_last = not self.is_last
        if self.is_last and self.current is None and not self._is_busy:
            self._release("The queue has stopped.")
        self.changed()

    def can_skip(self, item: Item | None) -> bool:
        """Return whether an item is trained, here or by another program, and its run can be stopped."""
        if item is None or not item.is_running:
            return False
        if self.is_running and not item.machine:
            return self._session.can_stop and self._session.stage != "stopping"
        return bool(item.run_dir) and not item.is_skipped

    def skip(self, item: Item | None) -> None:
        """Stop the run of an item, wherever it trains, and continue with the next item of its machine."""
        if item is None or not self.can_skip(item):
            return
        if self.is_running and not item.machine:
            self.change(partial(RunQueue.skip, number=item.number), done=partial(self._stop_skipped, item))
        else:
            from trainer.run_queue.running import skip

            self._background.run(partial(skip, self._file, item), partial(self._keep, ""), self._refuse)

    def _stop_skipped(self, item: Item) -> None:
        """Stop the run of an item, unless it has ended while the skip was written: then another one may train."""
        if self.current is not None and self.current.number == item.number:
            self._session.stop()

    def leave(self) -> None:
        """Prepare for the end of the window: the current run, which is stopped now, is resumed by the next one.

        No other run begins.
        """
        self._is_leaving = True

    def stay(self) -> None:
        """Keep the window after all: a run that is stopped from now on is not resumed by the queue."""
        self._is_leaving = False

    def hand_over(self) -> None:
        """Let another program run the queue, while this window stays open until that has begun."""
        self.close()
        self._session.is_reserved = self._is_busy = False
        self.refresh()

    def close(self) -> None:
        """Write what is not written yet, and let another program run the queue."""
        for write in self._pending_writes:
            try:
                write()
            except (DarkroomError, OSError) as error:  # the window ends nevertheless, and a run stops with its backup
                _log.warning("The queue could not be written", exc_info=error)
        self._pending_writes = []
        if self._run is not None:
            self._run.close()
            self._run = None

    def _keep_run(self, run: QueueRun) -> None:
        self._run, self._is_busy, self.is_last = run, False, False
        self._session.is_reserved = True
        self.refresh()
        if self._session.stage != "idle":
            self._notify("The queue starts when the current run has ended.")
        self._follow()

    def _fail_to_start(self, error: Exception) -> None:
        self._is_busy = False
        self._refuse(error)

    def _follow(self) -> None:
        """React to the session: take the next item when it is idle, record the run of the current one."""
        if self._run is None or self._is_busy:
            return
        if self.current is None:
            if self._session.stage == "idle" and not self._is_leaving:
                self._is_busy = True
                self._session.prepare(self._run.take_next, self._begin, self._fail_to_take)
            return
        started = self._session.started
        if started is not None and started.run_dir != self._last_run_dir:
            self._last_run_dir = started.run_dir
            self._write(partial(self._run.note, self.current, started), lambda _queue: None)
        ended = self._session.state.end
        if not self._session.is_active and ended is not None:
            self._end(self.current, ended)

    def _begin(self, item: Item | None) -> None:
        from trainer.events import RunFailed
        from trainer.run_queue.running import request_of

        if item is not None and self._is_leaving and self._run is not None:
            put_back = partial(RunQueue.end, number=item.number, state=item.state, message=item.message)
            self._write(partial(self._file.change, put_back), lambda _queue: self._rest())
            return
        self._is_busy = False
        if self._run is None:
            return
        if item is None:
            failed = sum(other.state.is_failure for other in self.queue.items)
            self._release(f"{COMPLETE} {count(failed, 'run')} failed." if failed else COMPLETE)
            return
        self.current, self._last_run_dir = item, ""
        self._request = request_of(item)
        self._before_run(self._request)
        try:
            self._session.begin(self._request, launch_run=self._launch, is_of_form=False)
        except OSError as error:
            self._end(item, RunFailed(f"The training process could not be started: {plain_reason(error)}."))
        self.refresh()

    def _rest(self) -> None:
        self._is_busy = False
        self.changed()

    def _fail_to_take(self, error: Exception) -> None:
        self._is_busy = False
        self._release("")
        self._refuse(error)

    def _end(self, item: Item, ended: RunFinished | RunFailed) -> None:
        from trainer.run_queue.running import continues_after

        assert self._run is not None
        self._is_busy, self.current, run = True, None, self._run
        state = ended.status

        def continue_queue(queue: RunQueue | None) -> None:
            if self._run is not run:  # it was handed over meanwhile
                return
            self._is_busy = False
            if self.is_last or not continues_after(queue or self.queue, item.number, state):
                self._release(f"The queue has stopped after {item.name} ({state.label.lower()}).")
            else:
                self._follow()
                self.changed()

        if self._is_leaving and state is RunStatus.STOPPED:
            self._write(partial(self._file.change, partial(_mark_interrupted, item)), continue_queue)
        else:
            self._write(partial(self._run.note, item, ended), continue_queue)

    def _write(self, write: Callable[[], RunQueue | None], done: Callable[[RunQueue | None], None]) -> None:
        """Write in the background, or at once if the window closes meanwhile; not again after that."""
        lock, results = Lock(), list[RunQueue | None]()

        def write_once() -> RunQueue | None:
            with lock:
                if not results:
                    results.append(write())
                return results[0]

        self._pending_writes.append(write_once)

        def keep(queue: RunQueue | None) -> None:
            self._pending_writes = [other for other in self._pending_writes if other is not write_once]
            if queue is not None:
                self._keep("", queue)
            done(queue)

        def fail(error: Exception) -> None:
            self._pending_writes = [other for other in self._pending_writes if other is not write_once]
            self._refuse(error)
            done(None)

        self._background.run(write_once, keep, fail)

    def _release(self, message: str) -> None:
        self._session.is_reserved = False
        if self._run is not None:
            self._run.close()
            self._run = None
        self.is_last = False
        if message:
            self._notify(message)
        self.refresh()

    def _keep(self, message: str, queue: RunQueue) -> None:
        self.queue, self.problem = queue, ""
        self._next_look = 0.0  # results can arrive in another order than the changes were made: the file counts
        if message:
            self._notify(message)
        self.changed()

    def _refuse(self, error: Exception) -> None:
        if not isinstance(error, DarkroomError | OSError):
            raise error
        self.problem = str(error)
        self._notify(self.problem)
        self.changed()


def _mark_interrupted(item: Item, queue: RunQueue) -> RunQueue:
    return queue.end(item.number, RunStatus.INTERRUPTED, "The window was closed during this run.")
