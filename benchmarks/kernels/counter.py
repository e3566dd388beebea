"""Counts the operations that are kernels of a GPU, the memory they read and write, and the casts among them.

An operation of ATen counts as one kernel, as on CUDA; views and allocations do not count. Operations on lists of
tensors count as one kernel for each `_LIST` tensors. Matrix products, convolutions and attention are counted, but not
their memory traffic: their mathematics takes the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_ATEN = torch.ops.aten
_PRODUCTS = frozenset(
    {
        "mm", "addmm", "addmm_", "bmm", "baddbmm", "convolution", "convolution_backward", "_int_mm", "_scaled_mm",
        "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward",
    }
)  # fmt: skip
# These start no kernel: memory is only reserved, or its description changes.
_NO_KERNELS = frozenset(
    {
        "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "alias", "lift_fresh",
        "_local_scalar_dense", "is_pinned", "_pin_memory", "record_stream", "set_", "resize_", "is_same_size",
    }
)  # fmt: skip
_LIST = 64  # tensors, about: one kernel of torch's foreach functions computes so many
_READ_VALUE = 1.0


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of a training step. `traffic_bytes` are read and written outside of matrix products.

    `by_operation` has the kernels and the traffic of each operation, the most frequent first.
    """

    kernels: int
    products: int
    casts: int
    traffic_bytes: int
    by_operation: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the counts on one line."""
        return (
            f"{self.kernels:,} kernels ({self.products:,} of them matrix products, {self.casts:,} casts), "
            f"{self.traffic_bytes / 1e9:.1f} GB outside of matrix products"
        )


class KernelCounter(TorchDispatchMode):
    """Counts the operations on tensors of a GPU in this context. The tensors have no values; each one read is 1."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kernels: Counter[str] = Counter()
        self._traffic: Counter[str] = Counter()
        self._casts = 0

    def clear(self) -> None:
        """Reset all counts."""
        self._kernels.clear()
        self._traffic.clear()
        self._casts = 0

    def counts(self) -> Counts:
        """Return the counts so far."""
        most = {name: (number, self._traffic[name]) for name, number in self._kernels.most_common()}
        return Counts(
            kernels=self._kernels.total(),
            products=sum(number for name, number in self._kernels.items() if name in _PRODUCTS),
            casts=self._casts,
            traffic_bytes=self._traffic.total(),
            by_operation=most,
        )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _ATEN._local_scalar_dense.default:
            return _READ_VALUE if args[0].is_floating_point() else int(_READ_VALUE)
        given = list(_on_gpu((args, kwargs)))
        versions = [t._version for t in given]
        result = func(*args, **(kwargs or {}))
        made = list(_on_gpu(result))
        if func.overloadpacket.__name__ not in _NO_KERNELS and not func.is_view and (given or made):
            changed = [t for t, before in zip(given, versions, strict=True) if t._version != before]
            if not (made or changed) and args and isinstance(args[0], list | tuple):
                changed = list(_on_gpu(args[0]))  # an operation on a list, in place
            read = list(_on_gpu((args, {name: value for name, value in (kwargs or {}).items() if name != "out"})))
            self._note(func.overloadpacket.__name__, func, read, made, changed)
        return result

    def _note(
        self,
        name: str,
        func: Any,
        given: list[torch.Tensor],
        made: list[torch.Tensor],
        changed: list[torch.Tensor],
    ) -> None:
        storages = {_storage(t) for t in given}
        fresh = [t for t in made if _storage(t) not in storages]
        if not fresh and not changed and not func._schema.is_mutable:
            return  # such as a reshape that is a view, or a cast to the same dtype
        is_list = name.startswith(("_foreach_", "_fused_", "_amp_foreach"))
        written = fresh or changed or made
        self._kernels[name] += -(-max(len(written), 1) // _LIST) if is_list else 1
        if name in _PRODUCTS:
            return
        read = {id(t): t for t in given if not (name in ("copy_", "fill_", "zero_") and t is given[0])}
        self._traffic[name] += sum(map(_num_bytes, (*read.values(), *written)))
        self._casts += _is_cast(name, given, written)


def _is_cast(name: str, given: list[torch.Tensor], written: list[torch.Tensor]) -> bool:
    if name == "copy_":
        return len(given) > 1 and given[0].dtype != given[1].dtype
    return name == "_to_copy" and bool(given) and given[0].dtype != written[0].dtype


def _on_gpu(values: Any) -> Iterator[torch.Tensor]:
    return (v for v in tree_leaves(values) if isinstance(v, torch.Tensor) and v.device.type == "cuda")


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _num_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's own elements: a broadcast one is read once."""
    numel = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        numel *= size if stride else 1
    return numel * tensor.itemsize
