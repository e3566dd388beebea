"""The runs that other programs train while this window trains none: the page in the browser, the command line, another
window.

The run that the window shows is followed as soon as another program resumes it, and read again if it has ended
meanwhile. A notice names any other one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from modules.config.schema import Config
from modules.system.file_lock import Holder
from ui.loop.background import Background
from ui.loop.run_session import RunSession
from ui.widgets.notices import Notice, Notices, Reply

if TYPE_CHECKING:  # the window starts without a run
    from ui.loop.run_state import RunState

ELSEWHERE = "another run"
_LOOK_SECONDS = 3.0


class _Seen(NamedTuple):
    """The runs that other processes train, and how many bytes the log of the shown run has."""

    runs: tuple[Path, ...]
    num_bytes: int


class OtherPrograms:
    """Keeps what the window shows of other programs' runs true. `look` is a source of the pump.

    `follow(run_dir)` shows a run as the current one; `ended` is called when the shown run was read again.
    """

    def __init__(
        self,
        session: RunSession,
        notices: Notices,
        background: Background,
        *,
        workspaces: Callable[[], Iterable[Path]],
        left_runs: Callable[[], Collection[Path | None]],
        follow: Callable[[Path], object],
        watch: Callable[[Path], object],
        show_run: Callable[[Path], object],
        ended: Callable[[], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`left_runs` returns those that a window has left to other processes, and shows in another way.

        `watch(run_dir)` follows a run on its page.
        """
        self._session, self._notices, self._background = session, notices, background
        self._workspaces, self._left_runs = workspaces, left_runs
        self._follow, self._watch, self._show_run, self._ended = follow, watch, show_run, ended
        self._clock = clock
        self._next_look = 0.0
        self._is_looking = False
        self._shown: tuple[RunState | None, int] = (None, 0)  # the state, and the bytes of its log when first seen
        self._followed: Path | None = None  # a run that cannot be followed is not tried again every few seconds
        self._noticed: Path | None = None

    def look(self, _deadline: float) -> bool:
        """Look for runs of other processes, every few seconds while this window trains none."""
        now, is_busy = self._clock(), self._session.stage != "idle" or self._session.is_reserved
        if is_busy:
            self._followed = None
        if is_busy or self._is_looking or now < self._next_look:
            return False
        self._next_look, self._is_looking = now + _LOOK_SECONDS, True
        state = self._session.state
        find = partial(_find, tuple(self._workspaces()), self._left_runs, _folder_of(state))
        self._background.run(find, partial(self._react, state), self._fail)
        return False

    def _fail(self, _error: Exception) -> None:
        self._is_looking = False  # a folder that cannot be read now may be readable at the next look

    def _react(self, state: RunState, seen: _Seen) -> None:
        self._is_looking = False
        if self._session.stage != "idle" or self._session.is_reserved:
            return
        run_dir = _folder_of(state)
        if self._session.state is state and run_dir is not None:
            before, num_bytes = self._shown
            self._shown = (state, num_bytes if before is state else seen.num_bytes)
            if run_dir in seen.runs:
                if run_dir != self._followed:
                    self._followed = run_dir
                    self._notices.remove(ELSEWHERE)
                    self._follow(run_dir)
                return
            self._followed = None
            if seen.num_bytes != self._shown[1]:
                self._background.run(partial(_read, run_dir), partial(self._show_again, state))
        self._notice(seen.runs)

    def _show_again(self, state: RunState, run: tuple[RunState, Config | None]) -> None:
        if self._session.stage == "idle" and self._session.state is state:
            self._session.show_past(*run)
            self._ended()

    def _notice(self, runs: tuple[Path, ...]) -> None:
        if self._noticed not in runs:
            self._notices.remove(ELSEWHERE)
            self._noticed = None
        if not runs or self._noticed is not None:  # one that was dismissed stays away
            return
        self._noticed = runs[0]
        self._background.run(partial(_describe, runs[0]), partial(self._show_notice, runs[0]))

    def _show_notice(self, run_dir: Path, text: str) -> None:
        if self._noticed != run_dir or self._session.stage != "idle":
            return
        replies = (
            Reply("Watch it", partial(self._watch, run_dir)),
            Reply("Show run", partial(self._show_run, run_dir), stays=True),
        )
        self._notices.show(Notice(ELSEWHERE, text, replies, until_start=True))


def _describe(run_dir: Path) -> str:
    """Return the sentence about a run of another program, with the name that the history gives it."""
    from trainer.run_folder.elsewhere import elsewhere_of
    from trainer.run_folder.records import read_record

    name, elsewhere = read_record(run_dir).title, elsewhere_of(run_dir)
    if elsewhere is not None:
        return f"Another program follows a run on {elsewhere.remote}: {name}."
    return f"Another program trains {name}. A second run would share the memory and the speed of the machine with it."


def _folder_of(state: RunState) -> Path | None:
    return Path(state.started.run_dir) if state.started is not None else None


def _find(workspaces: Iterable[Path], left_runs: Callable[[], Collection[Path | None]], shown: Path | None) -> _Seen:
    """Return the runs of other programs. The bytes are counted first: no line of a run that ends is missed."""
    from trainer.run_folder.event_log import num_whole_bytes

    num_bytes = num_whole_bytes(shown) if shown is not None else 0
    runs = runs_elsewhere(workspaces, without=left_runs())
    return _Seen(tuple(run_dir for run_dir, _ in runs), num_bytes)


def _read(run_dir: Path) -> tuple[RunState, Config | None]:
    from trainer.run_folder.records import config_of
    from ui.loop.past_runs import read_past_state

    return read_past_state(run_dir), config_of(run_dir)


def runs_elsewhere(
    workspaces: Iterable[Path], *, without: Collection[Path | None] = ()
) -> tuple[tuple[Path, Holder], ...]:
    """Return the runs that other processes train at the moment, with their processes."""
    from trainer.run_folder.records import running_in

    runs = (run for workspace in dict.fromkeys(workspaces) for run in running_in(workspace))
    return tuple((run_dir, holder) for run_dir, holder in runs if not holder.is_this_process and run_dir not in without)
