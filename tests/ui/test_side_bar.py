"""The side bar has entries for the pages that the config needs, in their order."""

from __future__ import annotations

from tests.ui.conftest import Window
from ui.app.catalogue import PAGES


def listed(window: Window) -> list[str]:
    window.settle()
    entries = {str(entry): key for key, entry in window.app.shell.side_bar.entries.items()}
    body = window.app.shell.side_bar.scroll.body
    return [entries[str(widget)] for widget in body.pack_slaves() if str(widget) in entries]


def test_a_page_is_listed_while_the_config_needs_it(window: Window) -> None:
    form, always = window.app.form, [p.key for p in PAGES if p.is_needed(window.app.form.config) and not p.on_demand]
    assert listed(window) == always
    assert not {"rewards", "embeddings"} & set(always)
    form.edit("training.trains", "embedding")
    shown = listed(window)
    assert "adapter" not in shown
    assert shown == [p.key for p in PAGES if p.key in {*always, "embeddings"} - {"adapter"}]
    form.edit("training.trains", "adapter")
    window.app.preferences.change(show_advanced=True)
    assert listed(window) == [p.key for p in PAGES if not p.on_demand]
    window.app.preferences.change(show_advanced=False)
    assert listed(window) == always


def test_an_open_page_stays_until_another_is_opened(window: Window) -> None:
    window.open_page("rewards")
    assert "rewards" in listed(window)
    window.app.form.edit("training.batch_size", 3)
    assert "rewards" in listed(window)
    window.open_page("model")
    assert "rewards" not in listed(window)
