"""While the window trains no run, it notices those of other programs."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from modules.system.file_lock import Holder
from tests.ui.test_starting import Bench
from tests.unit.test_run_records import started, step, write_run
from trainer.event_lines import to_line
from trainer.events import RunFinished
from trainer.run_folder.elsewhere import Elsewhere, note_elsewhere
from trainer.run_folder.event_log import EVENTS_FILE
from ui.app.other_programs import ELSEWHERE, OtherPrograms
from ui.loop.past_runs import read_past_state
from ui.widgets.notices import Notices

NAME = "2026-03-01_12-00-00"


class AtOnce:
    """Does the work of the background at once."""

    def run(
        self,
        work: Callable[[], Any],
        done: Callable[[Any], object],
        failed: Callable[[Exception], object] | None = None,
    ) -> None:
        done(work())


class Desk(Bench):
    """A session, and what is noticed next to it."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(tmp_path)
        self.notices, self.now = Notices(), 0.0
        self.left: tuple[Path, ...] = ()
        self.followed: list[Path] = []
        self.shown: list[Path] = []
        self.num_ended = 0
        self.runs: list[tuple[Path, Holder]] = []
        monkeypatch.setattr("trainer.run_folder.records.running_in", lambda _workspace: self.runs)
        self.programs = OtherPrograms(
            self.session,
            self.notices,
            AtOnce(),  # type: ignore[arg-type]
            workspaces=lambda: (self.workspace,),
            left_runs=lambda: self.left,
            follow=self.followed.append,
            watch=lambda run_dir: self.shown.append(run_dir / "watched"),
            show_run=self.shown.append,
            ended=self._note_end,
            clock=lambda: self.now,
        )

    def _note_end(self) -> None:
        self.num_ended += 1

    def train(self, *run_dirs: Path) -> None:
        """Let another process, and this one, train runs."""
        other = replace(Holder.of(os.getpid()), pid=os.getppid())
        self.runs = [(self.workspace / "runs" / "own", Holder.of(os.getpid())), *((run, other) for run in run_dirs)]

    def look(self) -> None:
        self.now += 60
        self.programs.look(0.0)

    def texts(self) -> list[str]:
        assert all(notice.key == ELSEWHERE for notice in self.notices.items)
        return [notice.text for notice in self.notices.items]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(tmp_path, monkeypatch)


def test_a_run_of_another_program_is_noticed_as_long_as_it_trains(desk: Desk) -> None:
    """The window looked once, when it opened."""
    run_dir = desk.workspace / "runs" / NAME
    desk.train()
    desk.look()
    assert desk.texts() == []
    desk.train(run_dir)
    desk.left = (run_dir,)
    desk.look()
    assert desk.texts() == [], "it is followed again"
    desk.left = ()
    desk.session.is_reserved = True
    desk.look()
    assert desk.texts() == [], "the queue is between two runs"
    desk.session.is_reserved = False
    desk.look()
    [text] = desk.texts()
    assert text.startswith(f"Another program trains {NAME}. ")
    labels = [reply.label for reply in desk.notices.items[0].replies]
    assert labels == ["Watch it", "Show run"]
    for reply in reversed(desk.notices.items[0].replies):
        reply.press()
    assert desk.shown == [run_dir, run_dir / "watched"]
    desk.notices.dismiss(desk.notices.items[0])
    desk.look()
    assert desk.texts() == [], "it was dismissed"
    desk.train()
    desk.look()
    run_dir.mkdir(parents=True)
    note_elsewhere(run_dir, Elsewhere("box", "job", "/r/job", str(desk.workspace / "lora.safetensors")))
    desk.train(run_dir)
    desk.look()
    assert desk.texts() == [f"Another program follows a run on box: {NAME}."]
    desk.train()
    desk.look()
    assert desk.texts() == [], "it has ended"


def test_the_shown_run_is_followed_when_another_program_resumes_it(desk: Desk) -> None:
    """The page in the browser resumed it: the window showed it as stopped, with offers about its result."""
    run_dir = write_run(desk.workspace, NAME, [(0.0, started(str(desk.workspace))), (5.0, step(1)), (6.0, ending(1))])
    desk.session.show_past(read_past_state(run_dir))
    desk.train()
    desk.look()
    assert desk.session.state.started is not None
    shown = Path(desk.session.state.started.run_dir)
    desk.train(shown)
    desk.look()
    assert desk.followed == [shown]
    assert desk.texts() == []
    desk.look()
    assert desk.followed == [shown], "it could not be followed, which was shown: not every few seconds"
    desk.train()
    desk.look()
    desk.train(shown)
    desk.look()
    assert desk.followed == [shown, shown], "it was resumed again"


def test_the_shown_run_is_read_again_after_another_program_has_trained_it(desk: Desk) -> None:
    run_dir = write_run(desk.workspace, NAME, [])
    write(run_dir, replace(started(str(run_dir)), run_dir=str(run_dir)), ending(1))
    desk.session.show_past(read_past_state(run_dir))
    desk.train()
    desk.look()
    write(run_dir, replace(started(str(run_dir)), run_dir=str(run_dir), first_step=1), step(2), ending(2, "finished"))
    desk.look()
    assert isinstance(desk.session.state.end, RunFinished)
    assert desk.session.state.end.step == 2
    assert desk.num_ended == 1
    desk.look()
    desk.look()
    assert desk.num_ended == 1, "nothing has changed since"


def test_nothing_is_done_while_a_run_starts(desk: Desk) -> None:
    run_dir = desk.workspace / "runs" / NAME
    desk.train(run_dir)
    waiting: list[Callable[[], object]] = []
    desk.session.prepare(lambda: None, lambda _result: waiting.append(lambda: None))
    desk.now += 60
    assert desk.session.stage == "checking"
    desk.programs.look(0.0)
    desk.wait_until(lambda: waiting)
    assert desk.texts() == []


def ending(step_number: int, outcome: str = "stopped") -> RunFinished:
    return RunFinished(outcome, step_number, "It has ended.")  # type: ignore[arg-type]


def write(run_dir: Path, *events: object) -> None:
    with (run_dir / EVENTS_FILE).open("a", encoding="utf-8") as file:
        file.writelines(f"{to_line(event, time='2026-03-01T12:00:00')}\n" for event in events)  # type: ignore[arg-type]
