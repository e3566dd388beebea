"""Runs inside a test: the engine called directly, its events collected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch

from modules.config.schema import Config
from trainer.commands import Command, CommandDesk
from trainer.events import Event, RunFailed, RunFinished
from trainer.launch import RunRequest
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
) -> Ran:
    """Execute a run in this thread. `on_event(event, send)` may send commands during the run."""
    ran, desk = Ran(), CommandDesk()

    def emit(event: Event) -> None:
        ran.events.append(event)
        if on_event is not None:
            on_event(event, desk.put)

    kind = "train" if resume_from is None else "resume"
    execute_guarded(RunRequest(config, kind, resume_from, in_window=False), emit=emit, desk=desk, clocks=clocks)
    return ran


def assert_equal_tensors(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """Assert that two sets of tensors are bit for bit the same."""
    assert one.keys() == other.keys()
    different = [name for name in one if not torch.equal(one[name], other[name])]
    assert not different, f"{len(different)} of {len(one)} differ, the first is {different[0]}"
