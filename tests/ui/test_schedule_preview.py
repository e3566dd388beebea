"""The learning rate over the run on the Training page, and the problems of a schedule's own fields."""

from __future__ import annotations

from typing import Any

from modules.config.previews import optimizer_preview, schedule_preview
from modules.config.schema import Config
from tests.ui.conftest import Window
from ui.forms.fields import Row


def row_of(page: Any, path: str) -> Row:
    return next(row for row in page.form_view.rows() if row.record.path == path)


def test_the_curve_follows_the_schedule_and_stands_below_its_fields(window: Window) -> None:
    page: Any = window.open_page("training")
    form = window.app.form
    card = next(c for c in page.form_view.cards if "training.schedule" in c.rows)
    preview = card.preview
    assert preview is not None
    assert preview.frame.winfo_ismapped()
    assert preview.shown == schedule_preview(form.config)
    before = preview.chart.coords("line")
    form.choose_variant("training.schedule", "cosine")
    form.edit("training.schedule.warmup_steps", 300)
    window.settle()
    assert preview.shown == schedule_preview(form.config)
    assert preview.chart.coords("line") != before
    top = preview.frame.winfo_rooty()
    assert row_of(page, "training.schedule.warmup_steps").control.frame.winfo_rooty() < top
    assert row_of(page, "training.precision").control.frame.winfo_rooty() > top


def test_an_error_in_an_expression_is_shown_at_its_field_while_typing(window: Window) -> None:
    """And only there: the caption of the curve repeated it."""
    page: Any = window.open_page("training")
    form = window.app.form
    form.choose_variant("training.schedule", "expression")
    window.settle()
    card = next(c for c in page.form_view.cards if "training.schedule" in c.rows)
    assert card.preview is not None
    for typed, words in (("cos(progres", "cannot be read"), ("cos(progres)", '"progres" is not known')):
        form.edit_text("training.schedule.expression", typed)
        window.settle()
        note = row_of(page, "training.schedule.expression")._reason
        assert note is not None
        assert note.winfo_ismapped()
        assert words in note.cget("text")
        assert not card.preview.frame.winfo_ismapped()
    form.edit_text("training.schedule.expression", "1 - progress")
    window.settle()
    assert not note.winfo_ismapped()
    assert card.preview.frame.winfo_ismapped()
    assert card.preview.chart.find_withtag("line")


def test_the_field_of_a_class_is_checked_again_when_the_class_changes(window: Window) -> None:
    page: Any = window.open_page("training")
    form = window.app.form
    form.choose_variant("training.schedule", "custom")
    form.edit("training.schedule.class_name", "StepLR")
    window.settle()
    note = row_of(page, "training.schedule.arguments")._reason
    assert note is not None
    assert "StepLR needs the argument step_size" in note.cget("text")
    form.edit("training.schedule.class_name", "PolynomialLR")
    window.settle()
    assert not note.winfo_ismapped()


def test_the_caption_names_the_highest_and_the_last_rate() -> None:
    config = Config.model_validate({"training": {"schedule": {"name": "cosine", "min_factor": 0.1}}})
    known = schedule_preview(config, 50)
    assert known.caption == "Learning rate: 0.0001 at its highest, 1.01e-05 at the end."
    assert known.right == "step 50"
    assert len(known.bars) == 50
    assert "in a run of 1,000 steps for example" in schedule_preview(config).caption
    assert schedule_preview(Config(), 50).caption == "Learning rate: 0.0001 throughout."
    long = Config.model_validate({"training": {"schedule": {"name": "constant", "warmup_steps": 4000}}})
    assert schedule_preview(long).right == "step 8,000"
    chosen = {"optimizer": {"name": "adafactor", "relative_step": True}, "schedule": "adafactor"}
    assert "chooses its learning rate itself" in schedule_preview(Config.model_validate({"training": chosen})).caption
    wrong = schedule_preview(Config.model_validate({"training": {"schedule": {"name": "points", "points": "?"}}}))
    assert (wrong.bars, wrong.caption) == ((), "")


def test_the_optimizer_says_what_it_keeps_and_needs() -> None:
    def caption(**training: object) -> str:
        return optimizer_preview(Config.model_validate({"training": training})).caption

    assert caption(optimizer="adamw").startswith("AdamW keeps 8 bytes of state per trained weight: 8 MB for each")
    assert "for an adapter: between 0.00005 and 0.001." in caption(optimizer="adamw")
    assert "for a fine-tune: between 0.000001 and 0.00002." in caption(optimizer="adamw", trains="full")
    assert "Needs the package bitsandbytes" in caption(optimizer="adamw_8bit")
    assert "averaged weights" in caption(optimizer="schedule_free_adamw")
