"""The side bar has entries for the pages that the config needs, in their order."""

from __future__ import annotations

from typing import Any

from tests.ui.conftest import Window
from tests.ui.driving import walk
from ui.app.catalogue import PAGES
from ui.widgets.tabs import Tab

ENTRIES = [page for page in PAGES if page.entry_key == page.key and not page.on_demand and page.key != "simple"]


def listed(window: Window) -> list[str]:
    window.settle()
    entries = {str(entry): key for key, entry in window.app.shell.side_bar.entries.items()}
    body = window.app.shell.side_bar.scroll.body
    return [entries[str(widget)] for widget in body.pack_slaves() if str(widget) in entries]


def test_a_page_is_listed_while_the_config_needs_it(window: Window) -> None:
    form, always = window.app.form, [p.key for p in ENTRIES if p.is_needed(window.app.form.config)]
    assert listed(window) == always
    assert not {"rewards", "embeddings"} & set(always)
    form.edit("training.trains", "embedding")
    shown = listed(window)
    assert "adapter" not in shown
    assert shown == [p.key for p in ENTRIES if p.key in {*always, "embeddings"} - {"adapter"}]
    form.edit("training.trains", "adapter")
    window.app.preferences.change(show_advanced=True)
    assert listed(window) == [p.key for p in ENTRIES]
    window.app.preferences.change(show_advanced=False)
    assert listed(window) == always


def test_an_open_page_stays_until_another_is_opened(window: Window) -> None:
    window.open_page("rewards")
    assert "rewards" in listed(window)
    window.app.form.edit("training.batch_size", 3)
    assert "rewards" in listed(window)
    window.open_page("model")
    assert "rewards" not in listed(window)


def test_the_history_and_the_queue_are_tabs_of_one_entry(window: Window) -> None:
    page: Any = window.open_page("runs")
    entry = window.app.shell.side_bar.entries["runs"]
    assert "queue" not in window.app.shell.side_bar.entries
    tab = next(w for w in walk(page.frame) if isinstance(w, Tab) and w._label.cget("text") == "Queue")
    tab.event_generate("<Button-1>")
    window.settle()
    assert window.app.context.navigation.page == "queue"
    assert entry._is_open
    assert window.app.shell.pages["queue"].frame.winfo_ismapped()


def test_one_switch_chooses_the_view_and_the_key_is_the_same_switch(window: Window) -> None:
    app = window.app
    bar = app.shell.side_bar

    def view() -> str:
        window.settle()
        [chosen] = [name for name, tab in bar.views.items() if tab._is_open]
        return chosen

    assert view() == "Usual"
    full = listed(window)
    bar.views["All"].event_generate("<Button-1>")
    assert view() == "All"
    assert listed(window) == [p.key for p in ENTRIES]
    app.context.actions.run("simple_view")
    assert view() == "Simple"
    assert app.context.navigation.page == "simple"
    assert listed(window) == ["home", "simple", "concepts", "run", "runs", "sample", "tools"]
    app.context.actions.run("simple_view")
    assert view() == "All", "as before"
    assert app.context.navigation.page == "training"
    bar.views["Usual"].event_generate("<Button-1>")
    assert view() == "Usual"
    assert listed(window) == full
    app.context.navigation.open("simple")
    assert view() == "Simple", "the page is that view, whoever opens it"
    bar.views["Usual"].event_generate("<Button-1>")
    window.settle()
    assert app.context.navigation.page == "training"
    assert "simple" not in listed(window)


def test_the_simple_view_lists_the_rewards_and_embeddings_of_a_config_that_has_them(window: Window) -> None:
    """GRPO had no reward then, and an embedding that the method cannot train could not be switched off."""
    form = window.app.form
    window.app.context.navigation.open("simple")
    window.app.preferences.change(show_advanced=True)
    simple = listed(window)
    assert not {"rewards", "embeddings"} & set(simple)
    form.edit("training.method", "grpo")
    form.edit("training.trains", "embedding")
    assert set(listed(window)) - set(simple) == {"rewards", "embeddings"}


def test_a_mark_and_a_shortcut_fit_next_to_a_title_or_the_shortcut_is_not_shown(window: Window) -> None:
    shown = {key: e for key, e in window.app.shell.side_bar.entries.items() if key in listed(window)}
    with_shortcut = set()
    for key, entry in shown.items():
        entry.set_mark("!", "error")
        entry.event_generate("<Enter>")
        window.settle()
        parts = [part for part in entry.pack_slaves() if part is not entry._key or part.cget("text")]
        assert all(part.winfo_width() >= part.winfo_reqwidth() for part in parts), key
        with_shortcut |= {key for part in parts if part is entry._key}
        entry.event_generate("<Leave>")
    assert {"model", "training", "run"} <= with_shortcut


def test_tab_reaches_the_pages_before_the_views(window: Window) -> None:
    bar = window.app.shell.side_bar
    assert bar.winfo_children()[-1] is bar.window_button.master
