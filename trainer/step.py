"""One optimizer step: gradients of its micro-batches added up, checked, clipped, applied."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from modules.optim.ema import Ema
from modules.optim.param_groups import TrainGroup
from modules.optim.stand_ins import StandIn
from trainer.methods.protocol import StepLoss
from trainer.watchdog import Watchdog


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What a step came to. A step whose loss or gradient is not finite is skipped: the weights stay."""

    loss: float | None
    gradient_norm: float | None
    num_images: int
    was_skipped: bool
    learning_rates: dict[str, float]


class Stepper:
    """Owns the way from losses to moved weights."""

    def __init__(
        self,
        groups: Sequence[TrainGroup],
        optimizer: torch.optim.Optimizer,
        *,
        scaler: torch.amp.GradScaler,
        clip_norm: float | None,
        rate_factor: Callable[[int], float],
        ema: Ema | None,
        rounding_draws: Callable[[int], torch.Generator | None] = lambda step: None,
    ) -> None:
        """`rate_factor(step)` is the share of the learning rate that a step, counted from 0, uses.

        `rounding_draws(step)` gives what stochastic rounding draws from, where there is any.
        """
        self.optimizer = optimizer
        self.scaler = scaler
        self.ema = ema
        self._groups = {g.part: g for g in groups}
        self._clip_norm = clip_norm
        self._rate_factor = rate_factor
        self._rounding_draws = rounding_draws
        self._watchdog = Watchdog(groups)
        self._losses: list[torch.Tensor] = []
        self._may_be_zero = False
        self._num_images = 0
        self.is_moving = False
        """Whether weights are being moved: an error meanwhile leaves a step half done."""

    def backward(self, step_loss: StepLoss) -> None:
        """Add a micro-batch's share of the step's gradient: its mean loss, weighed by its share of the samples."""
        loss = step_loss.loss * (step_loss.num_samples / step_loss.window_samples)
        if loss.requires_grad:
            self.scaler.scale(loss).backward()
        self._losses.append(loss.detach())
        self._num_images += step_loss.num_samples
        self._may_be_zero |= step_loss.zero_gradient_is_legal

    def finish(self, step: int) -> StepOutcome:
        """Move the weights, as step number `step` (counted from 0), unless something is not finite.

        Raises DarkroomError where a part has learned nothing in the first steps.
        """
        learning_rates = self._set_learning_rates(step)
        for stand_in in self._stand_ins():
            stand_in.take_gradient()
        self.scaler.unscale_(self.optimizer)
        norm = self._clipped_norm()
        # One wait for the device per step: loss and norm together.
        loss, gradient_norm = torch.stack([torch.stack(self._losses).sum().float(), norm.float()]).tolist()
        is_finite = math.isfinite(loss) and math.isfinite(gradient_norm)
        if is_finite:
            self._watchdog.look()
            self.is_moving = True
            self.scaler.step(self.optimizer)
            draws = self._rounding_draws(step)
            for stand_in in self._stand_ins():
                stand_in.give_value(draws)
            if self.ema is not None:
                self.ema.update(step + 1)
            self.is_moving = False
            self._watchdog.judge(learning_rates, may_be_zero=self._may_be_zero or loss == 0.0)
        if self.scaler.is_enabled():
            self.scaler.update()
        outcome = StepOutcome(
            loss=loss if math.isfinite(loss) else None,
            gradient_norm=gradient_norm if math.isfinite(gradient_norm) else None,
            num_images=self._num_images,
            was_skipped=not is_finite,
            learning_rates=learning_rates,
        )
        self.discard()
        return outcome

    def discard(self) -> None:
        """Forget the gradients of a step that is not finished; the weights are untouched by it."""
        self.optimizer.zero_grad(set_to_none=True)
        for stand_in in self._stand_ins():
            stand_in.weight.grad = None
            stand_in.release()
        self._losses.clear()
        self._num_images = 0
        self._may_be_zero = False

    def _stand_ins(self) -> Iterator[StandIn]:
        return (s for g in self._groups.values() for s in g.stand_ins.values())

    def _set_learning_rates(self, step: int) -> dict[str, float]:
        factor = self._rate_factor(step)
        rates = {}
        for group in self.optimizer.param_groups:
            part = str(group["part"])
            group["lr"] = rates[part] = self._groups[part].learning_rate * factor
        return rates

    def _clipped_norm(self) -> torch.Tensor:
        """Clip all gradients to the norm that is set and return their norm before that, shape ()."""
        parameters = [p for g in self.optimizer.param_groups for p in g["params"] if p.grad is not None]
        if not parameters:
            return torch.zeros((), device=self._losses[0].device)
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters])
        if self._clip_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(parameters, self._clip_norm, norm)
        return norm
