"""The window of the self-test: its request, the verdict with samples, and what is refused."""

from __future__ import annotations

import io
import json
import queue
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.ui.conftest import Window
from tests.ui.driving import walk
from tests.ui.test_run_window import end, press_start
from trainer.event_lines import to_line
from trainer.job_events import JobFinished, JobProgress
from ui.features.self_test import SelfTestWindow
from ui.widgets.panel import Text


class FakeChild(io.StringIO):
    """A child process that answers its request with a verdict and samples."""

    def __init__(self, seen: list[dict[str, Any]]) -> None:
        super().__init__()
        self.stdin = self
        self._seen = seen
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.stdout = iter(self._lines.get, "")  # until the last one

    def write(self, text: str) -> int:
        self._seen.append(json.loads(text))
        out = Path(self._seen[-1]["settings"]["out"])
        paths = [out / f"{name}.png" for name in ("known_before", "known_after", "config_before", "config_after")]
        for path in paths:
            Image.new("RGB", (64, 64)).save(path)
        done = JobFinished(
            "Passed: the model works.", tuple(map(str, paths)), ("The loss falls.", "The settings, too.")
        )
        for line in (to_line(JobProgress("Known settings", 1, 60)), to_line(done), ""):
            self._lines.put(line)
        return len(text)

    def wait(self, timeout: float | None = None) -> int:
        return 0


def texts(window: SelfTestWindow) -> list[str]:
    return [str(w.cget("text")) for w in walk(window) if isinstance(w, Text) and w.winfo_ismapped()]


@pytest.mark.parametrize("steps", ["60", "many"])
def test_it_tests_the_form_and_shows_the_verdict(ready: Window, steps: str, tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    window = SelfTestWindow(ready.app.context, spawn=lambda _arguments, _errors: FakeChild(seen))
    ready.settle()
    assert {"The image", "Before"} < set(texts(window)), "places for what will come"
    window.steps.set(steps)
    window.start_button.invoke()
    if steps == "many":
        assert "many" in window.problem
        assert seen == []
        window.close()
        return
    ready.wait_until(lambda: window.status.cget("text") == "Passed: the model works.", "the verdict")
    ready.settle()
    assert {"Before", "Known settings", "Your settings"} < set(texts(window))
    assert window.notes.cget("text") == "The loss falls.\nThe settings, too."
    (request,) = seen
    assert request["job"] == "self-test"
    assert json.loads(Path(request["settings"]["config"]).read_text())["output"]["destination"]
    window.close()


def test_it_waits_for_a_run(ready: Window) -> None:
    run = press_start(ready)
    window = SelfTestWindow(ready.app.context)
    window.start()
    assert "A run is training" in window.problem
    window.close()
    end(ready, run)
