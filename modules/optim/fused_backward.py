"""The optimizer's step inside the backward pass: a weight moves as soon as its gradient is there, which is let go.

So the gradients of all weights are never there together: at each moment there is that of one (the method is that of
Lv et al. 2023, "LOMO", with any optimizer). What it cannot do follows: no adding up over micro-batches, no clipping by
the norm of all gradients, no loss scaler, since each needs them together.

Nor can a step be left out as a whole. A loss that is no number is seen before; but where a gradient turns out to be
none in mid-pass, what came before it has moved already. From there on nothing moves any more, and the step counts as
one that was left out.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from modules.optim.param_groups import TrainGroup
from modules.optim.sliced_step import Generators, SlicedStep, gradient_norm, norm_of


@dataclass(eq=False)
class _Pass:
    """A backward pass: what rounding draws from, and the norms of the gradients that came, by unit and name.

    In a pass that only looks (`generators` is None) nothing moves, and the gradients of `kept` stay where they are.
    """

    generators: Generators | None
    kept: Collection[str] = ()
    norms: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    is_broken: bool = False


class FusedBackward:
    """Hooks on all parameters of some groups. They do nothing but inside a pass that was announced here.

    A frozen group loses its hooks (`param_groups.freeze`). No hook keeps this alive.
    """

    def __init__(self, groups: Sequence[TrainGroup], sliced_step: SlicedStep) -> None:
        self._groups = {g.name: g for g in groups}
        self._sliced_step = sliced_step
        self._pass: _Pass | None = None
        self._last = _Pass(None)
        self._lock = threading.Lock()
        me = weakref.ref(self)
        for group in groups:
            for name, parameter in group.parameters.items():
                group.hooks.append(parameter.register_post_accumulate_grad_hook(_hook(me, group.name, name)))

    def moves(self, generators: Generators) -> contextlib.AbstractContextManager[None]:
        """Return the context of a backward pass that moves the weights; `generators(name)` as for `SlicedStep.move`."""
        return self._during(_Pass(generators))

    def looks(self, kept: Collection[str]) -> contextlib.AbstractContextManager[None]:
        """Return the context of a backward pass that moves nothing: of the gradients only those of `kept` remain."""
        return self._during(_Pass(None, kept))

    def move_rest(self, generators: Generators) -> None:
        """Move what has a gradient that no backward pass brought, as if the last one had."""
        with self._during(replace(self._last, generators=generators)):
            for group in self._groups.values():
                for name, parameter in group.parameters.items():
                    if parameter.grad is not None:
                        self.arrived(group.name, name)

    def norms(self) -> dict[str, torch.Tensor]:
        """Return the norm of each unit's gradients in the last pass, of shape (), of those units that had any."""
        found = {unit: self._last.norms.get(unit, {}) for unit in self._groups}
        return {
            unit: norm_of([norms[n] for n in self._groups[unit].parameters if n in norms])
            for unit, norms in found.items()
            if norms
        }

    def forget(self) -> None:
        """Forget the last pass."""
        self._last = _Pass(None)

    def arrived(self, unit: str, name: str) -> None:
        """Deal with a gradient that is whole. Called by the hooks; outside of an announced pass it stays as it is.

        One after the other: autograd has a thread for each GPU, and gradients of weights that wait on the processor
        arrive in the one that began the pass, while the former goes on.
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
        # One wait for the device for each weight: what is no number must not get into the weights.
        now.is_broken = now.is_broken or not norm.isfinite().item()
        if not now.is_broken:
            self._sliced_step.move({unit: [name]}, now.generators)
        parameter.grad = None

    @contextlib.contextmanager
    def _during(self, one: _Pass) -> Iterator[None]:
        self._pass = self._last = one
        try:
            yield
        finally:
            self._pass = None


def _hook(owner: weakref.ref[FusedBackward], unit: str, name: str) -> Callable[[torch.Tensor], None]:
    def hook(_: torch.Tensor) -> None:
        fused = owner()
        if fused is not None:
            fused.arrived(unit, name)

    return hook
