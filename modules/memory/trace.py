"""Records a forward pass of a real module: it runs on tensors without data, and each function is noted.

The pass runs under an imitation of CUDA's autocast (`autocast.py`). A value ends when Python releases it. To find what
autograd saves, each distinct call is repeated with a gradient for one operand at a time. Passes at several sizes make
one recording for all sizes (`pass_events.py`).

Attention counts as a fused kernel without the matrix of tokens by tokens, as on GPUs. An RMS norm of diffusers is one
operation, whose memory the replay computes (`rms_norm_of_weights`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function
from torch.utils._pytree import tree_leaves, tree_map

from modules.memory.autocast import ATTENTION, NORM, WEIGHTS, as_autocast, is_cast, kind_of, length_of
from modules.memory.pass_events import BlockEnd, BlockStart, FunctionCall, PassEvents, ValueRelease, recording_of
from modules.memory.recording import PassSize, Recording

# Some versions of transformers have the layers of CLIP inside another module.
_INNER_MODULE = "text_model."
_SAVED_BYTES = 4  # of each logarithm of a sum that fused attention saves, and of each scale that a norm saves


@dataclass(frozen=True, slots=True, eq=False)
class TracedPass:
    """A pass to record: a function, and its keyword arguments for a size.

    `is_per_image`: it goes through its images one by one, so it is traced with one, and a batch needs a multiple of its
    memory. The inputs whose names are in `text` come from the text encoders. `inputs` is called with the meta device
    and the dtype that stands for the weights' dtype as defaults.
    """

    run: Callable[..., Any]
    inputs: Callable[[PassSize], Mapping[str, Any]]
    text: frozenset[str] = frozenset()
    is_per_image: bool = False


def trace(
    module: nn.Module,
    traced: TracedPass,
    *,
    sizes: Sequence[PassSize],
    block_types: tuple[type[nn.Module], ...] = (),
    transformer_types: tuple[type[nn.Module], ...] = (),
) -> Recording:
    """Return the recording of a pass through a module whose weights are on the meta device, from passes of some sizes.

    Raises ValueError if the operations depend on the size, or a tensor's size is not a sum of the monomials.
    """
    nn.Module.to(module.train(), WEIGHTS)  # the `to` of diffusers' classes warns of weights that it keeps in float32
    module.requires_grad_(False)
    blocks = {m: _short(name) for name, m in module.named_modules() if isinstance(m, block_types)}
    if traced.is_per_image:
        sizes = [replace(size, batch=1) for size in sizes]
    with torch.no_grad():  # so that tensors which the module makes once and keeps are not recorded
        traced.run(**_inputs(traced, sizes[0]))
    return recording_of(
        [_run(module, traced, size, blocks) for size in sizes],
        sizes,
        is_per_image=traced.is_per_image,
        text=traced.text,
        blocks={name: isinstance(m, transformer_types) for m, name in blocks.items()},
        weights={_short(name): tuple(weight.shape) for name, weight in module.named_parameters()},
    )


def _short(name: str) -> str:
    return name.removeprefix(_INNER_MODULE)


def _run(module: nn.Module, traced: TracedPass, size: PassSize, blocks: Mapping[nn.Module, str]) -> PassEvents:
    events = PassEvents()
    recorder = _Recorder(module, events)
    inputs = _inputs(traced, size)
    for name, tensor in _named_tensors(inputs):
        recorder.add_input(name, tensor)
    with torch.no_grad(), _noting_blocks(blocks, events), recorder:
        result = traced.run(**inputs)
    recorder.is_over = True
    del result
    return events


def _inputs(traced: TracedPass, size: PassSize) -> Mapping[str, Any]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(WEIGHTS)
    try:
        with torch.device("meta"):
            return traced.inputs(size)
    finally:
        torch.set_default_dtype(before)


def _named_tensors(inputs: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in inputs.items():
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, Mapping):
            yield from _named_tensors(value)
        elif isinstance(value, Sequence) and not isinstance(value, str):
            yield from ((name, tensor) for tensor in value if isinstance(tensor, torch.Tensor))


@contextmanager
def _noting_blocks(blocks: Mapping[nn.Module, str], events: PassEvents) -> Iterator[None]:
    handles = []
    for block, name in blocks.items():
        enter, leave = BlockStart(name), BlockEnd(name)
        handles.append(block.register_forward_pre_hook(lambda *_, enter=enter: events.events.append(enter)))
        handles.append(block.register_forward_hook(lambda *_, leave=leave: events.events.append(leave)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """A function with its arguments as they were given, and as autocast casts them."""

    func: Callable[..., Any]
    name: str
    given: tuple[Any, Any]
    cast: tuple[Any, Any]

    def tensors(self) -> list[torch.Tensor]:
        """Return the tensors among the arguments as they were given."""
        return _tensors(self.given)


@dataclass(frozen=True, slots=True)
class _SavedValues:
    """The values that a call saves, by operand and weight, and `extras` of the backward pass (size, item bytes)."""

    of_operands: tuple[tuple[int, ...], ...]
    extras: tuple[tuple[int, int], ...]


def rms_norm_of_weights(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Stand in for an RMS norm of x, with a result in the dtype of its weights: one operation of a recording."""
    if has_torch_function((x, weight)):
        result: torch.Tensor = handle_torch_function(rms_norm_of_weights, (x, weight), x, weight)
        return result
    return x.new_empty(x.shape, dtype=weight.dtype)


class _Recorder(TorchFunctionMode):
    """Notes each function that is called, under an imitation of autocast."""

    def __init__(self, module: nn.Module, events: PassEvents) -> None:
        super().__init__()
        self._events = events
        self._weights = {p.untyped_storage()._cdata: _short(name) for name, p in module.named_parameters()}
        self._values: dict[int, int] = {}
        self._num_values = 0
        self._saved: dict[str, _SavedValues] = {}
        self.is_over = False

    def add_input(self, name: str, tensor: torch.Tensor) -> None:
        """Note an input of the pass."""
        self._new_value(tensor.untyped_storage())
        item_bytes = 0 if tensor.dtype == WEIGHTS else tensor.itemsize
        self._events.inputs.append((self._events.add_number(tensor.numel()), item_bytes))
        self._events.input_names.append(name)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, given = getattr(func, "__name__", ""), (args, kwargs or {})
        call = _Call(func, name, given, as_autocast(name, given))
        tensors = call.tensors()
        versions = [t._version for t in tensors]
        result = _attention_result(call) if name == ATTENTION else func(*call.cast[0], **call.cast[1])
        changed = [t for t, version in zip(tensors, versions, strict=True) if t._version != version]
        self._note(call, changed, _tensors(result))
        return result

    def _note(self, call: _Call, changed: list[torch.Tensor], made: list[torch.Tensor]) -> None:
        keys = list(dict.fromkeys(_key(t) for t in call.tensors()))
        fresh = {_key(t): t for t in made}
        fresh = {k: t for k, t in fresh.items() if k not in keys and k not in self._weights and k not in self._values}
        if not fresh and not changed:
            return
        operands, weights = [k for k in keys if k in self._values], [k for k in keys if k in self._weights]
        order = {key: index for index, key in enumerate((*operands, *weights))}
        saved = self._saved_by(call, order, len(fresh))
        has_floats = any(map(_is_float, call.tensors()))
        values = tuple(self._values[k] for k in operands)
        results = tuple(
            (self._new_value(s), self._events.add_number(_num_values(s, t)), _item_bytes(t, has_floats))
            for t in fresh.values()
            for s in [t.untyped_storage()]
        )
        names = tuple(self._weights[k] for k in weights)
        self._events.events.append(
            FunctionCall(
                kind_of(call.name, made, names),
                values,
                names,
                results,
                changes=next((order[_key(t)] for t in changed if _key(t) in self._values), -1),
                length=length_of(call.name, call.tensors()),
                saves=saved.of_operands,
                extras=tuple((self._events.add_number(number), item_bytes) for number, item_bytes in saved.extras),
                parts=tuple(map(self._events.add_number, _elements_of(call, operands))) if is_cast(call.name) else (),
            )
        )

    def _new_value(self, storage: torch.UntypedStorage) -> int:
        key, value = storage._cdata, self._num_values
        self._num_values += 1
        self._values[key] = value
        weakref.finalize(storage, self._free, key).atexit = False
        return value

    def _free(self, key: int) -> None:
        if not self.is_over:
            self._events.events.append(ValueRelease(self._values.pop(key)))

    def _saved_by(self, call: _Call, order: Mapping[int, int], num_results: int) -> _SavedValues:
        if call.name == ATTENTION:
            query = call.tensors()[0]
            logarithms = (query.numel() // query.shape[-1], _SAVED_BYTES)
            everything = tuple(range(len(order) + num_results + 1))
            return _SavedValues((everything,) * len(order), (logarithms,))
        if call.name == NORM:
            x = call.tensors()[0]
            scales = (x.numel() // x.shape[-1], _SAVED_BYTES)
            return _SavedValues(((0, len(order) + num_results),) * len(order), (scales,))
        signature = f"{call.func}{tree_map(lambda leaf: _describe_leaf(leaf, order), call.cast)}"
        if signature not in self._saved:
            self._saved[signature] = _saved_by_autograd(call, order, num_results)
        return self._saved[signature]


def _describe_leaf(leaf: Any, order: Mapping[int, int]) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return (tuple(leaf.shape), leaf.stride(), str(leaf.dtype), order.get(_key(leaf)))


def _saved_by_autograd(call: _Call, order: Mapping[int, int], num_results: int) -> _SavedValues:
    """Return what a call saves: it is repeated with a gradient for one tensor at a time."""
    saves: list[set[int]] = [set() for _ in order]
    extras: dict[tuple[int, int, int], int] = {}  # by place among a call's extras, number of values, bytes of each
    places = [order.get(_key(t), -1) for t in call.tensors()]
    cast = _tensors(call.cast)
    for index, (place, tensor) in enumerate(zip(places, cast, strict=True)):
        if place < 0 or not _is_float(tensor):
            continue
        leaves, kept, result = _repeat_with_gradient(call, index)
        known = {_key(t): p for t, p in zip(leaves, places, strict=True)}
        made = dict.fromkeys(k for t in _tensors(result) if (k := _key(t)) not in known)
        known |= {key: len(order) + number for number, key in enumerate(list(made)[:num_results])}
        num_unknown = 0
        for saved in kept:
            key = _key(saved)
            if key not in known:
                numel = _num_values(saved.untyped_storage(), saved)
                extra = (num_unknown, numel, _item_bytes(saved, has_floats=True))
                known[key] = len(order) + num_results + extras.setdefault(extra, len(extras))
                num_unknown += 1
            if known[key] >= 0:
                saves[place].add(known[key])
    return _SavedValues(tuple(tuple(sorted(s)) for s in saves), tuple((number, size) for _, number, size in extras))


def _repeat_with_gradient(call: _Call, index: int) -> tuple[list[torch.Tensor], list[torch.Tensor], Any]:
    """Repeat a call with a gradient for one of its tensors; return its tensors, what it saves, and its result."""
    kept: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.enable_grad():
        leaves = [t.detach().clone() for t in _tensors(call.cast)]
        leaves[index] = leaves[index].requires_grad_().clone()
        remaining = iter(leaves)
        args, kwargs = tree_map(lambda leaf: next(remaining) if isinstance(leaf, torch.Tensor) else leaf, call.cast)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            return leaves, kept, call.func(*args, **kwargs)


def _attention_result(call: _Call) -> torch.Tensor:
    """Return the result of a fused attention kernel: the heads of a token are next to each other in memory."""
    query, _, value = _tensors(call.cast)[:3]
    *batch, heads, length, _ = query.shape
    return query.new_empty(*batch, length, heads, value.shape[-1]).transpose(-3, -2)


def _is_float(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _num_values(storage: torch.UntypedStorage, tensor: torch.Tensor) -> int:
    """Return the number of values of a storage; a complex number is two."""
    return storage.nbytes() // (tensor.itemsize // 2 if tensor.is_complex() else tensor.itemsize)


def _elements_of(call: _Call, storages: Sequence[int]) -> list[int]:
    """Return the number of values that a function reads of each storage, through one or more views of it."""
    read = dict.fromkeys(storages, 0)
    for tensor in call.tensors():
        if (key := _key(tensor)) in read:
            whole = _num_values(tensor.untyped_storage(), tensor)
            read[key] = min(whole, read[key] + tensor.numel() * (2 if tensor.is_complex() else 1))
    return list(read.values())


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _item_bytes(tensor: torch.Tensor, has_floats: bool) -> int:
    """Return the bytes of an element, 0 if they depend on the dtypes of a run."""
    if not _is_float(tensor):
        return tensor.itemsize
    return 0 if has_floats or tensor.dtype == WEIGHTS else tensor.itemsize
