"""Tensors of a GPU without one, and without values: torch's fake tensors on the device "cuda".

Autograd and autocast then behave as on a GPU. Torch's build for CPUs looks up GPUs in its own C++ objects first, so
these are replaced as long as the context is open (`pretended_accelerator.py`, on Linux only).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from benchmarks.kernels.pretended_accelerator import pretended_accelerator
from modules.system.devices import Device
from modules.system.errors import DarkroomError

GPU = Device("cuda:0")


@contextlib.contextmanager
def fake_gpu() -> Iterator[None]:
    """Make every tensor in this context one without values, and pretend that there is a GPU if torch has none.

    Raises DarkroomError for a build of torch in which that is not possible.
    """
    with contextlib.ExitStack() as stack:
        if not torch.cuda.is_available():
            if sys.platform != "linux" or torch.version.cuda is not None or torch.version.hip is not None:
                raise DarkroomError(
                    "Kernels cannot be counted with this build of PyTorch without its GPU.",
                    advice="Use PyTorch's build for CPUs on Linux, or a machine with an NVIDIA GPU.",
                )
            stack.enter_context(pretended_accelerator())
            for name, value in _ANSWERS.items():
                stack.enter_context(mock.patch.object(torch.cuda, name, value))
            stack.enter_context(mock.patch.object(torch.Tensor, "pin_memory", lambda tensor: tensor))
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            stack.enter_context(_whole_operations())
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(mock.patch.object(torch.utils, "swap_tensors", _take_place))
        for module in ("torch.optim.optimizer", "torch.utils._foreach_utils"):  # two lists
            types = sys.modules[module]._foreach_supported_types
            types.append(FakeTensor)
            stack.callback(types.remove, FakeTensor)
        # Torch on a GPU chooses the fused kernel for tensors with values.
        stack.enter_context(mock.patch.object(torch.nn.functional, "scaled_dot_product_attention", _attention_output))
        yield


@contextlib.contextmanager
def _whole_operations() -> Iterator[None]:
    """Let autograd call operations whole that only a GPU has kernels for: torch's build for CPUs would split them."""
    with torch.library._scoped_library("aten", "IMPL") as library:
        for name in _WITH_OWN_KERNEL:
            library.impl(name, _never_called, "CUDA")
        yield


def _never_called(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("tensors without values never reach a kernel")


def _take_place(weight: Any, moved: Any) -> None:
    """Give a weight the shape, dtype and device of another one: torch's own swap fails for fake tensors."""
    weight.data = moved.data
    weight.fake_device = moved.fake_device


def _attention_output(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    result: torch.Tensor = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value)[0]
    return result


def _state(*_: Any, **__: Any) -> torch.Tensor:
    return torch.empty(16, dtype=torch.uint8)


# Operations with a kernel of their own on CUDA, which torch can also compute by several smaller operations.
_WITH_OWN_KERNEL = ("silu_backward", "mish_backward", "_fused_rms_norm")
_ANSWERS: dict[str, Any] = {
    "_lazy_init": lambda: None,
    "_initialized": True,
    "is_available": lambda: True,
    "is_initialized": lambda: True,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "_exchange_device": lambda index: 0,
    "_maybe_exchange_device": lambda index: 0,
    "set_device": lambda device: None,
    "is_bf16_supported": lambda *_, **__: True,
    "get_device_capability": lambda device=None: (9, 0),
    "manual_seed": lambda seed: None,
    "manual_seed_all": lambda seed: None,
    "Stream": lambda device=None: mock.Mock(),  # nothing is computed, so nothing waits
    "current_stream": lambda device=None: mock.Mock(),
    "get_rng_state": _state,
    "set_rng_state": lambda state, device="cuda": None,
}
