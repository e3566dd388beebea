"""Choosing among the images of a run in the window, by pointer and keys."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.ui.conftest import Window
from tests.ui.driving import texts_in
from tests.ui.fake_engine import FakeRun, started, step
from tests.ui.real_input import keys, xdotool
from trainer.events import BackupSaved, PhaseChanged, RunFinished
from trainer.launch import RunRequest
from trainer.rollout_events import ChoicesWanted
from trainer.run_folder.choices import SKIP, TIE, Answer, Request, answer, answer_of, ask, withdraw
from trainer.wording import PHASE_LABELS
from ui.features.choose.page import BEST, BETTER_OF_TWO, DONE_STOPPED, STOPPED, WORST
from ui.widgets.grid_layout import largest_squares


def png(shade: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (64, 64), (shade, 100, 40)).save(file, "PNG")
    return file.getvalue()


def asked(run_dir: Path, number: int, num_images: int = 2, *, at: int = 0) -> list[Request]:
    return [
        ask(run_dir, f"step{at:08d}-{n:03d}", f"prompt {n}", [png(40 * k + n + at) for k in range(num_images)])
        for n in range(number)
    ]


@pytest.fixture
def run(window: Window, tmp_path: Path) -> Any:
    """A run of the window whose folder is `tmp_path`."""
    window.app.context.session.begin(RunRequest(window.app.form.config))
    assert window.engine.run is not None
    window.engine.run.emit(started(str(tmp_path)), PhaseChanged("training"), step(1))
    yield window.engine.run
    if not window.app._is_closed:
        window.engine.run.end(RunFinished("finished", 1, "Done."))
        window.wait_until(lambda: window.app.context.session.stage == "idle", "the end")


def want(window: Window, run: FakeRun, run_dir: Path, number: int) -> None:
    run.emit(PhaseChanged("choosing"), ChoicesWanted(1, str(run_dir / "choices"), number))
    window.wait_until(lambda: window.app.context.session.state.choices, "the event")
    window.settle()


def press_choose(window: Window) -> Any:
    """Press the button that appears in the bottom bar, and wait for the images."""
    button = window.app.shell.bottom_bar.second
    window.wait_until(lambda: button.cget("text") == "Choose", "the button")
    button.invoke()
    window.settle()
    page: Any = window.app.shell.pages["choose"]
    window.wait_until(lambda: page.board.is_loaded, "the images")
    window.settle()
    return page


def seen(window: Window, page: Any, position: str) -> None:
    """Wait until a request is on the screen with its images."""
    window.wait_until(lambda: page.progress.cget("text") == position and page.board.is_loaded, position)
    window.settle()


def answers(window: Window, requests: list[Request]) -> list[Answer | None]:
    window.wait_until(lambda: not window.app.shell.pages["choose"].choosing._is_busy, "the files")  # type: ignore[attr-defined]
    return [answer_of(request) for request in requests]


def test_the_page_appears_when_the_run_asks(window: Window, run: FakeRun, tmp_path: Path) -> None:
    entry = window.app.shell.side_bar.entries["choose"]
    assert not entry.winfo_ismapped()
    asked(tmp_path, 2)
    want(window, run, tmp_path, 2)
    window.wait_until(entry.winfo_ismapped, "the entry")
    assert "2" in texts_in(entry)
    bar = window.app.shell.bottom_bar
    window.wait_until(lambda: bar.phase.cget("text") == PHASE_LABELS["choosing"], "the phase")
    page = press_choose(window)
    assert page.prompt.cget("text") == "prompt 0"
    assert page.question.cget("text") == BETTER_OF_TWO
    window.wait_until(lambda: bar.second.cget("text") == "Pause", "the other button")


def test_real_keys_and_clicks_choose(window: Window, run: FakeRun, tmp_path: Path) -> None:
    requests = asked(tmp_path, 6)
    want(window, run, tmp_path, 6)
    window.app.root.focus_force()
    page = press_choose(window)
    for number, name in enumerate(("Left", "2", "Down", "space"), 1):
        seen(window, page, f"{number} of 6")
        keys(window, name)
    seen(window, page, "5 of 6")
    side = page.board.layout().cell_width
    x, y = (v + side // 2 for v in page.board.place_of(1))
    xdotool("mousemove", str(page.board.winfo_rootx() + x), str(page.board.winfo_rooty() + y))
    window.wait_until(lambda: page.board.canvas.find_withtag("ring"), "the frame under the pointer")
    xdotool("click", "1")
    seen(window, page, "6 of 6")
    keys(window, "u")
    seen(window, page, "5 of 6")
    keys(window, "Right")
    seen(window, page, "6 of 6")
    keys(window, "t")
    window.wait_until(page.nothing.winfo_ismapped, "the end")
    first, second = Answer("chosen", 0, 1), Answer("chosen", 1, 0)
    assert answers(window, requests) == [first, second, TIE, SKIP, second, TIE]
    assert "Thank you" in page.nothing_title.cget("text")


def test_four_images_take_the_best_and_then_the_worst(window: Window, run: FakeRun, tmp_path: Path) -> None:
    requests = asked(tmp_path, 1, 4)
    want(window, run, tmp_path, 1)
    page = press_choose(window)
    assert page.board.layout().count == 4
    assert page.question.cget("text") == BEST
    page.frame.event_generate("<Left>")  # means nothing here
    page.frame.event_generate("3")
    window.settle()
    assert page.question.cget("text") == WORST
    assert "3   best" in [page.board.canvas.itemcget(i, "text") for i in page.board.canvas.find_withtag("label")]
    assert page.board.canvas.find_withtag("ring")
    page.frame.event_generate("1")
    window.wait_until(page.nothing.winfo_ismapped, "the end")
    assert answers(window, requests) == [Answer("chosen", 2, 0)]


def test_keys_work_while_the_window_itself_has_the_focus(window: Window, run: FakeRun, tmp_path: Path) -> None:
    """Tk may leave the focus there while the page is shown for the first time; other pages take no such key."""
    requests = asked(tmp_path, 2)
    want(window, run, tmp_path, 2)
    page = press_choose(window)
    window.app.root.focus_force()
    window.app.root.event_generate("<Left>")
    seen(window, page, "2 of 2")
    window.app.context.navigation.open("output")
    window.app.root.event_generate("<Left>")
    window.settle()
    assert answers(window, requests) == [Answer("chosen", 0, 1), None]


def test_shortcuts_stay_shortcuts(window: Window, run: FakeRun, tmp_path: Path) -> None:
    requests = asked(tmp_path, 1)
    want(window, run, tmp_path, 1)
    page = press_choose(window)
    page.frame.focus_force()
    for sequence in ("<Control-s>", "<Control-Key-2>"):
        page.frame.event_generate(sequence)
    window.settle()
    assert window.asked.asked("ask_save_file")
    assert window.app.context.navigation.page == "model"
    assert answers(window, requests) == [None]


def test_a_key_does_not_answer_unseen_images(window: Window, run: FakeRun, tmp_path: Path) -> None:
    requests = asked(tmp_path, 2)
    want(window, run, tmp_path, 2)
    page = press_choose(window)
    page.choosing._open.clear()
    page.choosing._open.append(requests[1])
    page.board.show(["/nowhere/0.png", "/nowhere/1.png"], [])
    page.frame.event_generate("<Left>")
    assert page.choosing.request == requests[1]
    window.wait_until(lambda: page.board.is_loaded, "the failure")
    assert answers(window, requests) == [None, None]


def test_the_next_round_of_a_run_is_shown_at_once(window: Window, run: FakeRun, tmp_path: Path) -> None:
    requests = asked(tmp_path, 1)
    want(window, run, tmp_path, 1)
    page = press_choose(window)
    page.buttons["tie"].invoke()
    window.wait_until(page.nothing.winfo_ismapped, "the end")
    withdraw(requests[0])
    run.emit(ChoicesWanted(1, "", 0), PhaseChanged("training"), step(2))
    window.wait_until(lambda: window.app.context.session.state.choices is None, "the event")
    window.settle()
    asked(tmp_path, 3, at=1)
    want(window, run, tmp_path, 3)
    seen(window, page, "1 of 3")


@pytest.mark.parametrize("has_backup", [True, False])
def test_the_choices_of_a_stopped_run_are_for_its_resumption(
    window: Window, run: FakeRun, tmp_path: Path, has_backup: bool
) -> None:
    """They were shown as before, and after the last one the page said that the run continues."""
    asked(tmp_path, 1)
    want(window, run, tmp_path, 1)
    page = press_choose(window)
    if has_backup:
        run.emit(BackupSaved(1, str(tmp_path / "backup")))
    run.end(RunFinished("stopped", 1, "Stopped."))
    window.wait_until(lambda: window.app.context.session.stage == "idle", "the end")
    window.settle()
    if not has_backup:
        assert page.nothing.winfo_ismapped(), "no run will use them"
        return
    assert page.question.cget("text") == f"{BETTER_OF_TWO} {STOPPED}"
    page.choosing.pick(0)
    window.wait_until(lambda: page.nothing_title.cget("text") == DONE_STOPPED, "the end of the questions")


def test_a_stop_after_the_last_choice_is_said(window: Window, run: FakeRun, tmp_path: Path) -> None:
    """The page still said that the run continues."""
    asked(tmp_path, 1)
    want(window, run, tmp_path, 1)
    page = press_choose(window)
    page.choosing.pick(0)
    run.emit(ChoicesWanted(1, str(tmp_path / "choices"), 0), BackupSaved(1, str(tmp_path / "backup")))
    window.wait_until(lambda: page.nothing.winfo_ismapped(), "the thanks")
    assert "The run continues" in page.nothing_title.cget("text")
    run.end(RunFinished("stopped", 1, "Stopped."))
    window.wait_until(lambda: page.nothing_title.cget("text") == DONE_STOPPED, "the end")


def test_a_run_of_another_process_is_opened_as_a_folder(window: Window, tmp_path: Path) -> None:
    requests = asked(tmp_path, 2)
    window.app.context.navigation.open("choose")
    window.settle()
    page: Any = window.app.shell.pages["choose"]
    window.asked.answers["ask_folder"] = tmp_path / "choices" / "open"
    page.open_button.invoke()
    window.settle()
    assert page.choosing.run_dir is None
    window.asked.answers["ask_folder"] = tmp_path / "choices"
    page.open_button.invoke()
    seen(window, page, "1 of 2")
    answer(requests[0], SKIP)  # by another program
    window.wait_until(lambda: page.prompt.cget("text") == "prompt 1", "the next request")


@pytest.mark.parametrize(
    ("number", "size"), [(2, (900, 420)), (2, (400, 900)), (4, (900, 420)), (4, (900, 800)), (3, (50, 30))]
)
def test_images_are_as_large_as_fits(number: int, size: tuple[int, int]) -> None:
    layout = largest_squares(number, *size, 16, 26)
    assert layout.count == number
    if min(size) > 100:
        corners = [layout.corner(n) for n in range(number)]
        assert all(left >= 0 and left + layout.cell_width <= size[0] for left, _ in corners)
        assert all(top + layout.cell_width + 26 <= size[1] for _, top in corners)
        assert layout.cell_width >= 150
