"""Listeners: one that raises is reported, and all the others still run."""

from __future__ import annotations

import tkinter as tk
from pathlib import Path
from typing import Any

import pytest

from modules.config.schema import Config
from modules.data.concept import Concept
from tests.ui.conftest import Window
from tests.ui.driving import expected, shown_by
from ui.features.concepts.scanning import Scans
from ui.forms.model import FormModel, Source
from ui.loop.background import Background
from ui.loop.interaction import Failure
from ui.loop.signal import Signal
from ui.widgets.variables import TextVar


def broken(*_arguments: object) -> None:
    raise RuntimeError("a test error")


def assert_reported(logged_errors: list[str], times: int = 1) -> None:
    assert ["RuntimeError: a test error" in message for message in logged_errors] == [True] * times
    logged_errors.clear()


def test_a_listener_that_raises_is_reported_and_the_others_run(logged_errors: list[str]) -> None:
    signal: Signal[[str]] = Signal()
    received: list[str] = []
    for listener in (received.append, broken, received.append):
        signal.subscribe(listener)
    signal("news")
    assert received == ["news", "news"]
    assert_reported(logged_errors)


def test_an_interrupt_in_a_listener_reaches_the_program() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    signal: Signal[[]] = Signal()
    signal.subscribe(interrupted)
    with pytest.raises(KeyboardInterrupt):
        signal()


def test_a_form_watcher_that_raises_does_not_block_the_others(logged_errors: list[str]) -> None:
    form = FormModel()
    called: list[str] = []
    form.watch("general.notes", broken)
    form.watch("training.learning_rate", lambda: called.append("rate"))
    form.changed.subscribe(broken)
    form.changed.subscribe(lambda: called.append("changed"))
    form.loaded.subscribe(lambda: called.append("loaded"))
    config = Config.model_validate({"general": {"notes": "Another."}, "training": {"learning_rate": 1e-6}})
    form.load(config, Source("another"))
    assert called == ["rate", "changed", "loaded"]
    assert_reported(logged_errors, times=2)


def test_a_scan_reaches_all_its_callbacks(logged_errors: list[str], tmp_path: Path) -> None:
    class Later(Background):
        def _submit(self, job: Any) -> Any:
            waiting.append(lambda: job.done(job.work()))
            return job

    waiting: list[Any] = []
    called: list[str] = []
    scans, concept = Scans(Later()), Concept(path=str(tmp_path))
    scans.want(concept, broken)
    scans.want(concept, lambda: called.append("scanned"))
    waiting.pop()()
    assert called == ["scanned"]
    assert_reported(logged_errors)


def test_the_window_shows_the_error_after_every_widget_is_updated(window: Window, logged_errors: list[str]) -> None:
    form = window.app.form
    form.watch("general.notes", broken)
    page: Any = window.open_page("output")
    config = Config.model_validate({"general": {"notes": "Another.", "seed": 7}})
    form.load(config, Source("another"))
    rows = list(page.form_view.rows())
    assert [shown_by(r) for r in rows] == [expected(r.record, form.value(r.record.path)) for r in rows]
    assert window.asked.asked("show_failure") == [], "no dialog while widgets are still being updated"
    window.settle()
    ((failure,),) = window.asked.asked("show_failure")
    assert isinstance(failure, Failure)
    assert "a test error" in failure.details
    assert_reported(logged_errors)


def test_an_error_in_any_callback_is_reported_and_stops_no_other(window: Window, logged_errors: list[str]) -> None:
    """Of a trace, a binding, `after`, and the protocol of a window."""
    root, called = window.app.root, list[str]()
    variable, top = TextVar(master=root), tk.Toplevel(root)
    top.protocol("WM_DELETE_WINDOW", broken)
    for do in (broken, lambda *_arguments: called.append("other")):
        root.bind("<<Go>>", do, add="+")
        variable.trace_add("write", do)
    variable.set("go")
    root.event_generate("<<Go>>")
    root.after(1, broken)
    root.after(1, called.append, "other")
    top.tk.eval(str(top.protocol("WM_DELETE_WINDOW")))
    window.wait_until(lambda: len(called) == 3, "the others")
    window.wait_until(lambda: window.asked.asked("show_failure"), "the dialog")
    top.destroy()
    assert_reported(logged_errors, times=4)
