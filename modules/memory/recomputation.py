"""Computing a forward pass again in the backward pass, instead of saving its activations: non-reentrant checkpointing.

The method is that of `torch.utils.checkpoint` with `use_reentrant=False` (Chen et al. 2016 for the idea): hooks replace
each tensor that autograd saves by its number; the first number that the backward pass needs computes all of them again.
Torch's does more for each tensor (weak references, handles, switching its compiler off), which takes more than twice as
long and about a tenth of a step of a small model.

As in torch's, the recomputation stops at the last tensor that is needed, uses the random numbers and the autocast of
the first pass, releases each tensor once it was used, is repeated for another backward pass, and may be nested.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import get_device_states, set_device_states

Forward = Callable[..., Any]
Context = AbstractContextManager[object]
Contexts = Callable[[], tuple[Context, Context]]
"""Returns the contexts of a pass and of its recomputation, such as those of torch's selective checkpointing."""


def recomputed(
    forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any], *, contexts: Contexts | None = None
) -> Any:
    """Return the result of a forward pass, whose activations are computed again when the backward pass needs them.

    Saved are the tensors among the positional arguments, in the way that surrounding hooks save tensors; the others are
    kept. Raises RuntimeError in the backward pass if the recomputation saves other tensors than the first pass.
    """
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    first, again = (nullcontext(), nullcontext()) if contexts is None else contexts()
    frame = _Frame(forward, args, kwargs, again)
    with saved_tensors_hooks(frame.pack, frame.unpack), first:
        return forward(*args, **kwargs)


class _StopError(Exception):
    """Every tensor that a pass needs has been computed again."""

    def __init__(self, frame: _Frame) -> None:
        self.frame = frame


class _SavedInputs(torch.autograd.Function):
    """A node that does nothing but save tensors, so that hooks around the checkpointed pass see them."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> torch.Tensor:
        """Save the tensors; the empty result is only there for its node."""
        ctx.save_for_backward(*tensors)
        return torch.empty(0)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Never called."""
        raise AssertionError("nothing depends on it")


class _Frame:
    """One checkpointed pass: what it needs to be repeated, and the tensors of its repetition that are not used yet."""

    def __init__(self, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any], again: Context) -> None:
        self._forward = forward
        self._again = again
        self._kwargs = kwargs
        self._places = [i for i, value in enumerate(args) if isinstance(value, torch.Tensor)]
        self._others = [None if isinstance(value, torch.Tensor) else value for value in args]
        # Without an input that requires a gradient there would be no node.
        save: Any = _SavedInputs.apply
        self._inputs = save(torch.empty(0, requires_grad=True), *(args[i] for i in self._places)).grad_fn
        self._kinds: list[tuple[torch.Size, torch.dtype]] = []
        self._found: dict[int, torch.Tensor] = {}
        self._state = _State(args, kwargs)

    def pack(self, tensor: torch.Tensor) -> int:
        """Return the number of a tensor that the first pass saves."""
        self._kinds.append((tensor.shape, tensor.dtype))
        return len(self._kinds) - 1

    def unpack(self, number: int) -> torch.Tensor:
        """Return a tensor by its number, computed again if need be."""
        if number not in self._found:
            self._recompute()
        return self._found.pop(number)

    def _recompute(self) -> None:
        found, kinds, last = self._found, self._kinds, len(self._kinds) - 1
        found.clear()
        args = list(self._others)
        for place, tensor in zip(self._places, self._inputs.saved_tensors[1:], strict=True):
            args[place] = tensor

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            number = len(found)
            if (tensor.shape, tensor.dtype) != kinds[number]:
                raise RuntimeError(_differs(f"{kinds[number]} then {(tensor.shape, tensor.dtype)}"))
            # Detached: it would refer to a graph that refers to it.
            found[number] = own = tensor.detach() if tensor.requires_grad else tensor
            if number == last:
                raise _StopError(self)  # made here: in a variable it would be in a reference cycle with this call
            return own

        try:
            hooks = saved_tensors_hooks(pack, lambda tensor: tensor)
            with hooks, torch.enable_grad(), self._state.restored(), self._again:
                self._forward(*args, **self._kwargs)
        except _StopError as stop:
            if stop.frame is not self:  # that of a recomputation around this one
                raise
        if len(found) <= last:
            raise RuntimeError(_differs(f"{len(kinds)} tensors then {len(found)}"))


class _State:
    """What a pass depends on beside its arguments: the state of the random generators, and autocast."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # A text encoder gets keyword arguments only.
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        self._generator = torch.default_generator.get_state()
        on_accelerator = [tensor for tensor in tensors if tensor.device.type not in ("cpu", "meta")]
        self._type = on_accelerator[0].device.type if on_accelerator else "cpu"
        self._devices, self._states = get_device_states(*on_accelerator) if on_accelerator else ([], [])
        self._autocast = {kind: _autocast_of(kind) for kind in dict.fromkeys((self._type, "cpu"))}

    def restored(self) -> Context:
        """Return a context with the state as it was; the present one is restored afterwards."""
        stack = ExitStack()
        former = torch.default_generator.get_state()
        stack.callback(torch.default_generator.set_state, former)
        torch.default_generator.set_state(self._generator)
        if self._devices:
            stack.enter_context(torch.random.fork_rng(self._devices, device_type=self._type))
            set_device_states(self._devices, self._states, device_type=self._type)
        for kind, then in self._autocast.items():
            if then["enabled"] or _autocast_of(kind)["enabled"]:
                stack.enter_context(torch.autocast(kind, **then))
        return stack


def _autocast_of(kind: str) -> dict[str, Any]:
    """Return the arguments of the present autocast of a type of device; without support it is off."""
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return {"enabled": False}
    return {
        "enabled": True,
        "dtype": torch.get_autocast_dtype(kind),
        "cache_enabled": torch.is_autocast_cache_enabled(),
    }


def _differs(what: str) -> str:
    return f"The recomputation of a checkpointed pass differs from the first: {what}."
