"""The real engine and the real window: start, stop, resume, finish and start again through the buttons."""

from __future__ import annotations

import gc
import re
import threading
import tkinter as tk
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from modules.config.presets import DEMO, Preset, list_presets
from modules.config.schema import Config
from tests.ui.conftest import Window
from tests.ui.recorder import Recorder
from trainer.launch import RunHandle, RunRequest, import_engine, launch, smooth_interpreter
from ui.app.window import App
from ui.forms.model import Source

MANY_EPOCHS = 500


class Watched:
    """The real launch, with a weak reference to every thread it started."""

    def __init__(self) -> None:
        self.traces: list[weakref.ref[Any]] = []

    def launch(self, request: RunRequest) -> RunHandle:
        handle = launch(request)
        self.traces += [weakref.ref(handle.thread), weakref.ref(handle.desk)]
        return handle


@pytest.fixture
def real(root: tk.Tk, tiny_sd: Path, images: Path, tmp_path: Path) -> Iterator[Window]:
    """A window with the real engine and a config that trains a tiny model on five images."""
    watched, asked = Watched(), Recorder()
    app = App(interaction=asked, launch_run=watched.launch, root=root)
    config = Config.model_validate(
        {
            "general": {"workspace_dir": str(tmp_path / "workspace"), "cache_dir": str(tmp_path / "cache")},
            "model": {"base_model": str(tiny_sd)},
            "concepts": [{"path": str(images)}],
            "data": {"resolution_px": [64]},
            "training": {"epochs": MANY_EPOCHS},
            "output": {"destination": str(tmp_path / "lora.safetensors")},
            "sampling": {"prompts": [{"prompt": "an image", "width_px": 64, "height_px": 64, "steps": 2}]},
        }
    )
    app.form.load(config, Source("tiny"))
    app.show()
    window = Window(app, watched, asked)  # type: ignore[arg-type]  # the engine is the real one here
    window.settle()
    yield window
    if not app._is_closed:
        app.context.session.stop()
        window.wait_until(lambda: app.context.session.stage == "idle", "the end")
        app.close()


def wait(window: Window, condition: Any, what: str) -> None:
    """Run the window while the engine works; its import alone takes seconds."""
    window.wait_until(condition, what)
    assert window.app.context.session.state.failed is None, window.app.context.session.state.failed


@pytest.mark.slow
def test_start_stop_resume_finish_and_start_again(real: Window, tmp_path: Path) -> None:
    app, bar, session = real.app, real.app.shell.bottom_bar, real.app.context.session
    bar.start.invoke()
    wait(real, lambda: session.state.step is not None and session.state.step.step >= 3, "the third step")
    page: Any = app.shell.pages["run"]
    assert app.context.navigation.page == "run"
    real.settle()
    assert bar.start.cget("text") == "Stop"
    assert bar.second.cget("text") == "Pause"
    bar.second.invoke()
    wait(real, lambda: session.stage == "paused", "the pause")
    real.settle()
    assert bar.second.cget("text") == "Continue"
    paused_at = session.state.step.step
    bar.second.invoke()
    wait(real, lambda: session.stage == "running" and session.state.step.step > paused_at + 2, "the run to continue")
    bar.start.invoke()
    wait(real, lambda: session.stage == "idle", "the stop")
    assert session.state.finished is not None
    assert session.state.finished.outcome == "stopped"
    assert not (tmp_path / "lora.safetensors").exists()
    first_run = session.state.started
    assert first_run is not None
    assert page.samples.table.samples

    wait(real, lambda: bar.second.cget("text") == "Resume run" and bar.second.winfo_ismapped(), "the offer to resume")
    stopped_at = session.state.finished.step
    epochs = stopped_at // 5 + 2
    app.form.edit_text("training.epochs", str(epochs))
    bar.second.invoke()
    wait(real, lambda: session.is_active, "the second run")
    wait(real, lambda: session.stage == "idle", "the end")
    assert session.state.finished is not None
    assert session.state.finished.outcome == "finished"
    assert session.state.started is not None
    assert (session.state.started.first_step, session.state.started.run_dir) == (stopped_at, first_run.run_dir)
    assert [step for step, _ in session.state.curve("loss")] == list(range(1, epochs * 5 + 1))  # from the first step
    assert (tmp_path / "lora.safetensors").is_file()
    real.settle()
    assert bar.phase.cget("text") == "Finished"

    app.form.edit_text("training.epochs", "1")
    before = (tmp_path / "lora.safetensors").read_bytes()
    real.asked.answers["choose"] = "keep"
    bar.start.invoke()
    wait(real, lambda: session.is_active, "the third run")
    wait(real, lambda: session.stage == "idle", "its end")
    assert f"is the result of the run {Path(first_run.run_dir).name}." in real.asked.asked("choose")[-1][1]
    assert (tmp_path / "lora.safetensors").read_bytes() == before
    assert (tmp_path / "lora-2.safetensors").is_file()
    assert session.state.started.run_dir != first_run.run_dir
    gc.collect()
    watched: Any = real.engine
    assert [trace() for trace in watched.traces] == [None] * 6
    assert real.asked.asked("show_failure") == []


@pytest.mark.slow
def test_closing_while_the_engine_trains_stops_it_and_then_closes(real: Window) -> None:
    session = real.app.context.session
    real.app.shell.bottom_bar.start.invoke()
    wait(real, lambda: session.state.step is not None, "the first step")
    real.asked.answers["choose"] = "stop"
    real.app.closing.ask()
    wait(real, lambda: real.app._is_closed, "the close")
    assert session.state.finished is not None
    assert session.state.finished.outcome == "stopped"


@pytest.mark.slow
def test_a_broken_model_is_reported_in_a_sentence(real: Window, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "model_index.json").write_text('{"_class_name": "StableDiffusionPipeline"}', encoding="utf-8")
    for part in ("unet", "vae", "text_encoder"):
        (broken / part).mkdir()
        (broken / part / "config.json").write_text("{}", encoding="utf-8")
    real.app.form.edit("model.base_model", str(broken))
    real.app.shell.bottom_bar.start.invoke()
    real.wait_until(lambda: real.asked.asked("show_failure") or real.app.context.findings.items, "a failure")
    reported = real.asked.asked("show_failure")
    if reported:
        ((failure,),) = reported
        assert failure.message.endswith(".")
        assert "Traceback" not in failure.message
    real.wait_until(lambda: real.app.context.session.stage == "idle", "idle")


@pytest.mark.full
@pytest.mark.slow
def test_too_little_memory_leaves_the_window_alive_with_what_to_lower(
    real: Window, logged_errors: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a step of the run; the advice states what each change saves, from the estimate."""
    from trainer.methods.denoise import Denoise

    plain = Denoise.loss
    is_full = threading.Event()

    def loss(self: Any, *arguments: Any) -> Any:
        if is_full.is_set():
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        return plain(self, *arguments)

    import torch

    monkeypatch.setattr(Denoise, "loss", loss)
    session, bar = real.app.context.session, real.app.shell.bottom_bar
    bar.start.invoke()
    wait(real, lambda: session.state.step is not None and session.state.step.step >= 2, "the second step")
    is_full.set()
    real.wait_until(lambda: session.stage == "idle", "the end")
    failed = session.state.failed
    assert failed is not None
    assert failed.message.startswith("There was not enough memory for this run. The estimate for these settings: Abo")
    assert re.search(r" saves about \d+(?:\.\d)? [MG]B", failed.advice)
    assert Path(failed.details_path).read_text(encoding="utf-8").count("Tried to allocate")
    assert Path(failed.backup_path).is_dir()
    real.wait_until(lambda: real.asked.asked("show_failure"), "the dialog")
    real.open_page("training")
    assert (bar.start.cget("text"), bar.start.cget("state")) == ("Start", "normal")
    assert "Tried to allocate" in logged_errors.pop()


@pytest.mark.slow
def test_a_second_start_freezes_no_garbage() -> None:
    class Node:
        def __init__(self) -> None:
            self.itself = self

    import_engine()
    with smooth_interpreter():
        node = Node()
        trace = weakref.ref(node)
        import_engine()
        del node
        gc.collect()
    assert trace() is None


@pytest.mark.full
@pytest.mark.slow
def test_a_run_keeps_nothing_of_its_steps(real: Window) -> None:
    session, counts = real.app.context.session, []
    real.app.form.edit("sampling.prompts", ())  # a pause during sampling is not reported
    real.app.shell.bottom_bar.start.invoke()
    for wanted in (20, 40, 60):
        wait(real, lambda: session.state.step is not None and session.state.step.step >= wanted, "steps")  # noqa: B023
        session.pause()
        wait(real, lambda: session.state.phase == "paused", "the pause")
        gc.collect()
        counts.append(num_tensors())
        session.unpause()
        wait(real, lambda: session.state.phase != "paused", "the run to continue")
    session.stop()
    wait(real, lambda: session.stage == "idle", "the stop")
    # The loader may be a few images ahead or not; one tensor kept of each step would be forty.
    assert counts[-1] - counts[0] < 20, counts


def num_tensors() -> int:
    import torch

    return sum(isinstance(thing, torch.Tensor) for thing in gc.get_objects())


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("preset", [p for p in list_presets() if p.name == DEMO], ids=lambda p: p.name)
def test_the_demo_is_started_stopped_resumed_and_finished(real: Window, tmp_path: Path, preset: Preset) -> None:
    app, bar, session = real.app, real.app.shell.bottom_bar, real.app.context.session
    app.context.documents.open_preset(preset)
    for path, name in (
        ("general.workspace_dir", "demo-workspace"), ("general.cache_dir", "demo-cache"),
        ("output.destination", "zog.safetensors"),
    ):  # fmt: skip
        app.form.edit(path, str(tmp_path / name))
    app.form.edit_text("training.epochs", "3")  # all 30, and their result: tests/training/test_demo_preset.py
    real.settle()
    bar.start.invoke()
    wait(real, lambda: session.state.step is not None and session.state.step.step >= 2, "the second step")
    real.settle()
    bar.start.invoke()
    wait(real, lambda: session.stage == "idle", "the stop")
    stopped = session.state.finished
    assert stopped is not None
    assert stopped.outcome == "stopped"
    wait(real, lambda: bar.second.winfo_ismapped() and bar.second_name == "resume", "the offer to resume")
    bar.second.invoke()
    wait(real, lambda: session.is_active, "the run to continue")
    real.wait_until(lambda: session.stage == "idle", "the end", patience_seconds=600)
    assert session.state.finished is not None, session.state.failed
    assert session.state.finished.outcome == "finished"
    assert session.state.started is not None
    assert session.state.started.first_step == stopped.step
    assert (tmp_path / "zog.safetensors").is_file()
