"""The Run history page and the Queue page in the window, driven by the pointer, with a fake engine."""

from __future__ import annotations

import json
import shlex
import tkinter as tk
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from modules.config.codec import save_file
from modules.config.schema import Config
from modules.settings.edit import set_path
from modules.system.paths import queue_file
from tests.ui.conftest import Window
from tests.ui.fake_engine import started as run_started
from tests.ui.fake_engine import step
from tests.ui.real_input import click, click_row, keys
from tests.unit.test_run_records import started, validated, write_run
from trainer.event_lines import to_line
from trainer.events import Event, RunFailed, RunFinished
from trainer.machine_events import ImagesReported
from trainer.preflight import Report
from trainer.run_folder.backup import BackupInfo, write_backup
from trainer.run_folder.elsewhere import Elsewhere, note_elsewhere
from trainer.run_folder.records import config_of
from trainer.run_folder.run_dir import begun_at
from trainer.run_queue.file import QueueFile
from trainer.run_status import RunStatus
from ui.app.message_bars import NoticeLine
from ui.features.runs.comparison import RunComparison
from ui.features.runs.fork_window import ForkWindow
from ui.forms.model import Source
from ui.loop.wording import describe_continuation

FINISHED = RunFinished("finished", 400, "Finished after 400 steps.")


def config_in(workspace: Path, epochs: int = 10) -> Config:
    config = Config()
    for path, value in (("general.workspace_dir", str(workspace)), ("training.epochs", epochs)):
        config, problems = set_path(config, path, value)
        assert not problems
    return config


def day(number: int) -> str:
    return f"2026-03-{number:02}_12-00-00"


def crashed(workspace: Path, number: int, *, epochs: int) -> BackupInfo:
    """Write a run that ended unexpectedly after its backup of step 20."""
    events: list[tuple[float, Event]] = [(0, started(workspace)), (1, validated(1, 0.5, 0.5, 1))]
    run_dir = write_run(workspace, day(number), [*events, *((n, step(n)) for n in range(1, 34))])
    config = config_in(workspace, epochs)
    save_file(config, run_dir / "config.json")

    def files(folder: Path) -> None:
        save_file(config, folder / "config.json")

    return write_backup(run_dir, step=20, epoch=1, now=datetime(2026, 3, number, 12, 4), write=files)


def notice(window: Window, words: str) -> NoticeLine:
    """Return the notice with some words, once it is shown."""

    def lines() -> list[NoticeLine]:
        return [line for line in window.app.shell.notice_bar.lines if words in line.notice.text]

    window.wait_until(lines, f"the notice about {words}")
    window.settle()
    return lines()[0]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return tmp_path / "workspace"


@pytest.fixture
def opened(open_window: Callable[..., Window], workspace: Path) -> Window:
    """A window whose config writes to the workspace."""
    first = open_window()
    first.app.form.load(config_in(workspace), Source("zog"))
    return first


def test_the_images_of_an_earlier_run_are_compared(
    opened: Window, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line alone could, and the window while the run trained."""
    backup = crashed(workspace, 1, epochs=3)
    monkeypatch.setattr("trainer.child.run.launch_as_set", opened.engine.launch)
    page: Any = opened.open_page("runs")
    opened.wait_until(lambda: len(page.listed_runs) == 1, "the run")
    opened.settle()
    config, context = opened.app.form.config, opened.app.context
    page.make_menu().invoke("Compare its images")
    opened.wait_until(lambda: opened.engine.run, "the start")
    run = opened.engine.run
    assert run is not None
    assert (run.request.kind, run.request.resume_from) == ("report", backup.path)
    summary = "1 of 20 images stands out: dog.png."
    run.emit(ImagesReported(20, 20, summary, str(backup.run_dir / "images.html"), {"/dog.png": 2.5}))
    run.end(RunFinished("reported", 20, summary, str(backup.run_dir / "images.html")))
    shown: Any = opened.app.shell.pages["run"]
    opened.wait_until(lambda: context.session.state.finished is None and context.session.state.step, "the run itself")
    opened.wait_until(shown.notices.images.winfo_ismapped, "the report")
    assert shown.notices.images.text.cget("text") == summary
    assert context.session.state.step.step == 33
    assert not shown.end_card.winfo_manager(), "nothing has been trained"
    assert opened.app.form.config == config
    assert context.session.config == config_of(backup.run_dir), "its own settings, which log to TensorBoard"
    state = context.session.state
    assert state.started is not None
    state = replace(state, started=replace(state.started, run_dir=str(backup.run_dir)))
    context.session.show_past(state, context.session.config)
    context.actions.run("report_images")  # on the Run page, which shows the run that has ended
    opened.wait_until(lambda: opened.engine.run is not run, "another report")
    again = opened.engine.run
    assert again is not None
    assert (again.request.kind, again.request.resume_from) == ("report", backup.path)
    again.end(RunFinished("stopped", 0, "Stopped."))


def test_a_run_is_named_found_by_its_name_and_its_command_copied(
    opened: Window, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed(workspace, 1, epochs=3)
    crashed(workspace, 2, epochs=3)
    page: Any = opened.open_page("runs")
    opened.wait_until(lambda: len(page.listed_runs) == 2, "the runs")
    opened.settle()
    opened.asked.answers["ask_text"] = "  Wuffi, with   masks "
    page.table.tree.focus_force()
    page.make_menu().invoke(0)
    opened.wait_until(lambda: page.table.tree.set("0", "model") == "Wuffi, with masks", "the name")
    page.search.set("wuffi")
    opened.wait_until(lambda: len(page.listed_runs) == 1, "the search")
    run_dir = page.listed_runs[0].run_dir
    assert run_dir.name == day(2), "its folder stays"
    opened.settle()
    page.make_menu().invoke("Copy the command that resumes it")
    command = opened.app.root.clipboard_get()
    assert shlex.split(command)[1:] == ["resume", str(run_dir)]
    assert Path(shlex.split(command)[0]).is_file()
    opened.asked.answers["ask_text"] = ""
    page.rename()
    page.search.set("")
    opened.wait_until(lambda: page.table.tree.set("0", "model") != "Wuffi, with masks", "the former name")
    assert begun_at(run_dir) is None, "a run of a version without run.json"
    note_elsewhere(run_dir, Elsewhere("box", "job", "/r/job", str(workspace / "lora.safetensors")))
    page.refresh()
    opened.wait_until(lambda: "On box" in [page.table.tree.set(row, "ending") for row in "01"], "the machine")
    page.show_run(run_dir)
    opened.settle()
    assert page.details.facts.cget("text").startswith("It trains on box, or has ended there")
    assert page.make_menu().entrycget(0, "label") == "Follow on box"
    with (run_dir / "events.jsonl").open("a", encoding="utf-8") as log:
        log.write(to_line(RunFinished("stopped", 3, "Stopped.")) + "\n")
    page.refresh()
    opened.wait_until(lambda: "On box" not in [page.table.tree.set(row, "ending") for row in "01"], "its end")
    page.show_run(run_dir)
    opened.settle()
    resumed: list[tuple[Path, bool]] = []
    resume = lambda run_dir, *, resumes: resumed.append((run_dir, resumes))  # noqa: E731
    monkeypatch.setattr(opened.app.closing, "follow_elsewhere", resume)
    menu = page.make_menu()
    assert menu.entrycget(0, "label") == "Resume on box"
    menu.invoke(0)
    assert resumed == [(run_dir, True)]
    assert "resumes it there" in describe_continuation(RunFailed("x", "y"), str(run_dir), "box")


def test_a_run_is_reopened_compared_deleted_brought_back_forked_and_resumed(
    opened: Window, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = crashed(workspace, 1, epochs=55)
    crashed(workspace, 2, epochs=66)
    page: Any = opened.open_page("runs")
    opened.wait_until(lambda: len(page.listed_runs) == 2, "the runs")
    opened.settle()
    assert page.table.tree.set("0", "ending") == "Crashed"
    assert page.selected_runs[0].run_dir.name == day(2), "the newest run is selected"
    opened.wait_until(lambda: page.details.state.series, "its curve")
    opened.settle()
    assert page.details.card.is_stacked, "facts and curve are shown together"
    assert page.details.facts.winfo_ismapped()
    assert page.details.chart.winfo_ismapped()
    page.details.chart.event_generate("<Button-4>", x=200, y=60)
    assert page.details.chart.zoom.steps
    opened.app.root.geometry("1024x600")
    opened.wait_until(lambda: not page.details.card.is_stacked, "tabs in a low window")
    opened.settle()
    assert page.details.facts.winfo_ismapped()
    assert not page.details.chart.winfo_ismapped()
    opened.app.root.geometry("1100x740")
    opened.wait_until(lambda: page.details.card.is_stacked, "both again")
    usable = [name for name, button in page.buttons.items() if button.cget("state") == "normal"]
    assert usable == ["reopen", "resume", "fork", "delete", "more", "trash"]
    assert not page.buttons["trash"].winfo_manager(), "nothing was deleted yet"

    page.table.select([1])
    opened.settle()
    opened.wait_until(lambda: page.details.state.series, "the curve")
    opened.settle()
    assert "Step 33 of 40" in page.details.facts.cget("text")
    assert page.details.chart.zoom.steps is None, "the whole of another run"
    assert page.details.backup.step == 20
    looks, keep = list[object](), opened.app.starter._keep_backup
    monkeypatch.setattr(opened.app.starter, "_keep_backup", lambda found: (looks.append(found), keep(found)))
    page.buttons["reopen"].invoke()
    opened.wait_until(lambda: opened.app.form.config.training.epochs == 55, "the settings of the run")
    opened.wait_until(lambda: looks, "the backup, which was not offered next to a run of another machine")
    assert opened.app.context.navigation.page == "run"
    run_page: Any = opened.app.shell.pages["run"]
    opened.wait_until(lambda: run_page.curves.chart.lines, "the curve on the Run page")

    opened.open_page("runs")
    page.table.select([0, 1])
    opened.settle()
    page.buttons["compare"].invoke()
    root = opened.app.root
    opened.wait_until(lambda: any(isinstance(w, RunComparison) for w in root.winfo_children()), "the comparison")
    comparison = next(w for w in root.winfo_children() if isinstance(w, RunComparison))
    opened.wait_until(lambda: comparison.runs, "the runs")
    assert [len(line.series) for line in comparison.chart.lines] == [33, 1, 33, 1]
    texts = [comparison.table.tree.item(row, "text").strip() for row in comparison.table.tree.get_children()]
    assert "Training › Epochs" in texts
    comparison.close()

    opened.asked.answers["choose"] = "delete"
    page.buttons["delete"].invoke()
    opened.wait_until(lambda: not page.listed_runs, "an empty list")
    [(title, message, *_)] = opened.asked.asked("choose")
    assert title == "Delete 2 runs?"
    assert "backups" in message
    opened.wait_until(lambda: page.buttons["trash"].winfo_manager(), "the button that empties the trash")
    notice(opened, "Moved 2 runs").buttons["Undo"].invoke()
    opened.wait_until(lambda: len(page.listed_runs) == 2, "the runs again")

    monkeypatch.setattr(opened.app.context.session, "_check", lambda config, **_options: Report((), None))
    page.table.select([1])
    opened.settle()
    page.buttons["fork"].invoke()
    [forking] = [w for w in opened.app.root.winfo_children() if isinstance(w, ForkWindow)]
    opened.wait_until(lambda: forking.source, "the backups")
    assert "continues as" in forking.explanation.cget("text")
    forking.name.set("second")
    forking.load_button.invoke()
    line = notice(opened, "then press Start")
    opened.settle()
    assert opened.app.shell.bottom_bar.start.cget("text") == "Start the fork"
    assert opened.app.context.navigation.page == "training"
    opened.app.form.edit("training.epochs", 70)
    line.buttons["Start"].invoke()
    opened.wait_until(lambda: opened.engine.requests, "the fork")
    [request] = opened.engine.requests
    assert (request.kind, request.resume_from, request.config.training.epochs) == ("fork", backup.path, 70)
    assert opened.engine.run is not None
    opened.engine.run.end(FINISHED)
    opened.wait_until(lambda: opened.app.context.session.stage == "idle", "the end")
    opened.settle()
    assert not opened.app.shell.notice_bar.lines

    opened.open_page("runs")
    page.table.select([1])
    opened.settle()
    page.buttons["resume"].invoke()
    opened.wait_until(lambda: len(opened.engine.requests) == 2, "the resumed run")
    assert opened.engine.requests[1].kind == "resume"
    assert opened.app.form.config.training.epochs == 55
    opened.engine.run.end(FINISHED)
    opened.wait_until(lambda: opened.app.context.session.stage == "idle", "the end")

    last = replace(page._backup(), epoch=55)
    monkeypatch.setattr(page, "_backup", lambda: last)
    record = replace(page._single_run(), status=RunStatus.FINISHED, step=last.step)
    monkeypatch.setattr(page, "_single_run", lambda: record)
    opened.asked.answers["ask_text"] = "3"
    page.resume()
    opened.wait_until(lambda: len(opened.engine.requests) == 3, "the finished run, which has nothing left to train")
    assert opened.engine.requests[2].config.training.epochs == 58
    opened.engine.run.end(FINISHED)
    opened.wait_until(lambda: opened.app.context.session.stage == "idle", "its end")


def test_a_queue_of_two_runs_with_a_failure_an_edit_and_an_undo(opened: Window, workspace: Path) -> None:
    page: Any = opened.open_page("queue")
    queue = opened.app.queue
    for number in (1, 2, 3):
        click(opened, page.buttons["add"])
        opened.wait_until(lambda number=number: len(queue.queue.items) == number, "the item")  # type: ignore[misc]
        opened.app.form.edit("training.epochs", 10 + number)
    file = workspace.parent / "file.json"
    save_file(config_in(workspace, 7), file)
    opened.asked.answers["ask_file"] = file
    page.buttons["file"].invoke()
    opened.wait_until(lambda: queue.queue.items[-1].name == "file", "the config of a file")
    menu = page.preset_menu(opened.app.context.documents.presets())
    menu.nametowidget(menu.entrycget("Demo", "menu")).invoke(0)
    opened.wait_until(lambda: len(queue.queue.items) == 5, "a preset")
    opened.settle()
    page.table.select([3, 4])
    page.remove()
    opened.wait_until(lambda: len(queue.queue.items) == 3, "the removal of both")
    click_row(opened, page.table.tree, "2")
    keys(opened, "Delete")
    opened.wait_until(lambda: len(queue.queue.items) == 2, "the removal")
    click(opened, notice(opened, "Removed zog").buttons["Undo"])
    opened.wait_until(lambda: len(queue.queue.items) == 3, "the item again")
    click_row(opened, page.table.tree, "2")
    keys(opened, "alt+Up")
    opened.wait_until(lambda: [item.number for item in queue.queue.items] == [1, 3, 2], "the move")
    opened.wait_until(lambda: page.table.tree.set("1", "length").startswith("12 epochs"), "the move in the list")
    assert [item.number for item in page.selected_items] == [3], "an arrow key alone would select the row above, too"

    click(opened, page.buttons["run"])
    opened.wait_until(lambda: len(opened.engine.children) == 1 and opened.engine.run, "the first child")
    first = opened.engine.run
    assert first is not None
    first.emit(run_started("/tmp/runs/one"), step(40))
    bar = opened.app.shell.bottom_bar
    opened.wait_until(lambda: bar.step_label.cget("text") == "Step 40 of 40", "the steps in the bar")
    opened.wait_until(lambda: page.table.tree.set("0", "message") == "step 40 of 400", "the steps in the list")
    opened.wait_until(lambda: page.table.tree.set("0", "state") == "Running", "the state, which the queue's file has")

    click_row(opened, page.table.tree, "1")
    click(opened, page.buttons["edit"])
    line = notice(opened, "You are editing zog")
    opened.app.form.edit("training.epochs", 99)
    click(opened, line.buttons["Save to the queue"])
    opened.wait_until(lambda: queue.queue.item(3).config.training.epochs == 99, "the saved item")

    first.end(RunFailed("The GPU ran out of memory.", "Lower the batch size."))
    opened.wait_until(lambda: len(opened.engine.children) == 2 and opened.engine.run is not first, "the second child")
    assert opened.engine.children[1].config.training.epochs == 99
    assert not opened.asked.asked("show_failure"), "the queue continues without a dialog"
    page = opened.open_page("queue")
    click(opened, page.buttons["last"])
    second = opened.engine.run
    assert second is not None
    second.end(FINISHED)
    opened.wait_until(lambda: not queue.is_running, "the end")
    opened.settle()
    states = [page.table.tree.set(row, "state") for row in page.table.tree.get_children()]
    assert states == ["Failed", "Finished", "Waiting"]
    opened.wait_until(lambda: page.status.cget("text") == "1 run left.", "the state of the queue")


def test_after_a_restart_the_runs_and_the_queue_are_found_again(
    open_window: Callable[..., Window], workspace: Path, tmp_path: Path
) -> None:
    first = open_window()
    first.app.preferences.note_workspace(workspace)
    backup = crashed(workspace, 1, epochs=55)
    file = QueueFile(queue_file())
    file.change(lambda queue: queue.add("zog", config_in(workspace)).begin(1))
    again = open_window()
    line = notice(again, "ended unexpectedly at step 33 of 40")
    interrupted = notice(again, "The queue was interrupted while it trained zog")
    interrupted.buttons["Show queue"].invoke()
    page: Any = again.app.shell.pages["queue"]
    again.wait_until(lambda: page.table.tree.set("0", "state") == "Interrupted", "the item")
    line.buttons["Show run"].invoke()
    runs: Any = again.app.shell.pages["runs"]
    again.wait_until(lambda: runs.selected_runs, "the run")
    assert runs.selected_runs[0].run_dir == backup.run_dir
    assert again.app.form.config.general.workspace_dir != str(workspace)
    line.buttons["Dismiss"].invoke()
    again.settle()
    assert again.app.preferences.now.dismissed_run == str(backup.run_dir)
    assert json.loads(queue_file().read_text())["items"][0]["state"] == "running"
    assert isinstance(again.app.root, tk.Tk)
