"""The watchdog: it stops a run in which a part learns nothing, and keeps still where there is a reason for that."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from modules.optim.build import build_optimizer
from modules.optim.optimizers.adamw import AdamW
from modules.optim.param_groups import TrainGroup, freeze, optimizer_groups
from modules.system.errors import DarkroomError
from trainer.methods.protocol import StepLoss
from trainer.step.stepper import Stepper
from trainer.step.watchdog import FIRST_STEPS


class Toy:
    """Two parts whose outputs are added: a matrix, and a LoRA of a down and an up matrix that begins at zero."""

    def __init__(self, *, rate_factor: Callable[[int], float] = lambda step: 1.0, learning_rate: float = 1e-2) -> None:
        draws = torch.Generator().manual_seed(0)
        self.matrix = nn.Parameter(torch.randn(3, 3, generator=draws))
        self.down = nn.Parameter(torch.randn(2, 3, generator=draws))
        self.up = nn.Parameter(torch.zeros(3, 2))
        self.groups = [
            TrainGroup("unet", {"unet.matrix": self.matrix}, learning_rate),
            TrainGroup("text_encoder", {"text.down": self.down, "text.up": self.up}, learning_rate),
        ]
        self.optimizer = build_optimizer(optimizer_groups(self.groups), AdamW(weight_decay=0.0))
        self.stepper = Stepper(
            self.groups,
            self.optimizer,
            scaler=torch.amp.GradScaler("cpu", enabled=False),
            clip_norm=1.0,
            rate_factor=rate_factor,
            ema=None,
        )
        self.input = torch.randn(3, generator=draws)

    def loss(self, *, unet: float = 1.0, text: float = 1.0) -> torch.Tensor:
        """A loss in which each part has a weight; a weight of zero gives it a gradient of zero."""
        output = unet * (self.matrix @ self.input) + text * (self.up @ (self.down @ self.input))
        return (output - 1.0).square().sum()

    def train(self, steps: int, loss: Callable[[int], torch.Tensor], *, is_legal: bool = False) -> None:
        for step in range(steps):
            self.stepper.backward(StepLoss(loss(step), 1, 1, is_last_micro_batch=True, zero_gradient_is_legal=is_legal))
            self.stepper.finish(step)


LONG = 2 * FIRST_STEPS


def test_a_part_without_any_gradient_stops_the_run_by_name() -> None:
    toy = Toy()
    toy.train(FIRST_STEPS - 1, lambda step: toy.loss(text=0.0))
    with pytest.raises(DarkroomError, match=r"The text encoder does not learn: in 10 steps no gradient arrived"):
        toy.train(1, lambda step: toy.loss(text=0.0))
    assert not toy.stepper.is_moving


def test_a_part_that_is_cut_off_from_the_loss_is_named() -> None:
    toy = Toy()
    with pytest.raises(DarkroomError, match="The unet does not learn"):
        toy.train(LONG, lambda step: (toy.up @ (toy.down @ toy.input) - 1.0).square().sum())


def test_weights_that_do_not_move_are_told_apart() -> None:
    toy = Toy(learning_rate=1e-30)
    with pytest.raises(DarkroomError, match=r"The unet does not learn: .* weights did not move, though they had"):
        toy.train(LONG, lambda step: toy.loss())


def test_an_optimizer_that_does_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self, *arguments: None)
    toy = Toy()
    with pytest.raises(DarkroomError, match="did not move"):
        toy.train(LONG, lambda step: toy.loss())


def test_the_zero_gradient_of_a_fresh_loras_down_matrix_is_no_fault() -> None:
    toy = Toy()
    toy.train(1, lambda step: toy.loss())
    assert torch.equal(toy.up != 0, torch.ones(3, 2, dtype=torch.bool))
    toy.train(LONG, lambda step: toy.loss())


@pytest.mark.parametrize("reason", ["warm-up at zero", "loss of zero", "declared legal", "late", "stopped"])
def test_it_keeps_still_where_there_is_a_reason(reason: str) -> None:
    toy = Toy(rate_factor=lambda step: 0.0 if reason == "warm-up at zero" else 1.0)
    match reason:
        case "warm-up at zero":
            toy.train(LONG, lambda step: toy.loss())
        case "loss of zero":  # an empty mask
            toy.train(LONG, lambda step: toy.loss() * 0.0)
        case "declared legal":  # a token that no caption of the batch holds
            toy.train(LONG, lambda step: toy.loss(text=0.0), is_legal=True)
        case "late":
            toy.train(LONG, lambda step: toy.loss(text=float(step >= FIRST_STEPS - 1)))
        case "stopped":
            freeze(toy.groups[1], toy.optimizer)
            toy.train(LONG, lambda step: toy.loss(text=0.0))
    # And it still watches: what learned is let go, what had its reason is not taken for learning.
    if reason in ("loss of zero", "declared legal"):
        with pytest.raises(DarkroomError, match="text encoder"):
            toy.train(LONG, lambda step: toy.loss(text=0.0))


def test_a_part_that_has_learned_is_not_watched_any_more() -> None:
    toy = Toy()
    toy.train(1, lambda step: toy.loss())
    toy.train(LONG, lambda step: toy.loss(text=0.0))
    assert toy.up.isfinite().all()
