"""One optimizer step: gradients of its micro-batches added up, checked, clipped, applied."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import nn

from modules.optim.ema import Ema
from modules.optim.fused_backward import FusedBackward
from modules.optim.master_weights import MasterWeight
from modules.optim.param_groups import TrainGroup
from modules.optim.sliced_step import Generators, SlicedStep, holding, norm_of, slices, total_norm
from trainer.methods.protocol import StepLoss
from trainer.step.watchdog import Watchdog


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What a step came to. A step whose loss or gradient is not finite is skipped: the weights stay.

    `metrics` are what the method told of its micro-batches, each the mean over the images it was told of.
    """

    loss: float | None
    gradient_norm: float | None
    num_images: int
    was_skipped: bool
    learning_rates: dict[str, float]
    metrics: Mapping[str, float] = field(default_factory=dict)


class Stepper:
    """Owns the way from losses to moved weights."""

    def __init__(
        self,
        groups: Sequence[TrainGroup],
        optimizer: torch.optim.Optimizer,
        *,
        scaler: torch.amp.GradScaler,
        clip_grad_norm: float | None,
        rate_factor: Callable[[int], float],
        ema: Ema | None,
        rounding_generators: Callable[[int, str], torch.Generator | None] = lambda step, name: None,
        is_fused: bool = False,
    ) -> None:
        """`rate_factor(step)` is the share of the learning rate that a step, counted from 0, uses.

        `rounding_generators(step, name)` gives what the stochastic rounding of a parameter draws from, where there is
        any. With `is_fused` weights move inside the backward pass. Raises ValueError for what that cannot do.
        """
        if is_fused and (clip_grad_norm is not None or scaler.is_enabled()):
            raise ValueError("a fused backward pass knows no clipping by the norm of all gradients and no loss scaler")
        self.optimizer = optimizer
        self.scaler = scaler
        self.ema = ema
        self._groups = {g.name: g for g in groups}
        self._clip_norm = clip_grad_norm
        self._rate_factor = rate_factor
        self._rounding_generators = rounding_generators
        self._watchdog = Watchdog(groups)
        self._sliced_step = SlicedStep(groups, optimizer, self._watchdog)
        self._fused = FusedBackward(groups, self._sliced_step) if is_fused else None
        self._step = 0
        self._losses: list[torch.Tensor] = []
        self._may_be_zero = False
        self._num_images = 0
        self._metrics: list[tuple[str, float, int]] = []
        self.is_moving = False
        """Whether weights are being moved: an error meanwhile leaves a step half done."""

    def begin(self, step: int) -> None:
        """Say which step, counted from 0, the next micro-batch belongs to: a fused backward pass moves weights."""
        self._step = step

    def backward(self, step_loss: StepLoss) -> None:
        """Add a micro-batch's share of the step's gradient: its mean loss, weighed by its share of the samples.

        A fused backward pass moves the weights by it at once. Raises ValueError where that would be a part of a step.
        """
        loss = step_loss.loss * (step_loss.num_samples / step_loss.group_samples)
        if self._fused is not None:
            self._move_backward(self._fused, loss, is_whole=step_loss.is_last_micro_batch and not self._losses)
        elif loss.requires_grad:
            self.scaler.scale(loss).backward()
        self._losses.append(loss.detach())
        self._num_images += step_loss.num_samples
        self._metrics += [(name, value, step_loss.num_samples) for name, value in step_loss.metrics.items()]
        self._may_be_zero |= step_loss.zero_gradient_is_legal

    def finish(self, step: int) -> StepOutcome:
        """Move the weights, as step number `step` (counted from 0), unless something is not finite.

        Raises DarkroomError where a unit has learned nothing in the first steps.
        """
        learning_rates = self._set_learning_rates(step)
        is_scaled = self.scaler.is_enabled() and self._has_gradients()  # a scaler has no word for a step without any
        if is_scaled:
            self._unscale()
        if self._fused is not None:
            self._fused.move_rest(self._generators_of(step))
        total_loss = torch.stack(self._losses).sum().float()
        norms = list(self.gradient_norms().values())
        norm = norm_of([n.to(total_loss.device) for n in norms]) if norms else torch.zeros_like(total_loss)
        # One wait for the device per step: loss and norm together.
        loss, gradient_norm = torch.stack([total_loss, norm]).tolist()
        is_finite = math.isfinite(loss) and math.isfinite(gradient_norm)
        if is_finite:
            self.is_moving = True
            if self._fused is None:
                self._move_all(step, norm)
            if self.ema is not None:
                self.ema.update(step + 1)
        self.is_moving = False
        if is_finite:
            self._watchdog.check(learning_rates, may_be_zero=self._may_be_zero or loss == 0.0)
        if is_scaled:
            self.scaler.update()
        outcome = StepOutcome(
            loss=loss if math.isfinite(loss) else None,
            gradient_norm=gradient_norm if math.isfinite(gradient_norm) else None,
            num_images=self._num_images,
            was_skipped=not is_finite,
            learning_rates=learning_rates,
            metrics=_means(self._metrics),
        )
        self.discard()
        return outcome

    def discard(self) -> None:
        """Forget the gradients of a step that is not finished. Unless it was fused, no weight has moved by it."""
        self.optimizer.zero_grad(set_to_none=True)
        for master_weight in self._master_weights():
            master_weight.weight.grad = None
            master_weight.release()
        if self._fused is not None:
            self._fused.forget()
        self._losses.clear()
        self._num_images = 0
        self._metrics.clear()
        self._may_be_zero = False

    def gradient_norms(self) -> dict[str, torch.Tensor]:
        """Return, by unit, the norm of the gradients that lie there or came and went in a fused pass, shape ()."""
        if self._fused is not None:
            return self._fused.norms()
        norms = {unit: total_norm(group) for unit, group in self._groups.items()}
        return {unit: norm for unit, norm in norms.items() if norm is not None}

    def dry_run_step(self, kept: Collection[str]) -> AbstractContextManager[None]:
        """Return the context of a backward pass of somebody else through these weights, which moves none of them.

        Of the gradients those of `kept` remain; where the step is not fused, all of them do.
        """
        return nullcontext() if self._fused is None else self._fused.looks(kept)

    def _move_backward(self, fused: FusedBackward, loss: torch.Tensor, *, is_whole: bool) -> None:
        if not is_whole:
            raise ValueError("a fused backward pass is a whole step: nothing can be added up over micro-batches")
        if not loss.requires_grad or not math.isfinite(loss.item()):
            return  # `finish` finds that there is nothing, or nothing usable
        self._set_learning_rates(self._step)
        self.is_moving = True
        with fused.moves(self._generators_of(self._step)):
            loss.backward()

    def _move_all(self, step: int, norm: torch.Tensor) -> None:
        def clip(parameters: Sequence[nn.Parameter]) -> None:
            if self._clip_norm is not None:
                torch.nn.utils.clip_grads_with_norm_(parameters, self._clip_norm, norm)

        for names in slices(self._groups.values(), self.optimizer):
            self._sliced_step.move(names, self._generators_of(step), clip)

    def _unscale(self) -> None:
        """Undo the scaling of the loss in all gradients. It is done in float32 for float16, and so all at once."""
        for master_weight in self._master_weights():
            if master_weight.rounding == "master":
                master_weight.take_gradient()
        with holding(self.optimizer, self._groups):
            self.scaler.unscale_(self.optimizer)

    def _has_gradients(self) -> bool:
        return any(p.grad is not None for g in self._groups.values() for p in g.parameters.values())

    def _generators_of(self, step: int) -> Generators:
        return lambda name: self._rounding_generators(step, name)

    def _master_weights(self) -> Iterator[MasterWeight]:
        return (s for g in self._groups.values() for s in g.master_weights.values())

    def _set_learning_rates(self, step: int) -> dict[str, float]:
        factor = self._rate_factor(step)
        rates = {}
        for group in self.optimizer.param_groups:
            unit = str(group["unit"])
            group["lr"] = rates[unit] = self._groups[unit].learning_rate * factor
        return rates


def _means(told: Sequence[tuple[str, float, int]]) -> dict[str, float]:
    """Return, by name, the mean of the values weighed by their numbers of images."""
    names = dict.fromkeys(name for name, _, _ in told)
    shares = {name: [(value, count) for own, value, count in told if own == name] for name in names}
    return {name: sum(v * n for v, n in pairs) / sum(n for _, n in pairs) for name, pairs in shares.items()}
