"""Tasks with rented machines at their provider: one at a time, in threads of its own.

It lasts as long as the main window: a task continues when the window of machines is closed, and is shown there again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from modules.system.errors import DarkroomError
from modules.system.file_errors import plain_reason
from modules.system.paths import ssh_key_file
from ui.features.remote.model import Machines
from ui.loop.background import Background, JobCancelledError
from ui.loop.signal import Signal

if TYPE_CHECKING:  # the window starts without them
    from trainer.remote.providers import Offer, Pod
    from trainer.remote.record import Remote, RemotesFile
    from trainer.remote.renting import RentSettings

_STATES = {"starting": "starting", "running": "running", "stopped": "stopped", "failed": "it could not be started"}
_LOOK_SECONDS = 1.0
_CLOSE_SECONDS = 90.0  # more than a request to a provider takes

Report = Callable[[str], None]


class _Task:
    """A task under way: whether it is to `stop`, and whether it `is_settled`, so that the program may end."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.is_settled = threading.Event()


class Renting:
    """Rents, starts, stops and deletes machines; `name` is the machine, `status` how far it is, or how it ended."""

    def __init__(self, machines: Machines) -> None:
        self.changed: Signal[[]] = Signal()
        self.background = Background()
        self.name = self.status = ""
        self.is_working = self.is_problem = self.can_cancel = False
        self._machines = machines
        self._task = _Task()

    def rent(self, settings: RentSettings) -> None:
        """Rent a machine, which costs from now on. Cancelling deletes it again."""
        self._run(settings.name, partial(_rent, settings), can_cancel=True)

    def start(self, remote: Remote) -> None:
        """Start a machine, which costs from now on. Cancelling stops it again."""
        self._run(remote.name, partial(_start, remote), can_cancel=True)

    def end(self, remote: Remote, *, deletes: bool) -> None:
        """Stop a machine, or delete it with all that is on it."""
        self._run(remote.name, partial(_end, remote, deletes=deletes), can_cancel=False)

    def cancel(self) -> None:
        """Undo what is being done."""
        if self.can_cancel:
            self._task.stop.set()
            self._task.is_settled.clear()
            self.can_cancel = False
            self._show(f"Cancelling: what was begun with {self.name} is undone…")

    def close(self) -> None:
        """Wait until the provider has answered: a machine that is not in the list yet would cost unseen."""
        if self.is_working:
            self._task.is_settled.wait(_CLOSE_SECONDS)

    def _run(self, name: str, work: Callable[[Report, _Task], str], *, can_cancel: bool) -> None:
        if self.is_working:
            return
        self.name, self.is_working, self.can_cancel = name, True, can_cancel
        self._task = task = _Task()
        self._show(f"{name}: asking the provider…")

        def progress(text: str, _number: int, _total: int) -> None:
            if self.is_working and not task.stop.is_set():
                self._show(text)

        def settled(report: Callable[[str, int, int], None]) -> str:
            try:
                return work(lambda text: report(text, 0, 0), task)
            finally:
                task.is_settled.set()

        self.background.run_reporting(settled, self._done, self._failed, progress=progress)

    def _done(self, text: str) -> None:
        self.is_working = self.can_cancel = False
        self._machines.read()
        self._show(text)

    def _failed(self, error: Exception) -> None:
        self.is_working = self.can_cancel = False
        self._machines.read()
        self._show(str(error) if isinstance(error, DarkroomError) else f"{plain_reason(error)}.", is_problem=True)

    def _show(self, text: str, *, is_problem: bool = False) -> None:
        self.status, self.is_problem = text, is_problem
        self.changed()


def look_for_offers() -> Sequence[Offer] | None:
    """Return the cards that can be rented, for a background thread; None before a key is stored.

    Raises DarkroomError.
    """
    from trainer.remote.renting import has_key, offers

    return offers() if has_key() else None


def first_settings(machines: Machines) -> RentSettings:
    """Return the settings with which renting begins: a free name, and a key that the user has."""
    from trainer.remote.renting import RentSettings

    number = next(n for n in range(1, len(machines.known) + 2) if _name(n) not in machines.known)
    keys = [remote.key_file for remote in machines.known.values() if remote.key_file]
    usual = [Path.home() / ".ssh" / "id_ed25519", Path.home() / ".ssh" / "id_rsa", ssh_key_file()]
    usable = [*keys, *(str(file) for file in usual if file.with_name(f"{file.name}.pub").is_file())]
    return RentSettings(name=_name(number), key=next(iter(usable), ""), after="stop")


def make_key() -> str:
    """Make a pair of SSH keys for rented machines, and return its private file. Raises DarkroomError, OSError."""
    from trainer.remote.host_keys import make_key_pair

    make_key_pair(ssh_key_file())
    return str(ssh_key_file())


def state_of(remote: Remote) -> str:
    """Return the state of a rented machine at its provider and its price, for a background thread.

    Raises DarkroomError.
    """
    from trainer.remote.renting import provider_of

    pod: Pod = provider_of(remote).read(remote.pod)
    return f"{_STATES[pod.state]}, {pod.price_per_hour or remote.price_per_hour:g} an hour while it runs"


def _name(number: int) -> str:
    return f"pod{number if number > 1 else ''}"


def _rent(settings: RentSettings, report: Report, task: _Task) -> str:
    from trainer.remote.record import RemotesFile
    from trainer.remote.renting import rent

    file, waiting = RemotesFile(), _Waiting(report, task)
    try:
        remote = rent(settings, file, report=waiting.report, wait=waiting.wait)
        waiting.require_wanted()
    except JobCancelledError:
        _undo(file.find(settings.name), file, deletes=True)
        return f"{settings.name} is deleted again."
    return f"{remote.name} is rented, for {remote.price_per_hour:g} an hour. Check it to accept its host key."


def _start(remote: Remote, report: Report, task: _Task) -> str:
    from trainer.remote.record import RemotesFile
    from trainer.remote.renting import start

    file, waiting = RemotesFile(), _Waiting(report, task)
    try:
        start(remote, file, report=waiting.report, wait=waiting.wait)
        waiting.require_wanted()
    except JobCancelledError:
        _undo(remote, file, deletes=False)
        return f"{remote.name} is stopped again."
    return f"{remote.name} has started. Check it to accept its new host key."


def _undo(remote: Remote, file: RemotesFile, *, deletes: bool) -> None:
    """End a machine that is not wanted any more. Raises DarkroomError, which states that it may cost."""
    from trainer.remote.renting import end

    try:
        end(remote, file, deletes=deletes)
    except (DarkroomError, OSError) as error:
        reason = str(error) if isinstance(error, DarkroomError) else f"{plain_reason(error)}."
        done = "deleted" if deletes else "stopped"
        raise DarkroomError(f"{remote.name} could not be {done}, and may cost. {reason}") from error


def _end(remote: Remote, report: Report, _task: _Task, *, deletes: bool) -> str:
    from trainer.remote.record import RemotesFile
    from trainer.remote.renting import end

    report(f"{'Deleting' if deletes else 'Stopping'} {remote.name}…")
    end(remote, RemotesFile(), deletes=deletes)
    return f"{remote.name} is deleted." if deletes else f"{remote.name} stops. Its volume still costs something."


class _Waiting:
    """The wait for a machine: it reports how long it has taken, and ends when it is cancelled."""

    def __init__(self, report: Report, task: _Task) -> None:
        self._report, self._task = report, task
        self._text, self._began = "", time.monotonic()

    def report(self, text: str) -> None:
        """Report what is being done."""
        self._text = text
        self._report(text)

    def require_wanted(self) -> None:
        """Raise JobCancelledError if it was cancelled since the last wait."""
        if self._task.stop.is_set():
            raise JobCancelledError

    def wait(self, seconds: float) -> None:
        """Wait. Raises JobCancelledError as soon as that is wanted."""
        self.require_wanted()
        self._task.is_settled.set()  # the machine is in the list
        until = time.monotonic() + seconds
        while True:
            left = until - time.monotonic()
            if self._task.stop.wait(max(0.0, min(left, _LOOK_SECONDS))):
                raise JobCancelledError
            if left <= 0:
                return
            self._report(f"{self._text} {time.monotonic() - self._began:.0f} s so far.")
