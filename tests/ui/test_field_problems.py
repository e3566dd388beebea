"""What the rules find, beside the fields while they are edited."""

from __future__ import annotations

from typing import Any

import pytest

from modules.config.presets import list_presets
from tests.ui.conftest import Window
from ui.forms.field_problems import FieldProblems
from ui.forms.fields import Row
from ui.forms.model import FormModel
from ui.loop.background import Job
from ui.loop.pump import Pump


def row_of(page: Any, path: str) -> Row:
    return next(row for row in page.form_view.rows() if row.record.path == path)


def note_of(page: Any, path: str) -> str:
    """Return the problem shown below a field; an explanation of the field is none."""
    note = row_of(page, path)._reason
    return str(note.cget("text")) if note is not None and note.winfo_ismapped() and note.token != "muted" else ""


def test_errors_in_layer_names_and_ranks_are_shown_while_typing(window: Window) -> None:
    page: Any = window.open_page("training")
    form = window.app.form
    form.edit("adapter.layers", "custom")
    form.edit("adapter.layers_regex", True)
    form.edit_text("adapter.custom_layers", "attn(1")
    form.edit_text("adapter.layer_ranks", "down_blocks = eight")
    window.settle()
    assert "not a valid regular expression" in note_of(page, "adapter.custom_layers")
    assert "'down_blocks = eight'" in note_of(page, "adapter.layer_ranks")
    assert row_of(page, "adapter.layer_ranks")._mark.token == "error"
    form.edit("adapter.layers_regex", False)  # the error of a field may depend on another
    form.edit_text("adapter.layer_ranks", "down_blocks = 8")
    window.settle()
    assert note_of(page, "adapter.custom_layers") == note_of(page, "adapter.layer_ranks") == ""


def test_a_rate_that_the_optimizer_cannot_use_is_a_warning_beside_it(window: Window) -> None:
    page: Any = window.open_page("training")
    form = window.app.form
    form.choose_variant("training.optimizer", "prodigy")
    window.settle()
    assert "With Prodigy, usual values for a LoRA are 1" in note_of(page, "training.learning_rate")
    assert not row_of(page, "training.learning_rate").control.binding.model.problems()  # and no invalid entry
    form.edit("training.learning_rate", 1.0)
    window.settle()
    assert note_of(page, "training.learning_rate") == ""


def test_a_note_is_as_wide_as_its_card(window: Window) -> None:
    page: Any = window.open_page("training")
    window.app.form.choose_variant("training.optimizer", "prodigy")
    window.settle()
    note = row_of(page, "training.learning_rate")._reason
    assert note is not None
    window.wait_until(lambda: note.winfo_reqheight() > 20, "wrapped lines")
    card = next(c for c in page.form_view.cards if "training.learning_rate" in c.rows).card
    assert note.winfo_rootx() + note.winfo_width() <= card.winfo_rootx() + card.winfo_width()
    assert int(str(note.cget("wraplength"))) <= note.winfo_width()


def test_rules_that_fail_are_logged_once(window: Window, monkeypatch: pytest.MonkeyPatch, logged_errors: Any) -> None:
    monkeypatch.setattr(window.app.context.field_problems._rules, "_function", "modules.config.rules:not_there")
    window.app.form.edit("training.epochs", 7)
    window.settle()
    assert len(logged_errors) == 1
    logged_errors.clear()


class SlowBackground:
    """Keeps the jobs until a test runs them."""

    def __init__(self) -> None:
        self.waiting: list[Job] = []

    def run(self, work: Any, done: Any, failed: Any) -> Job:
        self.waiting.append(Job(work, done, failed))
        return self.waiting[-1]

    def window_is_busy(self, seconds: float) -> None:
        """Do nothing: its jobs wait anyway."""

    def answer(self) -> None:
        job = self.waiting.pop(0)
        job.done(job.work())


def test_a_check_that_hangs_blocks_no_other_and_its_answer_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    background = SlowBackground()
    pump = Pump(lambda _ms, _call: None)
    monkeypatch.setattr(pump, "lasting", background)
    monkeypatch.setattr("ui.forms.field_problems.QUIET_SECONDS", 0.0)
    form = FormModel()
    problems = FieldProblems(form, pump)
    form.edit("model.base_model", "no/such/one.safetensors")
    pump.tick(1.0)
    assert len(background.waiting) == 2  # the rules, and the files
    form.edit("model.base_model", "no/such/two.safetensors")
    pump.tick(1.0)
    assert len(background.waiting) == 2
    for _ in range(2):
        background.answer()
    assert problems.at("model.base_model") is None
    assert not problems.is_current
    for _ in range(2):
        background.answer()
    found = problems.at("model.base_model")
    assert found is not None
    assert "no/such/two.safetensors" in found.message
    assert problems.is_current
    assert problems.errors == ("model.base_model",)


def test_what_a_built_in_preset_lacks_is_no_mistake(window: Window) -> None:
    preset = next(p for p in list_presets() if p.name == "#sd 1.5 LoRA with validation")
    window.app.context.documents.open_preset(preset)
    window.settle()
    assert window.app.context.field_problems.problems == ()
    window.app.form.choose_variant("training.optimizer", "prodigy")
    window.settle()
    assert {p.path.rpartition(".")[2] for p in window.app.context.field_problems.problems} == {"learning_rate"}
