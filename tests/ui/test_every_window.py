"""All pages and windows in one walk: the Tk thread waits for no folder of the user, which may be on a slow drive, and
no widget keeps a colour of the other mode.
"""

from __future__ import annotations

import tkinter as tk
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from modules.config.schema import Config
from tests.ui.conftest import Window
from tests.ui.driving import walk
from tests.ui.file_access import watch_files
from tests.ui.test_run_end import finished_run, write_lora
from trainer.events import RunFailed
from ui.app.catalogue import PAGES
from ui.forms.model import Source
from ui.loop.past_runs import read_past_state
from ui.loop.run_state import RunState
from ui.widgets.dialog import Window as OpenWindow
from ui.widgets.theme import COLOURS

_WINDOWS = (
    "find_preset", "json", "differences", "find", "captions", "all_captions", "auto_captions", "other_family",
    "base_model", "fit", "length", "which_method", "probe", "self_test", "machines", "web_page", "bundle",
    "manage_presets", "keys", "about",
)  # fmt: skip
_COLOURED = ("background", "foreground", "highlightbackground", "insertbackground")
_READ_AT_ONCE = ("ui/features/captions/document.py", "ui/features/captions/session.py")
"""The editor of captions reads the text that is opened, and saves it before it opens the next one."""


@pytest.fixture
def drive(tmp_path: Path) -> Path:
    """A folder with everything that a config names: images, a workspace with a run, its result and a base model."""
    folder = tmp_path / "drive"
    for n in range(3):
        image = folder / "images" / f"{n}.png"
        image.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (64, 64), (60 * n, 0, 0)).save(image)
        image.with_suffix(".txt").write_text("a number", encoding="utf-8")
    finished_run(folder)
    write_lora(folder / "base/model.safetensors")
    return folder


def config_on(drive: Path) -> Config:
    """A config with all paths on the drive."""
    return Config.model_validate(
        {
            "general": {"workspace_dir": str(drive / "workspace"), "cache_dir": str(drive / "cache")},
            "model": {"base_model": str(drive / "base/model.safetensors")},
            "concepts": [{"path": str(drive / "images")}],
            "output": {"destination": str(drive / "lora.safetensors")},
            "adapter": {"start_from": str(drive / "models/zog.safetensors")},
            "sampling": {"prompts": [{"prompt": "a number"}]},
        }
    )


def show_everything(window: Window, drive: Path, state: RunState) -> None:
    """Open every page, and every window of the program next to the others, with everything on the drive."""
    app, context = window.app, window.app.context
    app.form.load(config_on(drive), Source("on a drive"))
    window.settle()
    context.session.show_past(state, app.form.config)
    for page in PAGES:
        window.open_page(page.key)
    run: Any = window.open_page("run")
    run.samples.open((0, 0))
    context.session.show_past(replace(state, finished=None, failed=RunFailed("It broke.")), app.form.config)
    window.settle()
    for simple in (True, False):
        context.preferences.change(is_simple=simple)
        window.settle()
    app.form.edit("training.epochs", 7)
    editor: Any = app.shell.page("concepts").edit(0)
    for title in editor.tabs:
        editor.show(title)
        window.settle()
    app.shell.page("sampling").edit(0)
    for name in _WINDOWS:
        context.actions.run(name)
        window.settle()


def left_colours(root: tk.Misc) -> list[str]:
    """Return the widgets that have a colour of the dark mode which the light mode does not have."""
    dark, light = {dark for _, dark in COLOURS.values()}, {light for light, _ in COLOURS.values()}
    wrong = []
    for widget in walk(root):
        for option in _COLOURED:
            with suppress(tk.TclError, ValueError):  # without it; or of customtkinter, whose canvas covers it
                if (colour := str(widget.cget(option))) in dark - light:
                    wrong.append(f"{widget}: {option} {colour}")
    return wrong


def test_no_page_and_no_window_waits_for_the_users_folders_or_keeps_a_colour(
    window: Window, drive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, state = window.app, read_past_state(next((drive / "workspace/runs").iterdir()))
    with watch_files(drive, monkeypatch) as watch:
        show_everything(window, drive, state)
        app.context.preferences.change(appearance="light")
        window.settle()
        assert not left_colours(app.root)
        for opened in [w for w in app.root.winfo_children() if isinstance(w, OpenWindow)]:
            opened.close()
        window.settle()
    waits = sorted(access for access in watch.accesses if not access.startswith(_READ_AT_ONCE))
    assert not waits, "\n".join(waits)
