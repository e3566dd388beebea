"""The dialog of tokens and passwords, driven as by a user."""

from __future__ import annotations

import json
import stat
import sys
import tkinter as tk
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modules.system.paths import secrets_file
from modules.system.secrets import CloudSecrets, Secrets, secret
from modules.system.secrets_file import load_secrets, save_secrets
from tests.ui.conftest import Window
from tests.ui.driving import fill, type_into, walk
from ui.features.tokens import SecretsDialog
from ui.widgets.controls import Button
from ui.widgets.panel import Text

TOKEN = "hf_plantedInTheDialog01"


def with_dialog(window: Window, act: Callable[[SecretsDialog], object]) -> None:
    """Open the dialog by its button on the Model page, act on it, and wait until it is closed."""
    page: Any = window.open_page("model")
    button = next(w for w in walk(page.frame.buttons) if isinstance(w, Button) and w.cget("text") == "Tokens…")
    root, faults = window.app.root, []

    def look() -> None:
        dialogs = [w for w in root.winfo_children() if isinstance(w, SecretsDialog) and w.grab_status()]
        if not dialogs:
            root.after(5, look)
            return
        try:
            dialogs[0].update()
            act(dialogs[0])
        except (AssertionError, tk.TclError) as error:  # a Tk callback would swallow it
            faults.append(error)
        finally:  # an open dialog would wait for ever
            if dialogs[0].winfo_exists():
                dialogs[0].close()

    root.after(5, look)
    button._canvas.focus_force()
    button._canvas.update()
    button._canvas.event_generate("<Return>")
    window.settle()
    if faults:
        raise faults[0]


def click(button: Button) -> None:
    for sequence in ("<Enter>", "<Button-1>"):
        button._canvas.event_generate(sequence)
    button._canvas.event_generate("<ButtonRelease-1>", state=0x100)  # the state marks the button as pressed


def texts(widget: tk.Misc) -> str:
    return "\n".join(str(w.cget("text")) for w in walk(widget) if isinstance(w, Text))


def test_a_token_is_typed_masked_and_saved_and_those_of_onetrainer_stay(window: Window) -> None:
    save_secrets(Secrets(cloud=CloudSecrets(port="2222")))

    def act(dialog: SecretsDialog) -> None:
        assert str(secrets_file()) in texts(dialog)
        assert "Never written to configs" in texts(dialog)
        assert "the login that Hugging Face's own tools have stored" in texts(dialog)
        assert dialog.focus_lastfor() is dialog.entries["huggingface_token"].tk_entry
        masked = {name: entry.tk_entry.cget("show") for name, entry in dialog.entries.items()}
        used = ("huggingface_token", "vision_model_api_key", "cloud.api_key", "web_token")
        assert masked == dict.fromkeys(used, "•")  # OneTrainer alone uses the others
        type_into(dialog.entries["huggingface_token"], TOKEN)
        click(dialog.buttons["save"])

    with_dialog(window, act)
    stored = load_secrets().secrets
    assert (stored.huggingface_token, stored.cloud.port) == (TOKEN, "2222")
    assert window.app.shell.bottom_bar.detail.cget("text") == "Tokens saved."
    if sys.platform != "win32":
        assert stat.S_IMODE(secrets_file().stat().st_mode) == 0o600
    window.app.save_session()
    written = [p for p in secrets_file().parents[2].rglob("*") if p.is_file() and p != secrets_file()]
    assert written
    assert not [p for p in written if TOKEN.encode() in p.read_bytes()]


def test_return_saves_and_escape_does_not(window: Window) -> None:
    def typed(keys: str) -> Callable[[SecretsDialog], None]:
        def act(dialog: SecretsDialog) -> None:
            type_into(dialog.entries["huggingface_token"], TOKEN)
            dialog.entries["huggingface_token"].tk_entry.event_generate(keys)

        return act

    with_dialog(window, typed("<Escape>"))
    assert not secrets_file().exists()
    with_dialog(window, typed("<Return>"))
    assert load_secrets().secrets.huggingface_token == TOKEN


def test_stored_tokens_are_shown_and_an_emptied_entry_removes_one(window: Window) -> None:
    save_secrets(Secrets(huggingface_token=TOKEN, others={"later": {"key": 1}}))

    def act(dialog: SecretsDialog) -> None:
        assert dialog.entries["huggingface_token"].tk_entry.get() == TOKEN
        assert "the token stored in Darkroom" in texts(dialog)
        type_into(dialog.entries["huggingface_token"], "")
        click(dialog.buttons["save"])

    with_dialog(window, act)
    assert json.loads(secrets_file().read_text(encoding="utf-8")) == {"later": {"key": 1}}


def test_a_token_that_is_pasted_replaces_the_one_there(window: Window) -> None:
    """It is masked, so a pasted one that stood in front of the old one was not seen."""
    save_secrets(Secrets(huggingface_token="hf_oldoldoldold", cloud=CloudSecrets(api_key="rpa_oldoldold")))

    def act(dialog: SecretsDialog) -> None:
        for name in ("huggingface_token", "cloud.api_key"):
            entry = dialog.entries[name].tk_entry
            if name == "cloud.api_key":  # the first entry has the focus from the start
                entry.event_generate("<Button-1>", x=30, y=5)
                entry.event_generate("<ButtonRelease-1>", x=30, y=5)
            dialog.clipboard_clear()
            dialog.clipboard_append(TOKEN)
            entry.event_generate("<<Paste>>")
            assert entry.get() == TOKEN
        click(dialog.buttons["cancel"])

    with_dialog(window, act)


def test_an_invalid_token_is_marked_and_not_saved(window: Window) -> None:
    def act(dialog: SecretsDialog) -> None:
        fill(dialog.entries["huggingface_token"], "two words")
        click(dialog.buttons["save"])
        dialog.update()
        assert dialog.winfo_exists()
        assert dialog.entries["huggingface_token"]._is_invalid
        assert "no spaces" in dialog.message.cget("text")
        assert "two words" not in texts(dialog)

    with_dialog(window, act)
    assert not secrets_file().exists()


def test_onetrainers_are_imported_once_saved(window: Window, tmp_path: Path) -> None:
    source = tmp_path / "secrets.json"
    source.write_text(json.dumps({"huggingface_token": TOKEN, "cloud": {"password": "very secret", "user": "root"}}))
    window.asked.answers["ask_file"] = source

    def look(dialog: SecretsDialog) -> None:
        click(dialog.buttons["import"])
        assert "Hugging Face token, Cloud password" in dialog.message.cget("text")
        assert not secrets_file().exists()

    with_dialog(window, look)
    assert not secrets_file().exists()
    with_dialog(window, lambda d: (click(d.buttons["import"]), click(d.buttons["save"])))
    stored = load_secrets().secrets
    assert [secret(stored, n) for n in ("huggingface_token", "cloud.password")] == [TOKEN, "very secret"]
    source.write_text("{}")

    def refused(dialog: SecretsDialog) -> None:
        click(dialog.buttons["import"])
        assert "contains no tokens" in dialog.message.cget("text")

    with_dialog(window, refused)


def test_a_failed_write_is_reported_in_a_sentence(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    def act(dialog: SecretsDialog) -> None:
        fill(dialog.entries["huggingface_token"], TOKEN)
        monkeypatch.setattr("ui.features.tokens.save_secrets", full)
        click(dialog.buttons["save"])
        assert "No space left" in dialog.message.cget("text")
        assert dialog.winfo_exists()

    with_dialog(window, act)


def test_the_menu_of_presets_leads_there(window: Window) -> None:
    menu = window.app.shell.top_bar.make_menu()
    root = window.app.root
    seen: list[str] = []

    def look() -> None:
        dialog = next(w for w in root.winfo_children() if isinstance(w, SecretsDialog))
        seen.append(dialog.title())
        dialog.close()

    root.after(50, look)
    menu.invoke("end")
    assert seen == ["Tokens"]
