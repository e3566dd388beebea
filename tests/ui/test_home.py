"""Home: how it begins, what it states of the config in the window, and the runs that it shows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from modules.config.usage import missing_data
from modules.system.hardware import GpuMemory
from tests.ui.conftest import Window
from tests.ui.driving import main_buttons, walk
from trainer.launch import RunRequest
from trainer.preflight.machine import Machine
from trainer.run_folder.records import RunRecord
from trainer.run_status import RunStatus
from ui.app import home_cards, recent_runs
from ui.app.home_model import machine_rows, why_no_gpu, work_of
from ui.app.recent_runs import describe_run
from ui.features.first_steps import WAYS
from ui.forms.model import Source
from ui.widgets.controls import Button
from ui.widgets.panel import Text

GB = 10**9
DESKTOP = Machine(None, 32 * GB, 500 * GB, 8, "No GPU was found.")


def record(run_dir: Path, **facts: Any) -> RunRecord:
    usual: dict[str, Any] = {
        "started": datetime(2026, 11, 28, 14, 5), "status": RunStatus.FINISHED, "message": "",
        "step": 420, "total_steps": 420,
        "seconds": 60.0, "best_loss": None, "best_step": None, "num_samples": 0, "outputs": (), "size_bytes": 0,
        "facts": None, "destination": "models/zog.safetensors",
    }  # fmt: skip
    return RunRecord(run_dir, **(usual | facts))


@pytest.fixture
def past_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[RunRecord]:
    """The newest runs that Home finds, instead of those in workspaces; and a computer without a GPU."""
    runs: list[RunRecord] = []
    monkeypatch.setattr(recent_runs, "read_newest", lambda *_known: (tuple(runs), {}))
    monkeypatch.setattr(home_cards, "_find_machine", lambda: DESKTOP)
    return runs


def texts(widget: Any) -> str:
    return "\n".join(str(w.cget("text")) for w in walk(widget) if isinstance(w, Text) and w.winfo_ismapped())


def test_a_first_start_asks_how_to_begin_and_has_one_main_button(
    open_window: Callable[..., Window], past_runs: list[RunRecord]
) -> None:
    window = open_window()
    home: Any = window.open_page("home")
    window.wait_until(lambda: "none" in texts(home.machine), "the computer")
    assert "How would you like to begin?" in texts(home.work)
    assert "No runs yet" in texts(home.recent)
    assert "The queue is empty" in texts(home.queue)
    assert main_buttons(window.app.root) == [WAYS["images"].label]
    home.work.buttons["images"].invoke()
    window.settle()
    assert window.app.context.navigation.page == "simple"
    window.open_page("home")
    home.work.buttons["demo"].invoke()
    window.settle()
    assert window.app.shell.first_steps.winfo_ismapped()
    assert main_buttons(window.app.root) == ["Start"]
    starts = [w for w in walk(window.app.root) if isinstance(w, Button) and w.cget("text") == "Start"]
    assert [w for w in starts if w.winfo_viewable()] == [window.app.shell.bottom_bar.start], "it was there three times"


def test_it_states_whether_the_config_can_start_and_leads_there(
    ready: Window, past_runs: list[RunRecord], tmp_path: Path
) -> None:
    form, context = ready.app.form, ready.app.context
    home: Any = ready.open_page("home")
    assert "ready" in texts(home.work), "the name of the config"
    assert "No setting has an error." in texts(home.work)
    assert main_buttons(ready.app.root) == ["Start"]
    ready.app.starter.refresh_preview()
    ready.wait_until(lambda: "Ready: " in texts(home.work), "the check")
    form.edit_text("training.batch_size", "0")
    ready.settle()
    assert "1 setting needs a correction" in texts(home.work)
    home.work.buttons["show"].invoke()
    ready.settle()
    assert context.navigation.page == "training"
    form.edit_text("training.batch_size", "1")
    form.edit("concepts", ())
    assert missing_data(form.config) == "images"
    ready.open_page("home")
    assert "No images yet" in texts(home.work)
    assert main_buttons(ready.app.root) == ["Add images"]
    form.choose_variant("training.method", "grpo")
    ready.settle()
    assert "No prompts yet" in texts(home.work)
    form.choose_variant("training.method", "denoise")
    context.session.begin(RunRequest(form.config))
    ready.settle()
    assert main_buttons(ready.app.root) == ["Open the run"]
    home.work.buttons["page_run"].invoke()
    ready.settle()
    assert context.navigation.page == "run"


def test_what_can_be_resumed_is_offered(ready: Window, tmp_path: Path) -> None:
    """The starter knows whether a run has finished."""
    context, starter = ready.app.context, ready.app.starter
    assert [press.label for press in work_of(context, starter).buttons] == []
    starter.resumable = SimpleNamespace(run_dir=tmp_path, step=7)  # type: ignore[assignment]
    assert [press.label for press in work_of(context, starter).buttons] == ["Resume at step 7"]


def test_long_notes_are_cut_after_a_word(ready: Window) -> None:
    context, starter = ready.app.context, ready.app.starter
    for notes, shown in (("", ""), ("two\n lines", "two lines"), ("watching " * 40, "watching…"), ("a" * 500, "aaa…")):
        context.form.edit("general.notes", notes)
        text = work_of(context, starter).notes
        assert text.endswith(shown), notes
        assert len(text) <= 221


def test_the_newest_runs_have_their_last_sample_and_open_in_the_list(
    open_window: Callable[..., Window], past_runs: list[RunRecord], tmp_path: Path
) -> None:
    sample = tmp_path / "sample.png"
    Image.new("RGB", (64, 64), "red").save(sample)
    past_runs += [
        record(tmp_path / "b", newest_sample=str(sample)),
        record(tmp_path / "a", status=RunStatus.CRASHED, step=9),
    ]
    window = open_window()
    window.app.form.load(window.app.form.config, Source("zog"))
    home: Any = window.open_page("home")
    window.wait_until(lambda: len(home.recent.tiles) == 2, "the runs")
    window.wait_until(lambda: home.recent.tiles[0]._image.cget("image"), "the sample")
    window.wait_until(lambda: "Finished, 420 steps" in texts(home.recent.tiles[0]), "the tile to be shown")
    assert "no samples" in texts(home.recent.tiles[1])
    assert "Crashed, step 9 of 420" in texts(home.recent.tiles[1])
    home.recent.tiles[1].event_generate("<Button-1>")
    window.settle()
    assert window.app.context.navigation.page == "runs"


def test_facts_as_text(tmp_path: Path) -> None:
    assert describe_run(record(tmp_path))[:3] == ("zog", "Finished, 420 steps", "label")
    assert dict(machine_rows(DESKTOP)) == {
        "GPU": "none", "Processor": "8 cores", "Memory": "32 GB", "Disk": "500 GB free for models",
    }  # fmt: skip
    assert why_no_gpu(DESKTOP) == "", "the row has it"
    card = Machine(GpuMemory(12 << 30, 11 * GB), 32 * GB, None, 8)
    assert dict(machine_rows(card)) == {"GPU": "12 GB, 11 GB free", "Memory": "32 GB"}
    assert why_no_gpu(Machine(None, GB, None, 1, "No driver.")) == "No driver."
