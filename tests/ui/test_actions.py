"""The table of actions and its shortcuts."""

from __future__ import annotations

import pytest

from tests.ui.conftest import Window
from ui.actions import Action, ActionTable, sequences_of


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


def test_every_action_says_what_it_does(window: Window) -> None:
    for action in window.app.context.actions:
        assert action.label
        assert action.tip.startswith((action.help or action.label.rstrip("…"))[:5])
        if action.shortcut:
            assert action.shortcut in action.tip


def test_the_keys_do_what_they_say(window: Window) -> None:
    root = window.app.root
    root.focus_force()
    root.update()
    root.event_generate("<Control-Key-5>")
    window.settle()
    assert window.app.context.navigation.page == "training"
    window.app.form.edit_text("training.epochs", "77")
    root.event_generate("<Control-z>")
    assert window.app.form.config.training.epochs == 10
    root.event_generate("<Control-Shift-Z>")
    assert window.app.form.config.training.epochs == 77
    root.event_generate("<Control-o>")
    root.event_generate("<Control-s>")
    assert [verb for verb, _ in window.asked.calls] == ["ask_file", "ask_save_file"]
