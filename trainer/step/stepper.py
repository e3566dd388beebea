"""One optimizer step: gradients of its micro-batches are accumulated, checked, clipped and applied."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from modules.optim.ema import Ema
from modules.optim.param_groups import TrainGroup, effective_rates, rate_of
from modules.optim.spec import EffectiveRate
from modules.optim.updates.fused_backward import FusedBackward
from modules.optim.updates.master_weights import MasterWeight
from modules.optim.updates.sliced_step import Generators, SlicedStep, holding, norm_of, slices, total_norm
from trainer.methods.protocol import StepLoss
from trainer.ranks import ALONE, Ranks
from trainer.step.gradient_sums import GradientSums, Reduction
from trainer.step.prediction_modes import require_no_reference
from trainer.step.watchdog import Watchdog

_Metric = tuple[str, float | torch.Tensor, int]  # name, value, and the number of images it covers


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The result of a step. A step whose loss or gradient is not finite is skipped: the weights do not change.

    `metrics` are the values the method reported for its micro-batches, each the mean over the images it covers.
    `gradient_norms` are the finite norms of the gradients by unit, before clipping; `gradient_norm` is their total.
    `effective_rates` are, by unit, the rates that an adaptive optimizer chose; `learning_rates` were set.
    """

    loss: float | None
    gradient_norm: float | None
    num_images: int
    was_skipped: bool
    learning_rates: dict[str, float]
    metrics: Mapping[str, float] = field(default_factory=dict)
    gradient_norms: Mapping[str, float] = field(default_factory=dict)
    effective_rates: Mapping[str, float] = field(default_factory=dict)


class Stepper:
    """Turns the losses of micro-batches into weight updates."""

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
        after_update: Callable[[], Mapping[str, float]] | None = None,
        effective_rate: EffectiveRate | None = None,
        ranks: Ranks = ALONE,
        reduction: Reduction = Reduction(),  # noqa: B008 - frozen
    ) -> None:
        """`rate_factor(step)` is the factor on the learning rate of a step, counted from 0.

        `rounding_generators(step, name)` returns the generator for the stochastic rounding of a parameter, or None.
        `after_update()` may change the weights after each update, and returns metrics.
        With `is_fused` weights are updated in the backward pass, and `clip_grad_norm` applies to each weight's gradient
        alone; raises ValueError with an enabled scaler.
        `effective_rate(group)` comes from the optimizer's record. The gradients of a step are summed over `ranks`, as
        `reduction` sets; gradients of sharded weights (`TrainGroup.is_sharded`) are summed already.
        """
        if is_fused and scaler.is_enabled():
            raise ValueError("a fused backward pass does not support a gradient scaler")
        self.optimizer = optimizer
        self.scaler = scaler
        self.ema = ema
        self._groups = {g.name: g for g in groups}
        self._clip_norm = clip_grad_norm
        self._rate_factor = rate_factor
        self._rounding_generators = rounding_generators
        self.watchdog = Watchdog(groups)
        self._sliced_step = SlicedStep(groups, optimizer, self.watchdog)
        self._after_update = after_update
        self._fused = FusedBackward(groups, self._sliced_step, clip_grad_norm=clip_grad_norm) if is_fused else None
        self._effective_rate = effective_rate
        self._ranks = ranks
        self._sums = None if ranks.rank.is_alone else self._gradient_sums(reduction)
        self._step = 0
        self._losses: list[torch.Tensor] = []
        self._may_be_zero = False
        self._num_images = 0
        self._metrics: list[_Metric] = []
        self.is_moving = False
        """Whether weights are being updated: an error in the meantime leaves a step half done."""

    def begin(self, step: int) -> None:
        """Set the step, counted from 0, of the next micro-batch: a fused backward pass needs it to update weights."""
        self._step = step

    def backward(self, step_loss: StepLoss) -> None:
        """Add a micro-batch's share of the step's gradient: its mean loss, weighted by its share of the samples.

        A fused backward pass updates the weights at once. Raises ValueError if the micro-batch is not a whole step, and
        ReferenceOpenError while a reference model is active.
        """
        require_no_reference()
        loss = step_loss.loss * (step_loss.num_samples / step_loss.group_samples)
        if self._fused is not None:
            self._move_backward(self._fused, loss, is_whole=step_loss.is_last_micro_batch and not self._losses)
        elif loss.requires_grad:
            if self._sums is not None and step_loss.is_last_micro_batch:
                self._sums.open(self._step)
            self.scaler.scale(loss).backward()
        self._losses.append(loss.detach())
        self._num_images += step_loss.num_samples if step_loss.num_images is None else step_loss.num_images
        self._metrics += [(name, value, step_loss.num_samples) for name, value in step_loss.metrics.items()]
        self._may_be_zero |= step_loss.zero_gradient_is_legal

    def finish(self, step: int) -> StepOutcome:
        """Update the weights as step number `step` (counted from 0), unless the loss or a gradient is not finite.

        Raises DarkroomError if a unit was not trained in the first steps (see `Watchdog`).
        """
        learning_rates = self._set_learning_rates(step)
        total_loss = self._total_loss(step)
        is_scaled = self.scaler.is_enabled() and self._has_gradients()  # a scaler raises if there are no gradients
        if is_scaled:
            self._unscale()
        if self._fused is not None:
            self._fused.move_rest(self._generators_of(step))
        norms = {unit: n.to(total_loss.device) for unit, n in self.gradient_norms().items()}
        norms = self._whole_norms(norms, like=total_loss)
        norm = norm_of(list(norms.values())) if norms else torch.zeros_like(total_loss)
        _, rates = effective_rates(self.optimizer.param_groups, self._effective_rate)
        # One synchronization with the device per step: loss, norms, effective rates and metrics together.
        tensors = [*rates.values(), *_tensors_in(self._metrics)]
        read = torch.stack([total_loss, norm, *norms.values(), *(t.to(total_loss.device) for t in tensors)])
        loss, gradient_norm, *others = read.tolist()
        of_units, others = others[: len(norms)], others[len(norms) :]
        read_rates, values = others[: len(rates)], iter(others[len(rates) :])
        self._metrics = [(n, next(values) if isinstance(v, torch.Tensor) else v, k) for n, v, k in self._metrics]
        is_finite = math.isfinite(loss) and math.isfinite(gradient_norm)
        if is_finite:
            self.is_moving = True
            if self._fused is None:
                self._move_all(step, norm)
            if self._after_update is not None:
                self._metrics += [(name, value, 1) for name, value in self._after_update().items()]
            if self.ema is not None:
                self.ema.update(step + 1)
        elif self._fused is not None:
            self._fused.put_back()
        self.is_moving = False
        if is_finite:
            self.watchdog.check(learning_rates, may_be_zero=self._may_be_zero or loss == 0.0)
        if is_scaled:
            self.scaler.update()
        outcome = StepOutcome(
            loss=loss if math.isfinite(loss) else None,
            gradient_norm=gradient_norm if math.isfinite(gradient_norm) else None,
            num_images=self._num_images,
            was_skipped=not is_finite,
            learning_rates=learning_rates,
            metrics=_means(self._metrics),
            gradient_norms={unit: n for unit, n in zip(norms, of_units, strict=True) if math.isfinite(n)},
            effective_rates=self._effective_rates(dict(zip(rates, read_rates, strict=True))),
        )
        self.discard()
        return outcome

    def discard(self) -> None:
        """Discard the gradients of an unfinished step. Unless it was fused, it has not changed any weight."""
        self.optimizer.zero_grad(set_to_none=True)
        for master_weight in self._master_weights():
            master_weight.weight.grad = None
            master_weight.release()
        if self._fused is not None:
            self._fused.forget()
        if self._sums is not None:
            self._sums.discard()
        self._losses.clear()
        self._num_images = 0
        self._metrics.clear()
        self._may_be_zero = False

    def gradient_norms(self) -> dict[str, torch.Tensor]:
        """Return, by unit, the norm of the current gradients or of those in a fused backward pass, of shape ()."""
        if self._fused is not None:
            return self._fused.norms()
        norms = {unit: total_norm(group) for unit, group in self._groups.items()}
        return {unit: norm for unit, norm in norms.items() if norm is not None}

    def dry_run_step(self, kept: Collection[str]) -> AbstractContextManager[None]:
        """Return the context for a dry run's backward pass through these weights, which updates none of them.

        Only the gradients of `kept` remain; if the step is not fused, all of them do.
        """
        return nullcontext() if self._fused is None else self._fused.gradients_only(kept)

    def _move_backward(self, fused: FusedBackward, loss: torch.Tensor, *, is_whole: bool) -> None:
        if not is_whole:
            raise ValueError("a fused backward pass is a whole step: gradients cannot be accumulated")
        if not loss.requires_grad:
            return  # `finish` handles a missing gradient
        self._set_learning_rates(self._step)
        self.is_moving = True
        with fused.updating(self._generators_of(self._step), loss):
            loss.backward()

    def _total_loss(self, step: int) -> torch.Tensor:
        """Return the loss of the step, of shape (); of several processes, after summing their gradients and losses."""
        total_loss = torch.stack(self._losses).sum().float()
        if self._ranks.rank.is_alone:
            return total_loss
        assert self._sums is not None, "with several processes"
        parameters = [p for p in self._whole_parameters() if p.requires_grad]
        is_read = total_loss.is_cpu  # reading it from another device would wait for that
        facts = [self._num_images, self._may_be_zero, bool(self._metrics), float(total_loss) if is_read else 0.0]
        wait = self._ranks.start_sums([*facts, *(p.grad is not None for p in parameters)])
        self._sums.start_rest(step)
        num_images, num_zero, num_measured, read_loss, *have_gradients = wait()
        self._num_images, self._may_be_zero = round(num_images), num_zero > 0
        if num_measured:
            self._metrics = [(n, v, k) for of_rank in self._ranks.gather(_read(self._metrics)) for n, v, k in of_rank]
        self._sums.finish(have_gradients)
        if is_read:
            return torch.tensor(read_loss, dtype=torch.float32)
        total_loss = total_loss.clone()
        self._ranks.sum_tensors([total_loss])
        return total_loss

    def _whole_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that every process has whole: the gradients of others are summed as they arise."""
        return [p for g in self._groups.values() if not g.is_sharded for p in g.parameters.values()]

    def _gradient_sums(self, reduction: Reduction) -> GradientSums:
        if any(g.is_sharded for g in self._groups.values()):
            reduction = replace(reduction, starts_early=False)  # torch's sums of sharded weights come in between
        return GradientSums(self._whole_parameters(), self._ranks, reduction)

    def _whole_norms(self, norms: dict[str, torch.Tensor], *, like: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the norms; norms of sharded weights are taken over all processes."""
        sharded = [name for name, g in self._groups.items() if g.is_sharded and g.is_training]
        if self._ranks.rank.is_alone or not sharded:
            return norms
        squares = torch.stack([norms[name].square() if name in norms else torch.zeros_like(like) for name in sharded])
        self._ranks.sum_tensors([squares])
        return {**norms, **dict(zip(sharded, squares.sqrt().unbind(), strict=True))}

    def _move_all(self, step: int, norm: torch.Tensor) -> None:
        def clip(parameters: Sequence[nn.Parameter]) -> None:
            if self._clip_norm is not None:
                torch.nn.utils.clip_grads_with_norm_(parameters, self._clip_norm, norm)

        for names in slices(self._groups.values(), self.optimizer):
            self._sliced_step.move(names, self._generators_of(step), clip)

    def _unscale(self) -> None:
        """Undo the loss scaling in all gradients at once; for float16 gradients this is done in float32."""
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

    def _effective_rates(self, read: Mapping[str, float]) -> dict[str, float]:
        """Return the effective rates after the update; those in tensors are `read` before it, with the loss."""
        now, _ = effective_rates(self.optimizer.param_groups, self._effective_rate)
        return {unit: rate for unit, rate in {**read, **now}.items() if math.isfinite(rate)}

    def _set_learning_rates(self, step: int) -> dict[str, float]:
        factor = self._rate_factor(step)
        rates = {}
        for group in self.optimizer.param_groups:
            unit = str(group["unit"])
            rates[unit] = self._groups[unit].learning_rate * factor
            group["lr"] = rate_of(group, self._groups[unit].learning_rate) * factor
        return rates


def _tensors_in(metrics: Sequence[_Metric]) -> list[torch.Tensor]:
    return [value.detach().float() for _, value, _ in metrics if isinstance(value, torch.Tensor)]


def _read(metrics: Sequence[_Metric]) -> list[_Metric]:
    """Return the metrics with the values of their tensors, which are read from the device together."""
    tensors = _tensors_in(metrics)
    values = iter(torch.stack(tensors).tolist() if tensors else [])
    return [(n, next(values) if isinstance(value, torch.Tensor) else value, k) for n, value, k in metrics]


def _means(metrics: Sequence[_Metric]) -> dict[str, float]:
    """Return, by name, the mean of the values weighted by their numbers of images; those that are NaN are left out."""
    numbers = [(name, float(value), count) for name, value, count in metrics if not math.isnan(value)]
    names = dict.fromkeys(name for name, _, _ in numbers)
    shares = {name: [(value, count) for other, value, count in numbers if other == name] for name in names}
    return {name: sum(v * n for v, n in pairs) / sum(n for _, n in pairs) for name, pairs in shares.items()}
