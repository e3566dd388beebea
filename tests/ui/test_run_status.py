"""One word for the status of a run, wherever it is shown: at once, after a restart, resumed, forked, in the queue."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from modules.config.schema import Config
from modules.system.paths import queue_file
from tests.ui.conftest import Window
from tests.ui.fake_engine import started, step
from tests.unit.test_run_records import write_run
from trainer.__main__ import main
from trainer.events import Event, PhaseChanged, RunFailed, RunFinished
from trainer.run_folder.backup import list_backups
from trainer.run_folder.fork import fork_into
from trainer.run_folder.records import CRASH, read_record
from trainer.run_queue.file import QueueFile
from trainer.run_status import CRASH_MESSAGE, RunStatus
from ui.app.recent_runs import describe_run
from ui.features.run.facts import run_lines
from ui.features.runs.comparison import compare_runs, figure_rows
from ui.features.runs.model import fact_lines, row_of
from ui.loop.folding import fold
from ui.loop.past_runs import read_past_state
from ui.loop.run_state import RunState

BEGUN = (started(), step(41))
DISK = RunFailed("The disk is full.", "Free some space.")
KILLED = RunFailed(CRASH_MESSAGE, is_crash=True)  # as whoever follows it reports it: in no log
DONE = RunFinished("finished", 40, "Finished after 40 steps.")
# What the log has of a run, and how its last attempt ended.
ROWS: dict[str, tuple[Sequence[Event], RunFinished | RunFailed, str]] = {
    "finished": ((*BEGUN, DONE), DONE, "Finished"),
    "nothing left": ((*BEGUN, e := RunFinished("nothing_left", 40, "No part is trained.")), e, "Finished"),
    "early": ((*BEGUN, e := RunFinished("stopped_early", 40, "Stopped early: 3.")), e, "Stopped early"),
    "stopped": ((*BEGUN, e := RunFinished("stopped", 40, "Stopped after 40 steps.")), e, "Stopped"),
    "stopped before a step": ((e := RunFinished("stopped", 0, "Stopped."),), e, "Stopped"),
    "failed": ((*BEGUN, DISK), DISK, "Failed"),
    "failed while loading": ((PhaseChanged("loading"), DISK), DISK, "Failed"),
    "killed": (BEGUN, KILLED, "Crashed"),
    "killed while loading": ((PhaseChanged("loading"),), KILLED, "Crashed"),
    "resumed, killed": ((*BEGUN, DISK, *BEGUN), KILLED, "Crashed"),
    "resumed, killed while loading": ((*BEGUN, DONE, PhaseChanged("loading")), KILLED, "Crashed"),
    "resumed, finished": ((*BEGUN, DISK, *BEGUN, DONE), DONE, "Finished"),
}


def write_rows(workspace: Path) -> dict[Path, tuple[RunFinished | RunFailed, str]]:
    """Write the runs of the table, and a fork of the first one that was killed as it began."""
    runs = {}
    for number, (events, end, word) in enumerate(ROWS.values(), start=10):
        timed = [(float(minute), event) for minute, event in enumerate(events)]
        runs[write_run(workspace, f"2026-03-{number}_12-00-00", timed, has_backup=True)] = (end, word)
    fork = workspace / "runs" / "2026-03-30_12-00-00"
    fork_into(fork, list_backups(next(iter(runs)))[-1])
    return {**runs, fork: (KILLED, "Crashed")}


def test_a_status_has_the_same_word_wherever_it_is_shown(window: Window, tmp_path: Path) -> None:
    bar, session = window.app.shell.bottom_bar, window.app.context.session
    for run_dir, (end, word) in write_rows(tmp_path).items():
        record, past = read_record(run_dir), read_past_state(run_dir)
        assert record.status.label == row_of(record)[2] == word, run_dir
        assert describe_run(record)[1].startswith(word)
        assert fact_lines(record)[0].startswith(word)
        assert dict(figure_rows(compare_runs([record])))["Ended"] == (word,)
        for state in (past, fold(RunState(), end, 0.0)):  # after a restart, and as it ends
            session.show_past(state, Config())
            bar.refresh()
            assert bar.phase.cget("text") == word
            assert state.end is not None
            assert state.end.text.startswith(bar.detail.cget("text"))
        if past.started is not None and past.failed is not None:
            assert run_lines(past, is_active=False)[0].startswith(f"{word}. ")
        assert record.message == (CRASH if end is KILLED else end).text


def test_the_queue_has_the_same_words(window: Window, capsys: pytest.CaptureFixture[str]) -> None:
    file, words = QueueFile(queue_file()), []
    for number, (_, end, word) in enumerate(ROWS.values(), start=1):
        file.change(lambda now: now.add("zog", Config()).end(number, end.status, end.text))  # noqa: B023 - called at once
        words.append(word)
    for state in (RunStatus.WAITING, RunStatus.INTERRUPTED):
        number = len(words) + 1
        file.change(lambda now: now.add("zog", Config()).end(number, state, ""))  # noqa: B023 - called at once
        words.append(state.label)
    capsys.readouterr()
    assert main(["queue", "list"]) == 0
    assert [line[6:].split("zog")[0].strip() for line in capsys.readouterr().out.splitlines()] == words
    page: Any = window.open_page("queue")
    window.app.queue.refresh()
    tree: tk.Misc = page.table.tree
    window.wait_until(lambda: len(tree.get_children()) == len(words), "the items")  # type: ignore[attr-defined]
    window.settle()
    assert [tree.set(row, "state") for row in tree.get_children()] == words  # type: ignore[attr-defined]
    home: Any = window.open_page("home")
    assert home.queue.text.cget("text").splitlines() == ["zog: waiting", "zog: interrupted"]
