"""Stage 8: a run that is stopped on one device and resumed on another one continues as if it had not been stopped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.gpu.models import small_run
from benchmarks.gpu.stage import Case, Check, Finding, Request, at_most
from modules.config.schema import Config
from modules.settings.edit import replace_value
from trainer.commands import CommandDesk, Stop
from trainer.events import Event, RunFailed, RunFinished, StepFinished
from trainer.launch import RunRequest
from trainer.run.execute import execute_guarded

_STOPPED_AT, _EPOCHS = 2, 2
_ALLOWED = 1e-3  # between devices, which add up in another order


@dataclass(frozen=True, slots=True)
class _RunResult:
    """The losses of a run by step, and its last event."""

    losses: dict[int, float | None]
    ending: RunFinished | RunFailed


def cases(request: Request) -> Sequence[Case]:
    """Return the three ways between the CPU and the device."""
    device = request.device
    ways = {"from the CPU to the device": ("cpu", device), "from the device to the CPU": (device, "cpu")}
    ways["on the device"] = (device, device)
    return [Case(name, partial(_resume, request, name, *way)) for name, way in ways.items()]


def _resume(request: Request, name: str, first: str, second: str, _seconds: float) -> Iterator[Finding]:
    folder = f"resume/{name.replace(' ', '-')}"
    straight = _run(_config(request, f"{folder}/straight", first))
    stopped = _run(_config(request, f"{folder}/stopped", first), stop_at=_STOPPED_AT)
    yield _ending_check("uninterrupted run", straight, "finished")
    yield _ending_check("run until the stop", stopped, "stopped")
    if not isinstance(stopped.ending, RunFinished):
        return
    resumed = _run(_config(request, f"{folder}/stopped", second), resume_from=Path(stopped.ending.backup_path))
    yield _ending_check("resumed run", resumed, "finished")
    expected = {step: loss for step, loss in straight.losses.items() if step > _STOPPED_AT}
    steps = f"{list(resumed.losses)}"
    yield Check("steps of the resumed run", steps, f"{list(expected)}", list(resumed.losses) == list(expected))
    errors = [_difference(resumed.losses.get(step), loss) for step, loss in expected.items()]
    # On one device the run is deterministic.
    yield at_most("difference of the losses", max(errors), 0.0 if first == second else _ALLOWED)


def _ending_check(name: str, ran: _RunResult, outcome: str) -> Check:
    ending = ran.ending
    got = ending.outcome if isinstance(ending, RunFinished) else ending.message
    return Check(name, got, outcome, got == outcome)


def _difference(ours: float | None, other: float | None) -> float:
    return float("inf") if ours is None or other is None else abs(ours - other) / abs(other)


def _config(request: Request, folder: str, device: str) -> Config:
    config = small_run(replace(request, device=device), folder=folder, precision="float32")
    config = replace_value(config, "training.epochs", _EPOCHS)
    return replace_value(config, "general.deterministic", True)


def _run(config: Config, *, stop_at: int = 0, resume_from: Path | None = None) -> _RunResult:
    """Carry out a run in this process, or until a step."""
    losses: dict[int, float | None] = {}
    endings: list[RunFinished | RunFailed] = []
    desk = CommandDesk()

    def emit(event: Event) -> None:
        if isinstance(event, StepFinished):
            losses[event.step] = event.loss
            if event.step == stop_at:
                desk.put(Stop())
        elif isinstance(event, RunFinished | RunFailed):
            endings.append(event)

    request = RunRequest(config, "train" if resume_from is None else "resume", resume_from, in_window=False)
    execute_guarded(request, emit=emit, desk=desk)
    return _RunResult(losses, endings[-1])
