"""The table of actions and its shortcuts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ui.conftest import Window
from tests.ui.driving import inside
from ui.app.catalogue import PAGES, page_shortcut
from ui.loop.interaction import ACTIONS_OF_REMEDIES
from ui.loop.signal import Signal
from ui.widgets.actions import Action, ActionTable, sequences_of
from ui.widgets.entry import Entry
from ui.widgets.textarea import TextArea


def test_every_remedy_leads_to_an_action(window: Window) -> None:
    names = {action.name for action in window.app.context.actions}
    assert set(ACTIONS_OF_REMEDIES.values()) <= names


@pytest.mark.parametrize(
    ("shortcut", "sequences"),
    [
        ("Ctrl+S", ("<Control-s>", "<Control-S>")),
        ("Ctrl+Shift+S", ("<Control-Shift-S>", "<Control-Shift-s>")),
        ("F5", ("<F5>",)),
        ("Shift+F5", ("<Shift-F5>",)),
        ("Ctrl+1", ("<Control-Key-1>",)),
    ],
)
def test_shortcuts_become_event_sequences(shortcut: str, sequences: tuple[str, ...]) -> None:
    assert sequences_of(shortcut, platform="linux") == sequences
    assert sequences_of(shortcut, platform="darwin")[0] == sequences[0].replace("Control", "Command")


def test_a_clash_is_found() -> None:
    table = ActionTable()
    table.add(Action("one", "One", print, "Ctrl+S"))
    with pytest.raises(AssertionError):
        table.add(Action("two", "Two", print, "Ctrl+S"))
    assert table.clashes() == ["<Control-s>"]


def test_an_action_that_is_not_possible_does_nothing() -> None:
    done: list[str] = []
    table = ActionTable()
    table.add(Action("no", "No", lambda: done.append("no"), is_enabled=lambda: False))
    table.run("no")
    assert done == []


def test_the_tip_of_a_disabled_action_states_what_it_needs(window: Window) -> None:
    """A gray "Compare images" said what it would do, and not why it could not."""
    is_on = False
    action = Action("now", "Now", print, is_enabled=lambda: is_on, help="Do it now", needs="Only while a run trains.")
    assert action.tip == "Do it now.\nOnly while a run trains."
    is_on = True
    assert action.tip == "Do it now"
    for name in ("report_images", "sample_now", "validate_now", "backup_now", "save_now", "open_run_folder", "profile"):
        action = window.app.context.actions[name]
        assert not action.is_enabled()
        assert action.tip.endswith(f"\n{action.needs}")


def test_no_shortcut_of_the_window_clashes_and_all_are_bound(window: Window) -> None:
    actions = window.app.context.actions
    assert actions.clashes() == []
    bound = set(window.app.root.bind_all())
    for action in actions:
        for sequence in sequences_of(action.shortcut) if action.shortcut else ():
            plain = sequence.replace("Control-Shift", "Shift-Control")
            assert {sequence, plain, sequence.replace("Key-", "")} & {b.replace("Key-", "") for b in bound} or (
                sequence in bound
            ), (action.name, sequence)


def test_every_action_has_a_label_and_a_tip(window: Window) -> None:
    for action in window.app.context.actions:
        assert action.label
        assert action.tip.startswith((action.help or action.label.rstrip("…"))[:5])
        if action.shortcut:
            assert action.shortcut in action.tip


@pytest.mark.full
def test_shortcuts_run_their_actions(window: Window) -> None:
    root = window.app.root
    root.focus_force()
    root.update()
    for page in filter(page_shortcut, PAGES):
        for sequence in sequences_of(page_shortcut(page)):
            window.app.context.navigation.open("concepts" if page.key == "output" else "output")
            root.event_generate(sequence)
            window.settle()
            assert window.app.context.navigation.page == page.key, sequence
    window.app.form.edit_text("training.epochs", "77")
    root.event_generate("<Control-z>")
    assert window.app.form.config.training.epochs == 10
    root.event_generate("<Control-Shift-Z>")
    assert window.app.form.config.training.epochs == 77
    root.event_generate("<Control-o>")
    root.event_generate("<Control-s>")
    assert [verb for verb, _ in window.asked.calls] == ["ask_file", "ask_save_file"]


def test_the_page_shortcuts_leave_a_focused_text_alone(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    page: Any = window.open_page("output")
    navigation = window.app.context.navigation
    monkeypatch.setattr(navigation, "page_wanted", Signal())  # the text stays on the screen
    for path, widget in (("general.workspace_dir", Entry), ("general.notes", TextArea)):
        found: Any = inside(page.form_view.reveal(path).control.frame, widget)
        inner = found.tk_entry if widget is Entry else found.text
        before = window.app.form.value(path)
        inner.focus_force()
        window.settle()
        for spec in filter(page_shortcut, PAGES):
            for sequence in sequences_of(page_shortcut(spec)):
                navigation.open("concepts" if spec.key == "output" else "output")
                inner.event_generate(sequence)
                assert navigation.page == spec.key, sequence
        window.settle()
        assert window.app.form.value(path) == before
