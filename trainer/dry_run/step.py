"""One training step that leaves nothing behind.

Forward and backward are the real ones, over the batch with the most pixels. What would change the run is done by a twin
of the stepper: optimizer, loss scaler, averages and rounding of its own, built as the run's are, over copies of a few
small parameters, which get the gradients of the real ones. To move the real weights and put them back would need
copies of weights, optimizer state and averages: 20 to 60 GB for a fine-tune of SDXL. The copies here are a few
thousand numbers, and the run's own state is not even touched. It rests on this: a backward pass moves no weight.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import nn

from modules.data.batch import Batch
from modules.optim.param_groups import (
    TrainGroup,
    moved_parameters,
    named_parameters,
    optimizer_state,
    restore_optimizer_state,
)
from modules.system.devices import Device
from modules.system.errors import DarkroomError
from trainer.methods.protocol import StepLoss, TrainingMethod
from trainer.step.callback import DryRunCheck, DryRunState
from trainer.step.loop import Training, add_micro_batch
from trainer.step.stepper import Stepper

_IF_TOO_LARGE = (
    "Use a smaller batch or resolution, switch on gradient checkpointing, or let activations wait on the other device."
)


class DryRunStep:
    """Tries every way in which a step of a run can go."""

    def __init__(self, training: Training, stepper_of: Callable[[Sequence[TrainGroup]], Stepper]) -> None:
        """`stepper_of(groups)` builds a stepper as the run's own one was built."""
        self._training = training
        self._groups = [g for g in training.groups if g.is_training]
        copies = small_parameter_copies(self._groups)
        stepper = stepper_of(copies)
        _take_over(stepper, copies, training.stepper, self._groups)
        self.small = DryRunState(training.counters, copies, stepper)
        self._reached: set[str] = set()

    def dry_run_checks(self) -> list[DryRunCheck]:
        """Return the trial of each of the method's branches."""
        ways = self._training.method.branches()
        last = list(ways)[-1]
        return [
            DryRunCheck(
                "a training step" if len(ways) == 1 else f"a training step ({name})",
                _IF_TOO_LARGE,
                partial(self._try, method, is_last=name == last),
            )
            for name, method in ways.items()
        ]

    @contextlib.contextmanager
    def room_for_state(self, device: Device) -> Iterator[None]:
        """On a GPU, keep as much memory taken as the optimizer will hold from the first step on.

        What comes later, as a sample, must fit beside it.
        """
        size = 0 if device.is_cpu else coming_state_bytes(self.small, self._groups, self._training.stepper, device)
        room = torch.empty(size, dtype=torch.uint8, device=device.torch)
        try:
            yield
        finally:
            del room

    def _try(self, method: TrainingMethod, *, is_last: bool) -> None:
        training, stepper = self._training, self.small.stepper
        try:
            step_loss = self._learn_from(self._batch(), method)
            self._refuse_numbers_that_are_none(step_loss)
            self._reached |= training.stepper.gradient_norms().keys()
            # A fused backward pass is not begun with a loss that is no number, and so reaches nothing.
            if is_last and not step_loss.zero_gradient_is_legal and step_loss.loss.isfinite().item():
                self._refuse_parts_out_of_reach()
            if self._hand_over_gradients():
                stepper.finish(training.counters.step)
            if stepper.ema is not None:
                stepper.ema.update(0)  # of step 0, as zero is a multiple of every period
        finally:
            stepper.discard()
            training.stepper.discard()

    def _batch(self) -> Batch:
        """Return the batch with the most pixels of the first epoch to come that shows any."""
        training = self._training
        for epoch in range(training.counters.epoch, training.epochs):
            batch = training.loader.heaviest_batch(epoch, step=training.counters.step)
            if batch is not None:
                return batch
        raise DarkroomError("No image is left to learn from.", advice="Look at the warnings: they name the files.")

    def _learn_from(self, batch: Batch, method: TrainingMethod) -> StepLoss:
        """Learn from a batch in one step, the first where the method makes several of it."""
        training = self._training
        with training.stepper.dry_run_step(named_parameters(self.small.groups).keys()):
            for taken in method.batches([batch], training.context):
                step_loss = add_micro_batch(taken, method, self.small.stepper, training.context, training.precision)
                if step_loss.is_last_micro_batch:
                    return step_loss
        raise ValueError("The method yields no batch that ends a step.")

    def _refuse_numbers_that_are_none(self, step_loss: StepLoss) -> None:
        """Raise where a fresh run begins with NaN. A resumed one has learned before: its loop passes such steps over.

        Gradients may overflow while a loss scaler looks for its scale.
        """
        if self._training.counters.step:
            return
        advice = "Choose another precision for the training, or float32 for the parts; the model may also be damaged."
        if not math.isfinite(step_loss.loss.item()):
            raise DarkroomError("The loss is not a number.", advice=advice)
        if self._training.stepper.scaler.is_enabled():
            return
        labels = {g.name: g.label or g.name for g in self._groups}
        for unit, norm in self._training.stepper.gradient_norms().items():
            if not norm.isfinite().item():
                raise DarkroomError(f"The gradient of {labels[unit]} is not a number.", advice=advice)

    def _refuse_parts_out_of_reach(self) -> None:
        """Raise where a part that is to learn got no gradient in any branch."""
        for group in self._groups:
            if group.name not in self._reached:
                raise DarkroomError(
                    f"{group.label or group.name} is to be trained, but no gradient reaches it.",
                    advice="Switch its training off, or choose other layers.",
                )

    def _hand_over_gradients(self) -> bool:
        """Give the copies the gradients of what they are copies of; return whether there is any."""
        real = named_parameters(self._groups)
        has_any = False
        for name, copy in named_parameters(self.small.groups).items():
            gradient = real[name].grad
            if gradient is not None and self.small.stepper.scaler.is_enabled():
                # A scaler skips the optimizer where a gradient overflows, as first ones may; it is to be tried, though.
                gradient = gradient.nan_to_num(0.0, 0.0, 0.0)
            copy.grad = gradient
            has_any |= gradient is not None
        return has_any


def small_parameter_copies(groups: Sequence[TrainGroup]) -> list[TrainGroup]:
    """Return, for each group, copies of its smallest parameter of every kind (dtype and number of dimensions).

    Optimizers treat vectors, matrices and kernels each in their own way; size makes no difference to them.
    """
    return [TrainGroup(g.name, _copies(g), g.learning_rate) for g in groups]


def coming_state_bytes(small: DryRunState, groups: Sequence[TrainGroup], stepper: Stepper, device: Device) -> int:
    """Return the bytes of optimizer state that the first step will make on a device, judged by that of the copies.

    Nothing where the state is there already. Weights that wait elsewhere have their state there.
    """
    made, _ = optimizer_state(stepper.optimizer, moved_parameters(groups))
    if made:
        return 0
    state, _ = optimizer_state(small.stepper.optimizer, moved_parameters(small.groups))
    total = 0.0
    for copied, group in zip(small.groups, groups, strict=True):
        share: dict[tuple[torch.dtype, int], float] = {}
        for name, parameter in copied.parameters.items():
            held = sum(t.nbytes for key, t in state.items() if key.rsplit("|", 1)[0] == name and t.dim() > 0)
            share[_kind(parameter)] = held / parameter.numel()
        here = (p for p in group.parameters.values() if p.device.type == device.type)
        total += sum(share[_kind(p)] * p.numel() for p in here)
    return int(total)


def _copies(group: TrainGroup) -> dict[str, nn.Parameter]:
    smallest: dict[tuple[torch.dtype, int], str] = {}
    for name, parameter in group.parameters.items():
        former = smallest.setdefault(_kind(parameter), name)
        if parameter.numel() < group.parameters[former].numel():
            smallest[_kind(parameter)] = name
    return {name: nn.Parameter(group.parameters[name].detach().clone()) for name in smallest.values()}


def _kind(parameter: nn.Parameter) -> tuple[torch.dtype, int]:
    return parameter.dtype, parameter.dim()


def _take_over(
    stepper: Stepper, copies: Sequence[TrainGroup], real: Stepper, real_groups: Sequence[TrainGroup]
) -> None:
    """Give the twin what a resumed run has already: copies of its optimizer state, and its loss scale."""
    moved, copied = moved_parameters(real_groups), moved_parameters(copies)
    tensors, values = optimizer_state(real.optimizer, {name: moved[name] for name in copied})
    restore_optimizer_state(stepper.optimizer, copied, {n: t.clone() for n, t in tensors.items()}, values)
    stepper.scaler.load_state_dict(real.scaler.state_dict())
