"""The dry run: before the first step everything that the run will do is tried once, so that errors show early.

This file defines the order, how a failure is reported, and the check of the training step; the others are in the
callbacks' `dry_run_checks`. Afterwards every bit of the run's state is unchanged: the checks use small copies,
evaluation mode, or files that are discarded during the write.

Forward and backward pass of the training step are the real ones, over the batch with the most pixels. Everything that
would change the run is done by a second stepper with its own optimizer, gradient scaler, EMA and rounding, built like
the run's, over copies of a few small parameters, which get the gradients of the real ones. Updating the real weights
and restoring them would need copies of weights, optimizer state and EMA: 20 to 60 GB for a fine-tune of SDXL. The
copies here are a few thousand numbers, and the run's own state is not touched. This works because a backward pass does
not change weights.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import nn

from modules.data.batch import Batch
from modules.memory.placement import free_cached_memory
from modules.optim.param_groups import (
    TrainGroup,
    named_parameters,
    optimizer_parameters,
    optimizer_state,
    restore_optimizer_state,
)
from modules.system.devices import Device, seeded_global_rng
from modules.system.errors import DarkroomError
from modules.system.seeds import derive_seed
from trainer.commands import StopRequested
from trainer.events import PhaseChanged
from trainer.methods.protocol import StepLoss, TrainingMethod
from trainer.ranks import LostProcessError
from trainer.step.callback import DryRunCheck, DryRunState
from trainer.step.failures import BranchError, explain, is_out_of_memory
from trainer.step.freezing import training_parts
from trainer.step.loop import Training, add_micro_batch
from trainer.step.stepper import Stepper


def dry_run(
    training: Training, stepper_of: Callable[[Sequence[TrainGroup]], Stepper], *, check: Callable[[], None]
) -> None:
    """Try every enabled branch of a run once, without lasting effects.

    `stepper_of(groups)` builds a stepper like the run's own; `check()` is called before each branch and
    raises StopRequested once the run is to stop. Raises BranchError, which names the branch and its reason.
    """
    if not training_parts(training.groups) or training.counters.epoch >= training.epochs:
        return  # the run ends at once
    context = training.context
    try:
        with seeded_global_rng(derive_seed(context.run_seed, "dry run"), context.device):
            dry_run_step = DryRunStep(training, stepper_of)
            for dry_run_check in dry_run_step.dry_run_checks():
                _carry_out(training, dry_run_check, check)
            with dry_run_step.room_for_state(context.device):
                for callback in training.callbacks:
                    for dry_run_check in callback.dry_run_checks(dry_run_step.state):
                        _carry_out(training, dry_run_check, check)
    finally:
        free_cached_memory(context.device)


def _carry_out(training: Training, dry_run_check: DryRunCheck, check: Callable[[], None]) -> None:
    check()
    training.log.emit(PhaseChanged("dry_run", dry_run_check.what))
    try:
        dry_run_check.try_once()
    except (StopRequested, LostProcessError):
        raise
    except Exception as error:
        raise _failure(dry_run_check, error) from error


def _failure(dry_run_check: DryRunCheck, error: Exception) -> BranchError:
    reason, advice = explain(error)
    if is_out_of_memory(error):
        reason, advice = "There was not enough memory.", dry_run_check.if_too_large
    return BranchError(f"The dry run before the training failed at {dry_run_check.what}. {reason}", advice=advice)


_IF_TOO_LARGE = "Use a smaller batch or resolution, or switch on gradient checkpointing or activation offloading."


class DryRunStep:
    """Tries every branch of a training step."""

    def __init__(self, training: Training, stepper_of: Callable[[Sequence[TrainGroup]], Stepper]) -> None:
        """`stepper_of(groups)` builds a stepper like the run's own."""
        self._training = training
        self._groups = [g for g in training.groups if g.is_training]
        copies = small_parameter_copies(self._groups, training.stepper.optimizer)
        stepper = stepper_of(copies)
        _copy_state(stepper, copies, training.stepper, self._groups)
        self.state = DryRunState(training.counters, copies, stepper)
        self._reached: set[str] = set()

    def dry_run_checks(self) -> list[DryRunCheck]:
        """Return a check for each of the method's branches."""
        branches = self._training.method.branches()
        last = list(branches)[-1]
        return [
            DryRunCheck(
                "a training step" if len(branches) == 1 else f"a training step ({name})",
                _IF_TOO_LARGE,
                partial(self._try, method, is_last=name == last),
            )
            for name, method in branches.items()
        ]

    @contextlib.contextmanager
    def room_for_state(self, device: Device) -> Iterator[None]:
        """On a GPU, reserve as much memory as the optimizer state will need from the first step on.

        Later checks, such as a sample, must fit next to it.
        """
        size = 0 if device.is_cpu else expected_state_bytes(self.state, self._groups, self._training.stepper, device)
        reserved = torch.empty(size, dtype=torch.uint8, device=device.torch)
        try:
            yield
        finally:
            del reserved

    def _try(self, method: TrainingMethod, *, is_last: bool) -> None:
        training, stepper = self._training, self.state.stepper
        try:
            step_loss = self._train_on(self._batch(), method)
            self._require_finite(step_loss)
            self._reached |= training.stepper.gradient_norms().keys()
            # A fused backward pass does not run with a loss that is not finite, so no part gets a gradient.
            if is_last and not step_loss.zero_gradient_is_legal and step_loss.loss.isfinite().item():
                self._require_gradients()
            if self._copy_gradients():
                stepper.finish(training.counters.step)
            if stepper.ema is not None:
                stepper.ema.update(0)  # step 0, because zero is a multiple of every update interval
        finally:
            stepper.discard()
            training.stepper.discard()

    def _batch(self) -> Batch:
        """Return the batch with the most pixels of the next epoch that has images."""
        training = self._training
        for epoch in range(training.counters.epoch, training.epochs):
            batch = training.loader.heaviest_batch(epoch, step=training.counters.step)
            if batch is not None:
                return batch
        raise DarkroomError(
            "No image is left to train on.", advice="See the warnings: they name the files that were left out."
        )

    def _train_on(self, batch: Batch, method: TrainingMethod) -> StepLoss:
        """Run one step on a batch; the first one if the method makes several steps of it."""
        training = self._training
        with training.stepper.dry_run_step(named_parameters(self.state.groups).keys()):
            for step_batch in method.batches([batch], training.context):
                step_loss = add_micro_batch(
                    step_batch, method, self.state.stepper, training.context, training.precision
                )
                if step_loss.is_last_micro_batch:
                    return step_loss
        raise ValueError("The method yields no batch that ends a step.")

    def _require_finite(self, step_loss: StepLoss) -> None:
        """Raise DarkroomError if a new run starts with NaN or infinite values; a resumed run skips such steps.

        Gradients may overflow while a gradient scaler searches for its scale.
        """
        if self._training.counters.step:
            return
        advice = "Choose another precision, or float32 as the weight dtype. The model file may also be damaged."
        if not math.isfinite(step_loss.loss.item()):
            raise DarkroomError("The loss is NaN or infinite.", advice=advice)
        if self._training.stepper.scaler.is_enabled():
            return
        labels = {g.name: g.label or g.name for g in self._groups}
        for unit, norm in self._training.stepper.gradient_norms().items():
            if not norm.isfinite().item():
                raise DarkroomError(f"The gradient of {labels[unit]} is NaN or infinite.", advice=advice)

    def _require_gradients(self) -> None:
        """Raise DarkroomError if a trained part got no gradient in any branch; embeddings need not be in the batch."""
        for group in self._groups:
            if group.name not in self._reached and group.is_in_every_batch:
                raise DarkroomError(
                    f"{group.label or group.name} is set to be trained, but no gradient reaches it.",
                    advice="Switch off its training, or choose other layers.",
                )

    def _copy_gradients(self) -> bool:
        """Copy the gradients of the real parameters to their copies; return whether there is any."""
        real = named_parameters(self._groups)
        has_any = False
        for name, copy in named_parameters(self.state.groups).items():
            gradient = real[name].grad
            if gradient is not None and self.state.stepper.scaler.is_enabled():
                # A scaler skips the optimizer if a gradient overflows, as the first ones may; here it must run.
                gradient = gradient.nan_to_num(0.0, 0.0, 0.0)
            copy.grad = gradient
            has_any |= gradient is not None
        return has_any


_Kind = tuple[torch.dtype, int, int]


def small_parameter_copies(groups: Sequence[TrainGroup], optimizer: torch.optim.Optimizer) -> list[TrainGroup]:
    """Return, for each group, copies of its smallest parameter of every kind.

    The kind is the dtype, the number of dimensions and the optimizer group: optimizers may treat vectors, matrices and
    kernels differently, and groups have options of their own (Muon). The size makes no difference.
    """
    kinds = _kinds(groups, optimizer)
    return [
        TrainGroup(
            g.name,
            _copies(g, kinds),
            g.learning_rate,
            part=g.part,
            rate_ratios=g.rate_ratios,
            is_in_every_batch=g.is_in_every_batch,
        )
        for g in groups
    ]


def expected_state_bytes(dry: DryRunState, groups: Sequence[TrainGroup], stepper: Stepper, device: Device) -> int:
    """Return the bytes of optimizer state that the first step will create on a device, extrapolated from the copies.

    0 if the state already exists. Offloaded weights have their state on the offload device.
    """
    existing, _ = optimizer_state(stepper.optimizer, optimizer_parameters(groups))
    if existing:
        return 0
    state, _ = optimizer_state(dry.stepper.optimizer, optimizer_parameters(dry.groups))
    kinds = _kinds(groups, stepper.optimizer)
    total = 0.0
    for copied, group in zip(dry.groups, groups, strict=True):
        share: dict[_Kind, float] = {}
        for name, parameter in copied.parameters.items():
            held = sum(t.nbytes for key, t in state.items() if key.rsplit("|", 1)[0] == name and t.dim() > 0)
            share[kinds[name]] = held / max(1, parameter.numel())
        here = {n: p for n, p in group.parameters.items() if p.device.type == device.type}
        total += sum(share[kinds[n]] * p.numel() for n, p in here.items())
    return int(total)


def _copies(group: TrainGroup, kinds: Mapping[str, _Kind]) -> dict[str, nn.Parameter]:
    smallest: dict[_Kind, str] = {}
    # Of a small weight that several processes shard, some of them may have no rows.
    sizes = {name: parameter.numel() or math.inf for name, parameter in group.parameters.items()}
    for name in group.parameters:
        former = smallest.setdefault(kinds[name], name)
        if sizes[name] < sizes[former]:
            smallest[kinds[name]] = name
    return {name: nn.Parameter(group.parameters[name].detach().clone()) for name in smallest.values()}


def _kinds(groups: Sequence[TrainGroup], optimizer: torch.optim.Optimizer) -> dict[str, _Kind]:
    """Return the kind of each parameter, by full name."""
    numbers = {id(p): g["number"] for g in optimizer.param_groups for p in g["params"]}
    updated = optimizer_parameters(groups)
    return {n: (p.dtype, p.dim(), numbers.get(id(updated[n]), 0)) for n, p in named_parameters(groups).items()}


def _copy_state(
    stepper: Stepper, copies: Sequence[TrainGroup], real: Stepper, real_groups: Sequence[TrainGroup]
) -> None:
    """Copy the optimizer state and the loss scale of a resumed run to the second stepper."""
    updated, copied = optimizer_parameters(real_groups), optimizer_parameters(copies)
    tensors, values = optimizer_state(real.optimizer, {name: updated[name] for name in copied})
    restore_optimizer_state(stepper.optimizer, copies, {n: t.clone() for n, t in tensors.items()}, values)
    stepper.scaler.load_state_dict(real.scaler.state_dict())
