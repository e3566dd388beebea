"""One optimizer step: gradients of its micro-batches are accumulated, checked, clipped and applied."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from modules.optim.ema import Ema
from modules.optim.param_groups import TrainGroup, effective_rates, set_learning_rates
from modules.optim.rates import EffectiveRate
from modules.optim.updates.fused_backward import FusedBackward
from modules.optim.updates.master_weights import MasterWeight
from modules.optim.updates.sliced_step import (
    Generators,
    SlicedStep,
    gradients_in_groups,
    is_broken,
    norm_of,
    reads_flag,
    slices,
    total_norm,
)
from trainer.methods.protocol import StepLoss
from trainer.ranks import ALONE, Ranks
from trainer.step.gradient_sums import GradientSums, Reduction
from trainer.step.outcome import Metric, PendingOutcome, StepNumbers, StepOutcome, means, read_metrics
from trainer.step.prediction_modes import require_no_reference
from trainer.step.update_graph import Norms, UpdateGraph
from trainer.step.watchdog import Watchdog


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
        self.after_update = after_update
        self._fused = FusedBackward(groups, self._sliced_step, clip_grad_norm=clip_grad_norm) if is_fused else None
        self._effective_rate = effective_rate
        self._ranks = ranks
        self._sums = None if ranks.rank.is_alone else self._gradient_sums(reduction)
        self._step = 0
        self._losses: list[torch.Tensor] = []
        self._may_be_zero = False
        self._num_images = 0
        self._metrics: list[Metric] = []
        self._newest: PendingOutcome | None = None
        self.update_graph: UpdateGraph | None = None
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
        loss = step_loss.loss * step_loss.share
        if self._fused is not None:
            self._move_backward(self._fused, loss, is_whole=step_loss.is_last_micro_batch and not self._losses)
        elif loss.requires_grad:
            if self._sums is not None and step_loss.is_last_micro_batch:
                self._sums.open(self._step)
            self.scaler.scale(loss).backward()
        self._count(step_loss, loss)

    def add(self, step_loss: StepLoss) -> None:
        """Add a micro-batch whose gradients are in the parameters already: a recorded one."""
        require_no_reference()
        self._count(step_loss, step_loss.loss * step_loss.share)

    def _count(self, step_loss: StepLoss, loss: torch.Tensor) -> None:
        self._losses.append(loss.detach())
        self._num_images += step_loss.num_samples if step_loss.num_images is None else step_loss.num_images
        self._metrics += [(name, value, step_loss.num_samples) for name, value in step_loss.metrics.items()]
        self._may_be_zero |= step_loss.zero_gradient_is_legal

    def finish(self, step: int) -> StepOutcome:
        """Update the weights as `update` does, and wait for the outcome."""
        return self.update(step).read()

    def update(self, step: int) -> PendingOutcome:
        """Update the weights as step number `step` (counted from 0), unless the loss or a gradient is not finite.

        The device decides that where it can (`_decides_on_device`), and the outcome is read later: at the latest
        before the next update, so that a skipped step leaves nothing on the host either. Otherwise the host waits here.
        Raises DarkroomError if a unit was not trained in the first steps (see `Watchdog`).
        """
        self._read_newest()
        learning_rates = set_learning_rates(self.optimizer, self._groups, self._rate_factor(step))
        total_loss = self._total_loss(step)
        is_scaled = self.scaler.is_enabled() and self._has_gradients()  # a scaler raises if there are no gradients
        if is_scaled:
            self._unscale()
        if self._fused is not None:
            self._fused.update_rest(self._generators_of(step))
        is_late = self._decides_on_device(total_loss.device)
        replayed = self._replay(step, total_loss) if is_late else None
        norm, norms = replayed or self._norms(total_loss)
        _, rates = effective_rates(self.optimizer.param_groups, self._effective_rate)
        numbers = StepNumbers(total_loss, norm, norms, rates, tuple(self._metrics))
        more_metrics: Mapping[str, float] = {}
        if is_late or numbers.is_finite:
            self.is_moving = True
            if self._fused is None and replayed is None:
                self._move_all(step, norm, is_broken(total_loss, norm) if is_late else None)
            if self.after_update is not None:
                more_metrics = self.after_update()
        self.is_moving = False
        if is_scaled:
            self.scaler.update()
        self._newest = PendingOutcome(
            self._num_images,
            numbers,
            partial(
                self._complete,
                step,
                numbers,
                [(name, value, 1) for name, value in more_metrics.items()],
                learning_rates=learning_rates,
                num_images=self._num_images,
                may_be_zero=self._may_be_zero,
                put_back=None if self._fused is None else self._fused.restorer_of_skipped(),
            ),
        )
        self.discard()
        newest = self._newest
        if not is_late:
            self._read_newest()
        return newest

    def _decides_on_device(self, device: torch.device) -> bool:
        """Return whether a step can be skipped without the host knowing it.

        The optimizer must read a flag on the device, as torch's fused ones do: for others the weights and their state
        would have to be copied before each step. Weights on another device (offloaded) would wait for the flag, what
        changes the weights after the update does not know it, and the watchdog reads each weight anyway.
        """
        if self.after_update is not None or self.watchdog.is_watching:
            return False
        if self._fused is not None:
            return True  # it has decided in the backward pass
        return reads_flag(self.optimizer, device) and all(
            p.device == device for g in self._groups.values() if g.is_training for p in g.parameters.values()
        )

    def _complete(
        self,
        step: int,
        numbers: StepNumbers,
        metrics: Sequence[Metric],
        *,
        learning_rates: dict[str, float],
        num_images: int,
        may_be_zero: bool,
        put_back: Callable[[], None] | None,
    ) -> StepOutcome:
        """Do on the host what depends on whether the step was skipped, before the next update, and return its outcome.

        The weights have not changed since this step: it is the same average as right after the update.
        """
        is_finite, loss = numbers.is_finite, numbers.loss
        if is_finite and self.ema is not None:
            self.is_moving = True
            self.ema.update(step + 1)
            self.is_moving = False
        elif put_back is not None and not is_finite:
            put_back()
        if is_finite:
            self.watchdog.check(learning_rates, may_be_zero=may_be_zero or loss == 0.0)
        return StepOutcome(
            loss=loss if math.isfinite(loss) else None,
            gradient_norm=numbers.gradient_norm if math.isfinite(numbers.gradient_norm) else None,
            num_images=num_images,
            was_skipped=not is_finite,
            learning_rates=learning_rates,
            metrics=means([*numbers.metrics, *metrics]),
            gradient_norms=numbers.gradient_norms,
            effective_rates=self._effective_rates(numbers.effective_rates),
        )

    def _read_newest(self) -> None:
        """Complete the newest step, if it is not yet."""
        newest, self._newest = self._newest, None
        if newest is not None:
            newest.read()

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
        self._read_newest()  # the weights change from here on
        if not loss.requires_grad:
            return  # `update` handles a missing gradient
        set_learning_rates(self.optimizer, self._groups, self._rate_factor(self._step))
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
            of_all = self._ranks.gather(read_metrics(self._metrics))
            self._metrics = [metric for of_rank in of_all for metric in of_rank]
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

    def _norms(self, like: torch.Tensor) -> Norms:
        """Return the norm of all gradients and those by unit, on the device of a tensor of shape ()."""
        norms = self._whole_norms({unit: n.to(like.device) for unit, n in self.gradient_norms().items()}, like=like)
        return norm_of(list(norms.values())) if norms else torch.zeros_like(like), norms

    def _whole_norms(self, norms: dict[str, torch.Tensor], *, like: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the norms; norms of sharded weights are taken over all processes."""
        sharded = [name for name, g in self._groups.items() if g.is_sharded and g.is_training]
        if self._ranks.rank.is_alone or not sharded:
            return norms
        squares = torch.stack([norms[name].square() if name in norms else torch.zeros_like(like) for name in sharded])
        self._ranks.sum_tensors([squares])
        return {**norms, **dict(zip(sharded, squares.sqrt().unbind(), strict=True))}

    def _replay(self, step: int, total_loss: torch.Tensor) -> Norms | None:
        """Update the weights by a graph, unless a number is not finite, and return the norms; None if it cannot."""

        def enqueue(loss: torch.Tensor) -> Norms:
            norm, norms = self._norms(loss)
            self._move_all(step, norm, is_broken(loss, norm))
            return norm, norms

        self.is_moving = self.update_graph is not None
        return None if self.update_graph is None else self.update_graph.replay(total_loss, enqueue)

    def _move_all(self, step: int, norm: torch.Tensor, is_skipped: torch.Tensor | None) -> None:
        def clip(parameters: Sequence[nn.Parameter]) -> None:
            if self._clip_norm is not None:
                torch.nn.utils.clip_grads_with_norm_(parameters, self._clip_norm, norm)

        for names in slices(self._groups.values(), self.optimizer):
            self._sliced_step.step(names, self._generators_of(step), clip, is_skipped)

    def _unscale(self) -> None:
        """Undo the loss scaling in all gradients at once; for float16 gradients this is done in float32."""
        for master_weight in self._master_weights():
            if master_weight.rounding == "master":
                master_weight.take_gradient()
        with gradients_in_groups(self.optimizer, self._groups):
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
