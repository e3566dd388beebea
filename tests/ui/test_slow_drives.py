"""Images, models and runs may be on a drive that takes seconds: no page and no window waits for it on the Tk thread."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from modules.config.schema import Config
from tests.ui.conftest import Window
from tests.ui.file_access import watch_files
from tests.ui.test_run_end import finished_run, write_lora
from trainer.events import RunFailed
from ui.app.catalogue import PAGES
from ui.forms.model import Source
from ui.loop.past_runs import read_past_state
from ui.widgets.dialog import Window as OpenWindow

_WINDOWS = (
    "find_preset", "json", "differences", "find", "captions", "all_captions", "auto_captions", "other_family",
    "base_model", "fit", "length", "which_method", "probe", "self_test", "machines", "web_page", "bundle",
    "manage_presets", "keys", "about",
)  # fmt: skip
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


def test_no_page_and_no_window_waits_for_the_users_folders(
    window: Window, drive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, context = window.app, window.app.context
    run_dir = next((drive / "workspace/runs").iterdir())
    state = read_past_state(run_dir)
    with watch_files(drive, monkeypatch) as watch:
        app.form.load(config_on(drive), Source("on a drive"))
        window.settle()
        context.session.show_past(state, app.form.config)
        for page in PAGES:
            window.open_page(page.key)
        state = replace(state, finished=None, failed=RunFailed("It broke."))
        context.session.show_past(state, app.form.config)
        window.open_page("run")
        for simple in (True, False):
            context.preferences.change(is_simple=simple)
            window.settle()
        app.form.edit("training.epochs", 7)
        window.settle()
        editor: Any = app.shell.page("concepts").edit(0)
        for title in editor.tabs:
            editor.show(title)
            window.settle()
        for name in _WINDOWS:
            context.actions.run(name)
            window.settle()
            for opened in [w for w in app.root.winfo_children() if isinstance(w, OpenWindow)]:
                opened.close()
            window.settle()
    waits = sorted(access for access in watch.accesses if not access.startswith(_READ_AT_ONCE))
    assert not waits, "\n".join(waits)
