"""A fake engine: a test emits its events and decides when its thread ends."""

from __future__ import annotations

import queue
import threading
from typing import Any

from trainer.commands import Stop
from trainer.events import Event, RunStarted, StepFinished
from trainer.launch import RunHandle, RunRequest


class FakeHandle(RunHandle):
    """The handle of a run of which a test decides when it ends, also when the window leaves it."""

    def leave(self) -> None:
        """Stop it without waiting for its end."""
        self.send(Stop())


class FakeRun:
    """One run: `emit` puts events on its queue, `end` lets its thread finish."""

    def __init__(self, request: RunRequest) -> None:
        self.request = request
        self.over = threading.Event()
        thread = threading.Thread(target=self.over.wait, name="fake-training", daemon=True)
        self.handle = FakeHandle(thread, queue.SimpleQueue())
        thread.start()

    @property
    def desk(self) -> Any:
        """The queue of the window's commands."""
        return self.handle.desk

    def emit(self, *events: Event) -> None:
        """Send an event to the window."""
        for event in events:
            self.handle.events.put(event)

    def end(self, *events: Event) -> None:
        """Send the last events and end the thread."""
        self.emit(*events)
        self.over.set()
        self.handle.thread.join(120)


class FakeEngine:
    """Replaces `trainer.launch.launch`; the newest run is `run`."""

    def __init__(self) -> None:
        self.run: FakeRun | None = None
        self.requests: list[RunRequest] = []
        self.children: list[RunRequest] = []

    def launch(self, request: RunRequest) -> RunHandle:
        """Start a run that does nothing by itself."""
        self.requests.append(request)
        self.run = FakeRun(request)
        return self.run.handle

    def launch_child(self, request: RunRequest) -> RunHandle:
        """Start a run of the queue, which has a process of its own."""
        self.children.append(request)
        return self.launch(request)


def started(run_dir: str = "/tmp/runs/one", **changes: Any) -> RunStarted:
    """Return the first event of a run of ten epochs with forty steps each."""
    facts: dict[str, Any] = {
        "run_dir": run_dir, "family": "sd", "method": "denoise", "trains": "adapter", "epochs": 10, "total_steps": 400,
        "first_step": 0, "num_images": 12, "num_validation_images": 4, "num_trainable_parameters": 123_456,
        "trained_parts": ("unet", "text_encoder"), "device": "cpu", "num_threads": 1,
    }  # fmt: skip
    return RunStarted(**{**facts, **changes})


def step(number: int, *, epoch_steps: int = 40, epochs: int = 10, **changes: Any) -> StepFinished:
    """Return the event of one step of such a run."""
    facts: dict[str, Any] = {
        "epoch": (number - 1) // epoch_steps + 1, "epochs": epochs, "epoch_step": (number - 1) % epoch_steps + 1,
        "epoch_steps": epoch_steps, "step": number, "total_steps": epoch_steps * epochs, "loss": 0.1 + 0.5 / number,
        "smoothed_loss": 0.1 + 0.4 / number, "gradient_norm": 0.5, "images_per_second": 3.5, "seconds_left": 75.0,
        "learning_rates": {"unet": 1e-4, "text_encoder": 5e-5}, "training_parts": ("unet", "text_encoder"),
    }  # fmt: skip
    return StepFinished(**{**facts, **changes})
