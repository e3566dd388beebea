"""Fit to my card: the proposal in the background, what is shown of it, and taking it as one step."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modules.config.schema import Config
from modules.data.buckets import Size
from modules.system.problem import Problem
from tests.ui.conftest import Window
from tests.ui.test_secrets_dialog import click
from tests.ui.test_widgets import when_open
from trainer.preflight.run_budget import budget_of, on_a_gpu
from ui.features.fit import FitMeasurement, Fitting, FitWindow, compute
from ui.forms.model import FormModel
from ui.loop.background import Job
from ui.widgets.theme import Theme
from ui.widgets.tk_interaction import TkInteraction

GB = 1_000_000_000


class AtOnce:
    """A background that does its work when `finish` is called."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def run(self, work: Callable[[], Any], done: Callable[[Any], None], failed: Any = None) -> Job:
        self.jobs.append(Job(work, done, failed))
        return self.jobs[-1]

    def run_reporting(
        self, work: Callable[[Any], Any], done: Callable[[Any], None], failed: Any = None, *, progress: Any
    ) -> Job:
        return self.run(lambda: work(progress), done, failed)

    def finish(self) -> None:
        while self.jobs:
            job = self.jobs.pop(0)
            if not job.is_cancelled:
                job.done(job.work())


def form() -> FormModel:
    return FormModel(Config.model_validate({"training": {"precision": "bfloat16", "batch_size": 1}}))


def measured(config: Config, *, free: int | None = 6 * GB) -> FitMeasurement:
    budget = budget_of(config, {Size(512, 512): 8})
    assert budget is not None
    return FitMeasurement(on_a_gpu(budget), free)


def fitting(model: FormModel, background: AtOnce, **changes: Any) -> Fitting:
    return Fitting(model, background, measure_config=lambda c, _report: measured(c, **changes), compute_fit=compute)  # type: ignore[arg-type]


def test_the_proposal_is_shown_and_taken_as_one_step() -> None:
    model, background = form(), AtOnce()
    fits = fitting(model, background)
    assert fits.stage == "measuring"
    assert not fits.can_apply
    background.finish()
    assert (fits.stage, fits.card_text) == ("ready", "6.0 GB")
    assert "free on the training device" in fits.card_note
    assert {r.path for r in fits.rows} >= {"parts.unet.dtype"}
    row = next(r for r in fits.rows if r.path == "parts.unet.dtype")
    assert (row.place, row.before, row.now) == ("Model › UNet: Weight dtype", "float32", "bfloat16")
    before = model.config
    assert "Ctrl+Z undoes it" in fits.apply()
    assert model.config.part("unet").dtype == "bfloat16"
    assert fits.apply() == ""  # it was computed for the config before
    model.undo()
    assert model.config == before


def test_without_a_gpu_the_size_is_that_of_the_computers_memory() -> None:
    """It was called the memory of a card."""
    model, background = form(), AtOnce()
    budget = budget_of(model.config, {Size(512, 512): 8})
    measurement = FitMeasurement(budget, 6 * GB, is_processor=True)
    fits = Fitting(model, background, measure_config=lambda _c, _report: measurement, compute_fit=compute)  # type: ignore[arg-type]
    background.finish()
    assert (fits.size_label, fits.card_text) == ("Computer's memory", "6.0 GB")
    assert "No GPU was found" in fits.card_note
    fits.set_card("8 GB")
    assert fits.size_label == "Card memory"


def test_a_size_that_is_entered_while_the_run_is_measured_counts() -> None:
    """The entry showed it, and the proposal was for the memory of this computer."""
    background = AtOnce()
    fits = fitting(form(), background)
    fits.set_card("24 GB")
    background.finish()
    assert (fits.stage, fits.card_text) == ("ready", "24 GB")
    assert fits.card_note == "6.0 GB are free here now"


def test_another_size_is_computed_anew_and_a_wrong_one_is_said() -> None:
    model, background = form(), AtOnce()
    fits = fitting(model, background)
    background.finish()
    fits.set_card("much")
    assert fits.stage == "failed"
    assert "not a size" in fits.message
    assert fits.rows == ()
    fits.set_card("1 GB")
    fits.set_card("24 GB")  # the one before is dropped
    background.finish()
    assert fits.fit is not None
    assert fits.fit.card_bytes == 24 * GB
    assert "6.0 GB are free here now" in fits.card_note


def test_without_a_card_its_size_is_asked_for_and_without_shapes_nothing_is_promised() -> None:
    background = AtOnce()
    fits = fitting(form(), background, free=None)
    background.finish()
    assert "No card was found" in fits.card_note
    assert fits.card_text == "8.0 GB"
    other = Fitting(form(), background, measure_config=lambda _c, _report: FitMeasurement(None, GB))  # type: ignore[arg-type]
    background.finish()
    assert other.stage == "failed"
    assert "cannot be estimated" in other.message
    other.set_card("8 GB")
    assert other.stage == "failed"


def test_the_start_dialog_offers_it_beside_a_warning_about_memory(root: tk.Tk) -> None:
    root.deiconify()
    root.update()
    ask = TkInteraction(root, Theme("dark"))
    warning = Problem("x", "Too much.", "warning", remedy="memory")
    when_open(root, lambda d: d.buttons["fit"].invoke())
    assert ask.confirm_start([warning], None) == "fit"
    when_open(root, lambda d: (pytest.fail("offered") if "fit" in d.buttons else None, d.buttons["back"].invoke()))
    assert ask.confirm_start([Problem("x", "Odd.", "warning")], None) is False


def test_the_window_opens_from_the_findings_and_applies(ready: Window, tmp_path: Path) -> None:
    context = ready.app.context
    context.form.edit("training.precision", "bfloat16")
    bar = ready.app.shell.findings_bar
    context.findings.show("Before", [Problem("training.epochs", "Odd.", "warning")], context.form.config)
    ready.settle()
    assert "memory" not in bar.remedy_buttons
    large = Problem("training.batch_size", "This does not fit.", "warning", remedy="memory")
    context.findings.show("Before", [large], context.form.config)
    ready.settle()
    assert bar.remedy_buttons["memory"].winfo_manager()
    click(bar.remedy_buttons["memory"])
    ready.wait_until(lambda: any(isinstance(w, FitWindow) for w in ready.app.root.winfo_children()))
    (window,) = (w for w in ready.app.root.winfo_children() if isinstance(w, FitWindow))
    ready.wait_until(lambda: window.fitting.stage == "ready", "the proposal")
    window.card.set("4 GB")
    window.entry.tk_entry.focus_force()
    window.entry.tk_entry.event_generate("<Return>")
    ready.wait_until(lambda: window.fitting.fit is not None and window.fitting.fit.card_bytes == 4 * GB)
    ready.settle()
    assert "fits 4.0 GB" in window.summary.cget("text")
    assert window.table.tree.get_children()
    window.table.select([0])
    window.go()
    assert context.navigation.page == "model"
    before = context.form.config
    click(window.apply_button)
    ready.settle()
    assert not window.winfo_exists()
    assert context.form.config != before
    context.form.undo()
    assert context.form.config == before
    ready.app.starter.offer_wanted("fit")  # as the start dialog does
    ready.settle()
    (window,) = (w for w in ready.app.root.winfo_children() if isinstance(w, FitWindow))
    window.close()
    ready.settle()
    assert context.form.config == before
