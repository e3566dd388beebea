"""Runs inside a test: the engine called directly, its events collected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file

from modules.config.schema import Config
from tests.builders.configs import laid_over
from trainer.commands import Command, CommandDesk, Stop
from trainer.events import Event, RunFailed, RunFinished, StepFinished
from trainer.launch import RequestKind, RunRequest
from trainer.preflight import check
from trainer.run.execute import execute_guarded
from trainer.run.setup import Clocks
from trainer.run_folder.shards import read_whole

E = TypeVar("E")


@dataclass
class Ran:
    """The events and the config of a run."""

    events: list[Event] = field(default_factory=list)

    def of(self, kind: type[E]) -> list[E]:
        """Return the events of a kind."""
        return [e for e in self.events if isinstance(e, kind)]

    @property
    def ending(self) -> RunFinished | RunFailed:
        """The last event."""
        last = self.events[-1]
        assert isinstance(last, RunFinished | RunFailed), last
        return last

    @property
    def finished(self) -> RunFinished:
        """The last event of a run that succeeded."""
        assert isinstance(self.ending, RunFinished), self.ending
        return self.ending

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """The weights of the run's last backup."""
        return read_whole(Path(self.finished.backup_path), "weights")


def run(
    config: Config,
    *,
    resume_from: Path | None = None,
    on_event: Callable[[Event, Callable[[Command], None]], None] | None = None,
    clocks: Clocks | None = None,
    kind: RequestKind | None = None,
) -> Ran:
    """Execute a run in this thread. `on_event(event, send)` may send commands during the run.

    Its kind is "train", or "resume" from a backup, unless another is given.
    """
    ran, desk = Ran(), CommandDesk()

    def emit(event: Event) -> None:
        ran.events.append(event)
        if on_event is not None:
            on_event(event, desk.put)

    kind = kind or ("train" if resume_from is None else "resume")
    execute_guarded(RunRequest(config, kind, resume_from, in_window=False), emit=emit, desk=desk, clocks=clocks)
    return ran


def losses(ran: Ran) -> list[float]:
    """Return the loss of each step of a run."""
    return [step.loss for step in ran.of(StepFinished)]


def errors_of(config: Config, **sections: Any) -> dict[str, str]:
    """Return the errors that preflight finds in a config with changes, by the path of the field."""
    return {p.path: p.message for p in check(laid_over(config, sections)).errors}


def assert_equal_tensors(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """Assert that two sets of tensors are bit for bit the same."""
    assert one.keys() == other.keys()
    different = [name for name in one if not torch.equal(one[name], other[name])]
    assert not different, f"{len(different)} of {len(one)} differ, the first is {different[0]}"


def stop_at(step: int) -> Callable[[Event, Callable[[Command], None]], None]:
    """Return the `on_event` of a run that stops it after a step."""

    def stop(event: Event, send: Callable[[Command], None]) -> None:
        if isinstance(event, StepFinished) and event.step == step:
            send(Stop())

    return stop


def steps_of(ran: Ran) -> list[Any]:
    """Return the numbers of each step of a run: what a resumed run must repeat to the bit."""
    return [(s.step, s.loss, s.gradient_norm, s.learning_rates, s.metrics) for s in ran.of(StepFinished)]


def assert_resumed(straight: Ran, first: Ran, second: Ran) -> None:
    """Assert that a run that was stopped and its continuation are bit for bit the uninterrupted run."""
    assert steps_of(first) + steps_of(second) == steps_of(straight)
    assert_equal_tensors(straight.weights, second.weights)
    for name in ("ema", "optimizer"):
        files = [Path(r.finished.backup_path) / f"{name}.safetensors" for r in (straight, second)]
        assert_equal_tensors(load_file(files[0]), load_file(files[1]))


def weights_of(family: Any) -> dict[str, torch.Tensor]:
    """Return copies of all weights of a loaded model, by the part and their name in it."""
    modules = {name: part.module for name, part in family.parts.items()}
    return {f"{p}.{n}": w.detach().clone() for p, m in modules.items() for n, w in m.named_parameters()}


def assert_lora_trained(ran: Ran) -> None:
    """Require of a LoRA from the start that all of its B, which are zero at first, have moved, to finite values."""
    moved = {name: bool(w.isfinite().all() and w.any()) for name, w in ran.weights.items() if ".lora_B." in name}
    assert moved, "there is no LoRA"
    assert [name for name, has_moved in moved.items() if not has_moved] == []
