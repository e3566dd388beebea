"""How long to train: the choices for the counted images, and setting one; offered where a run is far too short."""

from __future__ import annotations

import tkinter as tk
from pathlib import Path

from modules.data.concept import Concept
from modules.system.problem import Problem
from tests.builders.images import draw_folder
from tests.ui.conftest import Window
from tests.ui.test_widgets import when_open
from ui.features.length import LengthWindow
from ui.widgets.theme import Theme
from ui.widgets.tk_interaction import TkInteraction


def opened(window: Window) -> LengthWindow:
    window.app.context.actions.run("length")
    found = next(w for w in window.app.root.winfo_children() if isinstance(w, LengthWindow))
    window.wait_until(lambda: found.length.stage != "counting", "the images")
    return found


def test_a_choice_sets_the_epochs_for_the_images_as_one_edit(window: Window, tmp_path: Path) -> None:
    draw_folder(tmp_path, sizes=[(64, 64)] * 10)
    form = window.app.form
    form.edit("concepts", (Concept(path=str(tmp_path), repeats=2),))
    form.edit("training.epochs", 20)
    form.edit("training.batch_size", 2)
    found = opened(window)
    assert found.summary.cget("text") == (
        "What do your 10 images show? Now: 20 epochs, 200 steps, each is seen 40 times."
    )
    assert list(found.buttons) == ["person", "object", "style", "concept"]
    before = form.config
    found.buttons["person"].invoke()
    assert form.config.training.epochs == 50
    assert not found.winfo_exists()
    form.undo()
    assert form.config == before


def test_without_images_there_is_nothing_to_choose(window: Window) -> None:
    window.app.form.edit("concepts", ())
    found = opened(window)
    assert found.buttons == {}
    assert "no images to train on yet" in found.summary.cget("text")
    found.close()


def test_a_warning_about_the_length_leads_there(window: Window, root: tk.Tk) -> None:
    warning = Problem("training.epochs", "5 steps with 10 images.", "warning", remedy="length")
    when_open(root, lambda d: d.buttons["length"].invoke())
    assert TkInteraction(root, Theme("dark")).confirm_start([warning], None) == "length"
    window.app.context.findings.show("Before you start", [warning], window.app.form.config)
    window.settle()
    window.app.shell.findings_bar.remedy_buttons["length"].invoke()
    assert any(isinstance(w, LengthWindow) for w in window.app.root.winfo_children())
