"""Fused backward pass: each weight is updated as soon as its gradient is computed, and the gradient is freed.

So only one gradient exists at a time (the method of Lv et al. 2023, "LOMO", with any optimizer). The limits follow: no
gradient accumulation and no loss scaler, since each needs all gradients at once, and the norm of each weight's gradient
is clipped alone, as in OneTrainer and sd-scripts, not the norm of all of them.

Nor can a step be skipped as a whole. With a loss that is NaN or infinite nothing is updated. Where a gradient is not
finite, the weights before it on the same device are already updated; the rest of the pass updates nothing there, and
the step counts as skipped. The flags of this stay on the devices: the host waits for none of them, so that it can
enqueue the rest of the pass (SDXL's UNet has 1,680 tensors; at each wait the device would run dry). There are two
exceptions: the first update of a weight, when the optimizer creates its state, and an optimizer whose step waits at
each weight anyway.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from modules.optim.param_groups import TrainGroup
from modules.optim.updates.sliced_step import Generators, SkippedStep, SlicedStep, gradient_norm, norm_of


@dataclass(eq=False)
class _Pass:
    """A backward pass: the generators for stochastic rounding, and the gradient norms so far, by unit and name.

    Without `generators` the pass updates nothing, and only the gradients of `kept` are kept. `zeros` has a number for
    each device, of shape (): 0 as long as the loss and all gradients there were finite, then NaN. `skipped` is what the
    optimizer kept on the host before each update.
    """

    generators: Generators | None
    kept: Collection[str] = ()
    norms: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    zeros: dict[torch.device, torch.Tensor] = field(default_factory=dict)
    skipped: list[SkippedStep] = field(default_factory=list)


class FusedBackward:
    """Hooks on all parameters of some groups. They act only inside the contexts of `updating` and `gradients_only`.

    Freezing a group removes its hooks (`param_groups.freeze`). The hooks hold weak references to this object.
    """

    def __init__(
        self, groups: Sequence[TrainGroup], sliced_step: SlicedStep, *, clip_grad_norm: float | None = None
    ) -> None:
        """Add the hooks. A weight's gradient with a norm above `clip_grad_norm` is scaled down to it."""
        self._groups = {g.name: g for g in groups}
        self._clip_norm = clip_grad_norm
        self._sliced_step = sliced_step
        self._pass: _Pass | None = None
        self._last = _Pass(None)
        self._updated: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        me = weakref.ref(self)
        for group in groups:
            for name, parameter in group.parameters.items():
                group.hooks.append(parameter.register_post_accumulate_grad_hook(_hook(me, group.name, name)))

    def updating(self, generators: Generators, loss: torch.Tensor) -> contextlib.AbstractContextManager[None]:
        """Return the context of a backward pass from a loss, of shape (), that updates weights, if the loss is finite.

        `generators(name)` as for `SlicedStep.step`.
        """
        zero = loss.detach().float() * 0.0
        return self._during(_Pass(generators, zeros={zero.device: zero}))

    def gradients_only(self, kept: Collection[str]) -> contextlib.AbstractContextManager[None]:
        """Return the context of a backward pass that updates nothing and keeps only the gradients of `kept`."""
        return self._during(_Pass(None, kept))

    def update_rest(self, generators: Generators) -> None:
        """Update the parameters whose gradients did not come from a backward pass, as part of the last pass."""
        with self._during(replace(self._last, generators=generators)):
            for group in self._groups.values():
                for name, parameter in group.parameters.items():
                    if parameter.grad is not None:
                        self.receive_gradient(group.name, name)

    def norms(self) -> dict[str, torch.Tensor]:
        """Return the norm of each unit's gradients in the last pass, shape (); units without gradients are left out."""
        by_unit = {unit: self._last.norms.get(unit, {}) for unit in self._groups}
        return {
            unit: norm_of([norms[n] for n in self._groups[unit].parameters if n in norms])
            for unit, norms in by_unit.items()
            if norms
        }

    def restorer_of_skipped(self) -> Callable[[], None]:
        """Return a function that restores the optimizer's state on the host for the weights that the last pass skipped.

        Call it where the pass had a loss or gradient that was not finite. Waits for the devices.
        """
        return partial(_put_back, self._sliced_step, tuple(self._last.skipped))

    def forget(self) -> None:
        """Forget the last pass."""
        self._last = _Pass(None)

    def receive_gradient(self, unit: str, name: str) -> None:
        """Handle a complete gradient. Called by the hooks; outside of the two contexts the gradient is left alone.

        Takes a lock: autograd has a thread for each GPU, and gradients of weights offloaded to the CPU arrive in the
        thread that started the pass while the GPU's thread is still running.
        """
        with self._lock:
            self._add_gradient(unit, name)

    def _add_gradient(self, unit: str, name: str) -> None:
        now = self._pass
        if now is None:
            return
        parameter = self._groups[unit].parameters[name]
        assert parameter.grad is not None
        norm = now.norms.setdefault(unit, {})[name] = gradient_norm(parameter.grad)
        if now.generators is None:
            if name not in now.kept:
                parameter.grad = None
            return
        if self._clip_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(parameter, self._clip_norm, norm)
        is_skipped = self._is_broken(now, norm)
        # A weight without state gets it in its first update, and no copy could be put back.
        is_first = (unit, name) not in self._updated and not self._sliced_step.has_state(unit, name)
        if is_first or self._sliced_step.waits_per_weight:
            if not is_skipped.item():
                self._sliced_step.step({unit: [name]}, now.generators)
                self._updated.add((unit, name))
        elif skipped := self._sliced_step.step({unit: [name]}, now.generators, is_skipped=is_skipped):
            now.skipped.append(skipped)
        parameter.grad = None

    @staticmethod
    def _is_broken(now: _Pass, norm: torch.Tensor) -> torch.Tensor:
        """Return whether the loss or any gradient so far on a gradient's device was not finite, this one included.

        `isfinite` would be five kernels for each weight; zero times infinity is NaN, and so is all that is added to it.
        The zero that is multiplied is the tensor of the gradients before: Apple's GPUs leave out a product with the
        number 0 (an `alpha` of 0 in `torch.add`).
        """
        before = now.zeros.get(norm.device)
        if before is None:  # the first gradient on a device that the loss is not on
            before = next((zero.to(norm.device) for zero in now.zeros.values()), norm * 0.0)
        zero = now.zeros[norm.device] = torch.addcmul(before, norm, before)
        return zero.isnan()

    @contextlib.contextmanager
    def _during(self, one: _Pass) -> Iterator[None]:
        self._pass = self._last = one
        try:
            yield
        finally:
            self._pass = None


def _put_back(sliced_step: SlicedStep, steps: Sequence[SkippedStep]) -> None:
    for skipped in steps:
        sliced_step.put_back(skipped)


def _hook(owner: weakref.ref[FusedBackward], unit: str, name: str) -> Callable[[torch.Tensor], None]:
    def hook(_: torch.Tensor) -> None:
        fused = owner()
        if fused is not None:
            fused.receive_gradient(unit, name)

    return hook
