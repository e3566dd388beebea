"""The card of a first start: the ways to begin, and the steps that follow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modules.config.codec import save_file
from modules.config.presets import DEMO
from modules.config.schema import Config
from modules.data.concept import Concept
from modules.system.problem import Problem
from tests.ui.conftest import Window
from tests.ui.fake_engine import started
from trainer.events import RunFinished
from trainer.launch import RunRequest
from trainer.preflight.report import Report
from ui.app.catalogue import PAGES
from ui.features.first_steps import WAYS, Progress, current_step
from ui.forms.model import Source
from ui.loop.run_state import RunState

OF_DEMO = Source(DEMO, Path("demo.json"), "built_in")


@pytest.mark.parametrize(
    ("way", "progress", "step"),
    [
        ("demo", Progress(Source()), "Load the demo"),
        ("demo", Progress(OF_DEMO), "Start"),
        ("demo", Progress(OF_DEMO, has_started=True), "Watch"),
        ("demo", Progress(OF_DEMO, has_started=True, has_finished=True), ""),
        ("config", Progress(OF_DEMO), "Open"),
        ("config", Progress(Source("old", Path("old.json"), "file"), num_errors=2), "Check"),
        ("config", Progress(Source("a kohya file"), lacks_images=True), "Images"),
        ("config", Progress(Source("a kohya file")), "Start"),
    ],
)
def test_the_first_open_step_is_the_current_one(way: str, progress: Progress, step: str) -> None:
    number = current_step(WAYS[way], progress)
    titles = [s.title for s in WAYS[way].steps]
    assert (titles[number] if number < len(titles) else "") == step


def test_every_step_opens_a_page_or_runs_an_action(window: Window) -> None:
    pages = {page.key for page in PAGES}
    for way in WAYS.values():
        assert not way.action or window.app.context.actions[way.action]
        for step in way.steps:
            assert bool(step.action) is not bool(step.page)
            assert step.page in pages or window.app.context.actions[step.action]
    assert not window.app.shell.first_steps.winfo_ismapped()


def test_the_card_leads_through_the_demo_and_stays_away_once_closed(open_window: Callable[..., Window]) -> None:
    window = open_window()
    card, context = window.app.shell.first_steps, window.app.context
    home: Any = window.open_page("home")
    assert not card.winfo_ismapped()
    assert {name: home.work.buttons[name].cget("text") for name in WAYS} == {n: way.label for n, way in WAYS.items()}
    home.work.buttons["demo"].invoke()
    window.settle()
    assert context.form.source.name == DEMO
    assert context.preferences.now.first_steps == "demo"
    assert "go" not in card.buttons, "Start is in the bottom bar"
    context.session.show_past(RunState(started=started(), finished=RunFinished("stopped", 3, "Stopped.")))
    window.settle()
    assert card.buttons["go"].cget("text") == "Open the Run page", "a run that was stopped has not finished"
    context.session.show_past(RunState())
    window.open_page("data")
    place = window.app.shell.host.winfo_rooty()
    card.buttons["back"].invoke()
    window.settle()
    assert not card.winfo_ismapped()
    assert window.app.shell.host.winfo_rooty() == place, "the page does not move with the card"
    window.settle()
    assert context.navigation.page == "home"
    context.preferences.change(first_steps="config")
    context.form.load(context.form.config, Source("a kohya file"))
    window.settle()
    assert "go" not in card.buttons, "the steps were ticked off by themselves"
    card.buttons["close"].invoke()
    window.settle()
    assert not card.winfo_ismapped()
    assert context.preferences.now.first_steps == ""


def test_the_steps_of_a_way_are_not_ticked_off_by_an_earlier_run(open_window: Callable[..., Window]) -> None:
    window = open_window()
    card, context = window.app.shell.first_steps, window.app.context
    context.session.show_past(RunState(started=started("/earlier"), finished=RunFinished("completed", 3, "Done.")))
    home: Any = window.open_page("home")
    home.work.begin("demo")
    window.settle()
    assert "go" not in card.buttons, "Start, in the bottom bar"
    context.session.show_past(RunState(started=started("/now"), finished=RunFinished("stopped", 3, "Stopped.")))
    window.settle()
    assert card.buttons["go"].cget("text") == "Open the Run page"
    context.session.show_past(RunState(started=started("/now"), finished=RunFinished("completed", 3, "Done.")))
    window.settle()
    assert card.winfo_ismapped()
    context.form.load(context.form.config, Source("a fork"))
    window.settle()
    assert not card.winfo_ismapped(), "something else is loaded after the last step"
    assert context.preferences.now.first_steps == ""
    home.work.begin("demo")
    window.settle()
    assert card.winfo_ismapped()


def test_a_run_takes_the_card_away_but_for_its_step_on_the_run_page(open_window: Callable[..., Window]) -> None:
    window = open_window(first_steps="demo")
    card, context = window.app.shell.first_steps, window.app.context
    context.session.begin(RunRequest(context.form.config))
    window.open_page("output")
    assert not card.winfo_ismapped()
    window.open_page("run")
    assert card.winfo_ismapped()


def test_a_new_window_checks_the_settings_of_the_last_session(
    open_window: Callable[..., Window], tmp_path: Path
) -> None:
    """A folder had been renamed since; the card said "No setting has an error" until a page of settings was opened."""
    file = tmp_path / "mine.json"
    save_file(Config(concepts=(Concept(name="cup", path=str(tmp_path / "gone")),)), file)
    open_window(file, first_steps="config").app.close()
    window = open_window(first_steps="config")
    problems = window.app.context.field_problems
    window.wait_until(lambda: problems.errors, "the missing folder")
    assert problems.errors == ("concepts.0.path",)


def test_an_error_of_the_check_before_a_start_is_a_step_of_its_own(ready: Window) -> None:
    card, context, starter = ready.app.shell.first_steps, ready.app.context, ready.app.starter
    context.preferences.change(first_steps="config")
    context.form.load(context.form.config, Source("old", Path("old.json"), "file"))
    ready.open_page("training")
    assert "go" not in card.buttons
    starter.report, starter._report_of = Report((Problem("training.device", "No GPU."),), None), context.form.config
    starter.changed()
    ready.settle()
    assert card.buttons["go"].cget("text") == "Check again"
