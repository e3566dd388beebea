"""A run whose memory on the card was freed during a pause ends bit for bit like one that was never paused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from modules.memory.guard import DeviceGuard
from modules.memory.placement import Placement
from modules.rewards.protocol import RewardContext
from modules.system.devices import CPU, Device
from tests.builders.configs import small_config
from tests.builders.runs import assert_equal_tensors, run
from trainer.commands import Command, Pause, Resume
from trainer.events import Event, PhaseChanged, StepFinished
from trainer.machine_events import MemoryMeasured
from trainer.run import training_run
from trainer.run.placement import FREED, freed_memory

# EMA and exact master weights on the training device, and accumulated gradients while the run waits.
SETTINGS: dict[str, Any] = {
    "general": {"train_device": "cpu:1", "debug_checks": True},
    "training": {
        "accumulation_steps": 2,
        "ema": {"mode": "train_device", "decay": 0.9},
        "trains": "full",
        "low_precision_updates": "master",
    },
    "parts": {"unet": {"dtype": "bfloat16"}, "text_encoder": {"train": False}},
}


@pytest.mark.full
def test_a_freed_pause_changes_no_bit(
    tiny_sd: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = run(small_config(tmp_path / "straight", model=tiny_sd, images=images, **SETTINGS))
    seen: list[Any] = []
    plain = training_run.freed_memory

    def watched(*arguments: Any, **others: Any) -> Any:
        seen[:] = arguments
        return plain(*arguments, **others)

    monkeypatch.setattr(training_run, "freed_memory", watched)
    pauses = []

    def on_event(event: Event, send: Callable[[Command], None]) -> None:
        if isinstance(event, StepFinished) and event.step < event.total_steps:
            send(Pause(free_memory=True))
        if event == PhaseChanged("paused", FREED):
            placement, _, stepper = seen
            assert {placement.device_of(part) for part in ("unet", "vae", "text_encoder")} == {CPU}
            states = [t for s in stepper.optimizer.state.values() for t in s.values() if torch.is_tensor(t) and t.dim()]
            everything = [*states, *stepper.ema.averages.values()]
            assert len(states) > 2
            assert {placement._guard.tag_of(t) for t in everything} == {"cpu"}
            pauses.append(event)
            threading.Thread(target=send, args=(Resume(),)).start()

    paused = run(small_config(tmp_path / "paused", model=tiny_sd, images=images, **SETTINGS), on_event=on_event)
    assert paused.finished.outcome == "finished"
    assert len(pauses) >= 2
    assert [e.loss for e in paused.of(StepFinished)] == [e.loss for e in straight.of(StepFinished)]
    assert_equal_tensors(straight.weights, paused.weights)
    phases = [e.phase for e in paused.of(PhaseChanged)]
    assert {phases[n + 1] for n, phase in enumerate(phases) if phase == "paused"} <= {"paused", "training"}
    assert all(m.process > 0 and 0 < m.machine_used <= m.machine_total for m in paused.of(MemoryMeasured))
    assert paused.of(MemoryMeasured)


def test_reward_models_are_offloaded_too() -> None:
    card, events, guard = Device("cpu:1"), [], DeviceGuard()
    context = RewardContext(card)
    stepper: Any = SimpleNamespace(optimizer=SimpleNamespace(state={}), ema=None)
    with guard:
        context.place(torch.nn.Linear(2, 2))
        [model] = context.placed
        placement = Placement({}, train_device=card, temp_device=CPU, needed_in=lambda phase: frozenset())
        before = model.weight.clone()
        with freed_memory(placement, [], stepper, reward_modules=context.placed, emit=events.append):
            assert guard.tag_of(model.weight) == "cpu"
        assert guard.tag_of(model.weight) == "cpu:1"
        assert torch.equal(model.weight, before)
    assert events == [PhaseChanged("paused", FREED)]
