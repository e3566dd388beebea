"""The side bar has entries for the pages that the config needs, in their order."""

from __future__ import annotations

from typing import Any

from modules.config.schema import Config
from tests.ui.conftest import Window
from tests.ui.driving import flip, walk
from ui.app.catalogue import PAGES
from ui.features.lists.simple import ImagesCard
from ui.forms.model import Source
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


def test_the_simple_view_has_one_page_of_settings_and_loses_none(window: Window) -> None:
    app = window.app
    app.form.load(Config(), Source("mine"))
    app.form.edit("training.batch_size", 3)
    flip(app.shell.side_bar.simple_switch)
    assert listed(window) == ["home", "simple", "concepts", "run", "runs", "sample", "tools"]
    page: Any = app.shell.pages["simple"]
    shown = {row.record.path for row in page.form_view.rows() if row.is_shown}
    assert {"model.base_model", "adapter.rank", "training.epochs", "output.destination"} <= shown
    card = next(w for w in walk(page.frame) if isinstance(w, ImagesCard))
    assert card.hidden.cget("text").startswith("1 setting of this config")
    app.form.edit("training.epochs", 7)
    card.show_button.invoke()
    window.settle()
    assert app.context.navigation.page == "training"
    assert "simple" not in listed(window)
    assert (app.form.config.training.batch_size, app.form.config.training.epochs) == (3, 7)
