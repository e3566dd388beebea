"""The settings that a page hides, named where there is room."""

from __future__ import annotations

from typing import Any

from modules.config.schema import Config
from tests.ui.conftest import Window
from ui.forms.form_page import hidden_groups
from ui.forms.records import groups_of
from ui.widgets.link_columns import Link, place_links


def test_advanced_fields_that_apply_are_named_unless_they_are_shown() -> None:
    config = Config()
    groups = groups_of(config, ("general",))
    found = {group.title: [link.text for link in group.links] for group in hidden_groups(config, groups, ())}
    assert "CPU threads" in found["Devices"]
    everything = [record.path for group in groups for record in group.records]
    assert hidden_groups(config, groups, everything) == ()
    some = hidden_groups(config, groups, [p for p in everything if p != "general.num_threads"])
    assert [link.key for group in some for link in group.links] == ["general.num_threads"]
    assert some[0].links[0].detail.endswith(".")


def test_links_fill_columns_of_about_equal_height_under_their_headings() -> None:
    groups = [("One", [Link(str(n), f"Link {n}") for n in range(5)]), ("Two", [Link("x", "Last", "A detail.")])]
    placed, height = place_links(groups, 2, 300, round, lambda detail: [detail] if detail else [])
    columns = [[p.heading or p.link.key for p in placed if p.link or p.heading if p.x == x] for x in (0, 300)]  # type: ignore[union-attr]
    assert columns == [["One", "0", "1", "2", "3"], ["One", "4", "Two", "x"]]
    assert height == max(p.y for p in placed if p.x == 0) + 25
    alone, _ = place_links(groups[:1], 2, 300, round, lambda _detail: [])
    assert [p.heading for p in alone if p.link is None] == ["One", ""], "a single heading is not repeated"


def test_a_click_shows_a_field_and_it_leaves_the_list(window: Window) -> None:
    page: Any = window.open_page("data")
    window.app.root.geometry("1900x1000")
    window.wait_until(lambda: page.more.winfo_ismapped() and page.more.links.placed, "the hidden settings")
    window.settle()
    links = page.more.links
    place = next(p for p in links.placed if p.link is not None and p.link.key == "data.never_upscale")
    assert place.detail, "there is room for explanations"
    links.event_generate("<Motion>", x=place.x + 5, y=place.y + 5)
    tag = f"link{links.placed.index(place)}"
    assert links.itemcget(tag, "fill") == window.app.theme.colour("accent")
    links.event_generate("<Button-1>", x=place.x + 5, y=place.y + 5)
    window.settle()
    row = next(row for row in page.form_view.rows() if row.record.path == "data.never_upscale")
    assert row.is_shown
    keys = [p.link.key for p in links.placed if p.link is not None]
    assert keys
    assert "data.never_upscale" not in keys
    links.focus_force()
    window.settle()
    links.event_generate("<Down>")
    links.event_generate("<Return>")  # the second one
    window.settle()
    assert next(row for row in page.form_view.rows() if row.record.path == keys[1]).is_shown

    page.more.button.invoke()
    window.settle()
    assert window.app.preferences.now.show_advanced
    assert not page.more.winfo_ismapped()
    window.app.preferences.change(show_advanced=False)
    window.app.root.geometry("1024x600")
    window.settle()
    assert not page.more.winfo_ismapped(), "nothing is scrolled to name settings"
