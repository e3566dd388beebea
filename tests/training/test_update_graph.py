"""Recorded updates: norms, skipping, clipping and the optimizer's step, compared with a stepper that records nothing.

On a double of CUDA graphs that runs on a CPU (`tests/builders/recorded_operations.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from modules.optim.build import build_optimizer
from modules.optim.ema import Ema
from modules.optim.optimizers.adamw import AdamW
from modules.optim.optimizers.d_adaptation import Prodigy
from modules.optim.param_groups import (
    TrainGroup,
    exact_parameters,
    freeze,
    named_parameters,
    optimizer_parameters,
    optimizer_state,
)
from modules.optim.updates.master_weights import Rounding
from modules.system.devices import CPU
from tests.builders.recorded_operations import RecordedOperations
from tests.builders.runs import assert_equal_tensors
from trainer.methods.protocol import StepLoss
from trainer.run.stepper import why_not_updated
from trainer.step.graphs import StepGraphs
from trainer.step.outcome import StepOutcome
from trainer.step.stepper import Stepper
from trainer.step.update_graph import UpdateGraph

RATE = 2.0**-7  # few bits, because a recorded optimizer reads it in float32


class Toy:
    """A model of two units and its stepper, with recorded steps or without."""

    def __init__(self, *, is_recorded: bool, rounding: Rounding | None = None, **settings: Any) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        self.model.to(torch.float32 if rounding is None else torch.bfloat16)
        self.groups = [
            TrainGroup(name, {f"{name}.{n}": p for n, p in self.model[place].named_parameters()}, RATE)
            for name, place in (("first", 0), ("last", 2))
        ]
        for group in self.groups:
            if rounding is not None:
                group.master_weight(rounding)
        ema = Ema(
            named_parameters(self.groups),
            decay=0.5,
            update_every_steps=1,
            device=CPU,
            exact=lambda: exact_parameters(self.groups),
        )
        self.stepper = Stepper(
            self.groups,
            build_optimizer(self.groups, AdamW(**settings)),
            scaler=torch.amp.GradScaler("cpu", enabled=False),
            clip_grad_norm=0.1,
            rate_factor=lambda step: 2.0 ** -(step % 3),
            ema=ema,
        )
        self.recorder = RecordedOperations()
        self.graphs = StepGraphs(self.recorder, [self.model])
        self.reports: list[str] = []
        if is_recorded:
            self.stepper.update_graph = UpdateGraph(
                self.graphs,
                self.groups,
                self.stepper.optimizer,
                CPU.torch,
                report=lambda graph: self.reports.append(graph.failure),
            )
        self.step = 0

    def train(self, *values: float) -> StepOutcome:
        """Take a step with a micro-batch for each value."""
        for place, value in enumerate(values):
            x = torch.full((2, 3), value, dtype=self.model[0].weight.dtype)
            is_last = place == len(values) - 1
            loss = StepLoss(torch.zeros(()), num_samples=2, group_samples=2 * len(values), is_last_micro_batch=is_last)
            if self.stepper.update_graph is None:
                computed = self.model(x).float().square().mean()
                self.stepper.backward(StepLoss(computed, 2, 2 * len(values), is_last_micro_batch=is_last))
                continue
            found = self.graphs.add_gradients(
                (x,), loss.share, lambda given: self.model(given[0]).float().square().mean()
            )
            self.stepper.add(StepLoss(found, 2, 2 * len(values), is_last_micro_batch=is_last))
        self.pending = self.stepper.update(self.step)
        self.step += 1
        return self.pending.read()

    def state(self) -> dict[str, torch.Tensor]:
        """All that a step changes: weights, their exact values, averages, and the optimizer's state."""
        tensors, values = optimizer_state(self.stepper.optimizer, optimizer_parameters(self.groups))
        assert not values
        assert self.stepper.ema is not None
        return {
            **{f"weight {n}": p.detach().clone() for n, p in named_parameters(self.groups).items()},
            **{f"exact {n}": p.detach().clone() for n, p in exact_parameters(self.groups).items()},
            **{f"average {n}": a.clone() for n, a in self.stepper.ema.averages.items()},
            **{n: t.clone() for n, t in tensors.items()},
        }


def pair(**options: Any) -> tuple[Toy, Toy]:
    return Toy(is_recorded=True, **options), Toy(is_recorded=False, **options)


def updates_of(toy: Toy) -> list[int]:
    """The numbers of the recordings that contain the optimizer's step."""
    return [n for n, names in enumerate(toy.recorder.contents) if "aten::_fused_adamw_" in names]


@pytest.mark.parametrize(
    "options",
    [{}, {"amsgrad": True, "maximize": True}, {"rounding": "master"}],
    ids=["float32", "AMSGrad", "16-bit weights"],
)
def test_recorded_updates_are_those_without(options: dict[str, Any]) -> None:
    """With a schedule, clipping and EMA; accumulated steps after others are updates of the same graph."""
    recorded, plain = pair(**options)
    marks: list[bool] = []  # torch records the step of an optimizer with this mark alone, and warns of it elsewhere
    recorded.stepper.optimizer.register_step_pre_hook(lambda o, *_: marks.append(o.param_groups[0]["capturable"]))
    for values in ((1.0,), (2.0,), (3.0,), (4.0,), (1.0, 2.0), (2.0, 3.0), (3.0, 5.0)):
        assert recorded.train(*values) == plain.train(*values)
        assert_equal_tensors(recorded.state(), plain.state())
    one, update, half = 0, 1, 2  # the first step runs as it is, and the first ones with half the share
    assert updates_of(recorded) == [update]
    assert marks == [False, True]
    replays = [number for kind, number in recorded.recorder.events if kind == "replay"]
    assert replays == [one, update, one, update, one, update, half, update, half, half, update, half, half, update]


def test_a_broken_step_leaves_no_trace() -> None:
    recorded, plain = pair()
    for toy in (recorded, plain):
        for value in (1.0, 2.0, 3.0):
            toy.train(value)
    before, num_events = recorded.state(), len(recorded.recorder.events)
    outcome = recorded.train(float("nan"))
    assert outcome.was_skipped
    assert recorded.recorder.events[num_events:] == [("replay", 0), ("replay", 1)]
    assert_equal_tensors(recorded.state(), before)
    plain.step += 1
    for value in (2.0, 3.0):
        assert recorded.train(value) == plain.train(value)
    assert_equal_tensors(recorded.state(), plain.state())


def freeze_first(toy: Toy) -> None:
    freeze(toy.groups[0], toy.stepper.optimizer)


def move_state(toy: Toy) -> None:
    """As a pause does that frees the memory of the card."""
    for state in toy.stepper.optimizer.state.values():
        state["exp_avg"].data = state["exp_avg"].data.clone()


@pytest.mark.parametrize(("change", "num_steps_as_they_are"), [(freeze_first, 1), (move_state, 0)])
def test_an_update_is_recorded_again_when_something_has_changed(
    change: Callable[[Toy], None], num_steps_as_they_are: int
) -> None:
    recorded, plain = pair()
    for toy in (recorded, plain):
        for value in (1.0, 2.0, 3.0):
            toy.train(value)
        change(toy)
    num_events = len(recorded.recorder.events)
    for value in (2.0, 1.0, 3.0):
        assert recorded.train(value) == plain.train(value)
    assert_equal_tensors(recorded.state(), plain.state())
    first, second = updates_of(recorded)
    later = recorded.recorder.events[num_events:]
    assert later.count(("replay", second)) == 3 - num_steps_as_they_are
    assert ("replay", first) not in later


def read_weights(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.sum().item()


def test_a_failed_recording_leaves_the_update_of_a_plain_run() -> None:
    """The step reads a number, after clipping has changed the gradients."""
    recorded, plain = pair(rounding="master")
    for toy in (recorded, plain):
        toy.stepper.optimizer.register_step_pre_hook(read_weights)
    for value in (1.0, 2.0, 3.0, 4.0):
        assert recorded.train(value) == plain.train(value)
        assert_equal_tensors(recorded.state(), plain.state())
    [failure] = recorded.reports
    assert failure.startswith("aten._local_scalar_dense.default cannot be recorded")
    assert updates_of(recorded) == []


def test_rates_are_rounded_to_float32_in_every_step_of_a_recorded_run() -> None:
    recorded, plain = pair()
    for toy in (recorded, plain):
        for group in toy.groups:
            group.learning_rate = 1e-3
    recorded.train(1.0)
    plain.train(1.0)
    rates = {float(group["lr"]) for group in recorded.stepper.optimizer.param_groups}
    assert rates == {float(torch.tensor(1e-3))}
    assert {group["lr"] for group in plain.stepper.optimizer.param_groups} == {1e-3}
    difference = max(
        float((recorded.state()[n] - t).abs().max()) for n, t in plain.state().items() if n.startswith("weight")
    )
    assert difference < 1e-9


def test_what_is_not_recorded_is_named() -> None:
    toy = Toy(is_recorded=False)
    assert why_not_updated(AdamW(), toy.groups, toy.stepper) == ""
    assert why_not_updated(AdamW(fused=False), toy.groups, toy.stepper).startswith("AdamW, as it is set, needs the")
    assert why_not_updated(Prodigy(), toy.groups, toy.stepper).startswith("Prodigy, as it is set, needs the")
    toy.stepper.after_update = dict
    assert "norms of weights are limited" in why_not_updated(AdamW(), toy.groups, toy.stepper)
    toy = Toy(is_recorded=False, rounding="stochastic")
    assert "rounded at random" in why_not_updated(AdamW(), toy.groups, toy.stepper)
