"""The histogram of the timesteps on the Training page."""

from __future__ import annotations

from typing import Any

from modules.config.previews import timestep_preview
from tests.ui.conftest import Window
from ui.forms.group_card import GroupCard
from ui.forms.preview import Preview, preview_figure


def preview_card(page: Any) -> tuple[GroupCard, Preview]:
    card = next(c for c in page.form_view.cards if c.group.title == "Timesteps")
    assert card.preview is not None
    return card, card.preview


def test_the_histogram_follows_the_fields(window: Window) -> None:
    page: Any = window.open_page("training")
    _, preview = preview_card(page)
    assert not preview.frame.winfo_ismapped()  # all of its fields are advanced, and at their defaults
    form = window.app.form
    form.edit("training.noise.distribution", "logit_normal")
    window.settle()
    assert preview.frame.winfo_ismapped()
    chart = preview.chart
    assert chart.figure == preview_figure(timestep_preview(form.config))
    before = [chart.coords(item) for item in chart.find_withtag("bar")]
    assert len(before) == 50
    form.edit("training.noise.noising_bias", 1.0)
    window.settle()
    assert chart.figure == preview_figure(timestep_preview(form.config))
    assert [chart.coords(item) for item in chart.find_withtag("bar")] != before
    form.edit("training.noise.noising_weight", -2.0)
    window.settle()
    assert not chart.find_withtag("bar")
    assert "not above -1" in preview.caption.cget("text")


def test_the_histogram_is_shown_with_the_advanced_fields(window: Window) -> None:
    page: Any = window.open_page("training")
    card, preview = preview_card(page)
    page.show_field("training.noise.shift")
    window.settle()
    assert preview.frame.winfo_ismapped()
    bottom = max(row.control.frame.winfo_rooty() for row in card.rows.values() if row.control.frame.winfo_ismapped())
    assert preview.frame.winfo_rooty() > bottom
    assert preview.chart.winfo_width() > 200
