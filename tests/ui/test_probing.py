"""The probe in the window: its command, its findings, and taking them into the form."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from modules.config.codec import load_file
from modules.config.schema import Config
from tests.ui.conftest import Window
from tests.ui.test_fitting import AtOnce
from trainer.event_lines import to_line
from trainer.job_events import JobFinished, JobProgress
from ui.features.probe import BATCH, RATE, ProbeWindow, Probing, batches_of, read_findings
from ui.forms.model import FormModel


class FakeChild(io.StringIO):
    """A child process that answers a request on its standard input with results and two events."""

    def __init__(self, seen: list[dict[str, Any]]) -> None:
        super().__init__()
        self.stdin = self
        self.stdout = [to_line(JobProgress("Batch of 1", 1, 4)), to_line(JobFinished("Measured.", ()))]
        self._seen = seen

    def write(self, text: str) -> int:
        request = json.loads(text)
        self._seen.append(request)
        write_results(Path(request["settings"]["out"]))
        return len(text)

    def wait(self, timeout: float | None = None) -> int:
        return 0


def write_results(folder: Path) -> None:
    data = {
        "batch": {
            "points": [{"batch_size": n, "images_per_second": 10.0 * n, "peak_bytes": 0} for n in (1, 4, 8)],
            "largest": 8,
            "fastest": 4,
            "words": "The largest batch that ran is 8.",
        },
        "learning_rate": {
            "points": [{"rate": 10.0**-n, "loss": 0.5 - 0.1 / n, "untrained_loss": 0.5} for n in range(6, 1, -1)],
            "smoothed": [-0.02, -0.02, -0.025, -0.03, -0.05],
            "suggested": 0.00123,
            "diverges_at": None,
            "words": "It falls at 1.2e-03.",
        },
    }
    (folder / "points.json").write_text(json.dumps(data))


def spawner(seen: list[dict[str, Any]]) -> Callable[..., Any]:
    return lambda _arguments, _errors: FakeChild(seen)


def drained(probing: Probing, background: AtOnce | None = None) -> None:
    while probing.runner.state.is_active:
        probing.runner.drain(0.0)
    if background is not None:
        background.finish()


def form(tmp_path: Path) -> FormModel:
    training = {"batch_size": 2, "accumulation_steps": 3}
    return FormModel(Config.model_validate({"general": {"workspace_dir": str(tmp_path)}, "training": training}))


@pytest.mark.parametrize(("batch", "effective", "expected"), [(4, 6, (3, 2)), (8, 4, (4, 1)), (1, 5, (1, 5))])
def test_the_measured_batch_keeps_the_effective_one(batch: int, effective: int, expected: tuple[int, int]) -> None:
    assert batches_of(batch, effective) == expected


def test_it_measures_a_copy_of_the_config_and_its_findings_are_taken_with_undo(tmp_path: Path) -> None:
    model, background, seen = form(tmp_path), AtOnce(), []  # type: ignore[var-annotated]
    now = datetime(2026, 1, 2, 3, 4, 5)
    probing = Probing(model, background, may_start=lambda: True, spawn=spawner(seen), now=lambda: now)  # type: ignore[arg-type]
    probing.start({RATE, BATCH}, "24")
    folder = tmp_path / "probes" / "20260102-030405"
    file = folder / "config.json"
    [request] = seen
    wanted = {"config": str(file), "what": "both", "steps": 24, "out": str(folder)}
    assert (request["job"], request["settings"] | wanted) == ("probe", request["settings"])
    assert load_file(file).config == model.config
    drained(probing, background)
    assert probing.findings == read_findings(folder)
    assert (probing.findings.rate, probing.findings.batch) == (0.00123, 4)
    plots = probing.findings.plots
    assert list(plots) == [RATE, BATCH]
    assert (plots[RATE].is_log, plots[RATE].mark) == (True, 0.00123)
    assert plots[RATE].dots[0] == pytest.approx(-0.1 / 6)
    assert (plots[BATCH].x, plots[BATCH].mark) == ([1.0, 4.0, 8.0], 4)
    before = model.config
    assert "Ctrl+Z" in probing.take_rate()
    assert model.config.training.learning_rate == 0.0012
    assert "2 accumulation steps" in probing.take_batch()
    assert (model.config.training.batch_size, model.config.training.accumulation_steps) == (3, 2)
    model.undo()
    model.undo()
    assert model.config == before


def test_what_cannot_be_measured_is_said(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    idle = [False]
    probing = Probing(form(tmp_path), AtOnce(), may_start=lambda: idle[0], spawn=spawner(seen))  # type: ignore[arg-type]
    for what, steps, words in (
        (set(), "60", "Choose what to measure"),
        ({RATE}, "some", "from 12 to"),
        ({RATE}, "60", "A run is training"),
    ):
        probing.start(what, steps)  # type: ignore[arg-type]
        assert words in probing.problem
    assert seen == []
    assert (probing.take_rate(), probing.take_batch()) == ("", "")
    idle[0] = True
    (tmp_path / "probes").write_text("a file in the way")
    probing.start({BATCH}, "60")
    assert "cannot be written" in probing.problem


def test_the_window_shows_the_plot_and_offers_the_findings(ready: Window) -> None:
    context, seen = ready.app.context, []  # type: ignore[var-annotated]
    context.actions.run("probe")
    (first,) = (w for w in ready.app.root.winfo_children() if isinstance(w, ProbeWindow))
    first.steps.set("few")
    first.start_button.invoke()
    ready.settle()
    assert "from 12 to" in first.status.cget("text")
    first.close()
    probing = Probing(context.form, context.pump.background, may_start=lambda: True, spawn=spawner(seen))
    window = ProbeWindow(context, probing)
    window.start_button.invoke()
    ready.wait_until(lambda: window.plot.find_withtag("line"), "the plot")
    ready.settle()
    assert len(seen) == 1
    assert "It falls at 1.2e-03." in window.status.cget("text")
    assert len(window.plot.find_withtag("dot")) == 5
    assert window.plot.cget("background") == ready.app.theme.colour("window")
    middle = window.plot.coords(window.plot.find_withtag("dot")[2])[0]
    window.plot.event_generate("<Motion>", x=round(middle) + 3, y=100)
    texts = [window.plot.itemcget(item, "text") for item in window.plot.find_withtag("pointer")
             if window.plot.type(item) == "text"]  # fmt: skip
    assert "Learning rate 0.0001" in texts
    probing.changed()  # as by the progress of another probe
    ready.settle()
    assert window.plot.find_withtag("pointer")  # the values stay
    window.plot_buttons[BATCH].invoke()
    assert len(window.plot.find_withtag("dot")) == 3
    window.take_buttons[RATE].invoke()
    window.take_buttons[BATCH].invoke()
    ready.settle()
    assert context.form.config.training.learning_rate == 0.0012
    window.folder_button.invoke()
    assert ready.asked.asked("open_path") == [(probing.folder,)]
    window.close()
    ready.settle()
