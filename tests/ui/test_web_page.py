"""The window of the page in the browser: its switch, its address, the code, and the end with the window."""

from __future__ import annotations

import json
import urllib.request
from functools import partial
from pathlib import Path

import pytest

from modules.system.paths import PROGRAM_ROOT
from tests.ui.conftest import Window
from tests.ui.fake_child import FakeChild
from trainer.child import process
from ui.features.web.model import WebPage
from ui.features.web.window import WebWindow
from ui.widgets.dialog import bring_to_front

CERTIFICATE = PROGRAM_ROOT / "tests" / "builders" / "localhost.pem"


def opened(window: Window) -> WebWindow:
    window.app.context.actions.run("web_page")
    window.settle()
    web = bring_to_front(window.app.root, WebWindow)
    assert web is not None
    return web


def test_the_page_is_switched_on_shown_and_switched_off(
    window: Window, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    children: list[FakeChild] = []

    def spawn(arguments: list[str], _errors: object) -> FakeChild:
        children.append(FakeChild(arguments))
        return children[-1]

    page = window.app.web_page
    monkeypatch.setattr(process, "ChildProcess", partial(process.ChildProcess, spawn=spawn))
    web = opened(window)
    assert web.reach.get() == "off"
    web._switch("network")
    assert children[0].arguments == ["web", "--json-lines", "--host=0.0.0.0"]
    assert web.note.cget("text") == "Starting…"
    window.app.preferences.note_workspace(tmp_path / "other")
    assert str(tmp_path / "other") in json.loads(children[0].sent[-1])
    url = "http://192.168.1.5:7866/#token=abcdefghijklmnopqrstuvwx"
    children[0].lines.put(json.dumps({"url": url, "note": "With its token."}) + "\n")
    window.wait_until(lambda: bool(page.served.url), "the address")
    assert (web.address.cget("text"), web.note.cget("text")) == ("http://192.168.1.5:7866/", "With its token.")
    assert web._code is not None
    assert web._code.width() > 100
    web._copy()
    assert web.clipboard_get() == url
    window.asked.answers["ask_file"] = CERTIFICATE
    web.encrypt_button.invoke()
    files = [f"--certificate={CERTIFICATE}", f"--key={CERTIFICATE}"]
    assert children[0].is_closed
    assert children[1].arguments == [*children[0].arguments, *files]
    assert web.encryption.cget("text") == "Encrypted in the network, with localhost.pem"
    web._switch("here")
    assert children[2].arguments == ["web", "--json-lines"]
    web.encrypt_button.invoke()
    assert page.certificate is None
    assert web._code is None
    children[3].end(2)
    window.wait_until(lambda: page.reach == "off", "the end")
    assert "ended" in web.note.cget("text")
    web.close()


def test_the_page_answers_and_ends_with_its_window(window: Window) -> None:
    page: WebPage = window.app.web_page
    page.switch("here")
    window.wait_until(lambda: bool(page.served.url or page.served.problem), "the address")
    assert page.served.url.startswith("http://127.0.0.1:"), page.served.problem
    with urllib.request.urlopen(page.served.url) as answer:
        assert b"Darkroom" in answer.read()
    child = page._child
    assert child is not None
    page.close()
    assert child.process.wait(120) == 0
    child.thread.join(120)
