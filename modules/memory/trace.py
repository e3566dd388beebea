"""Records a forward pass of a real module: it runs on tensors without data, and each function is noted.

The pass runs under an imitation of CUDA's autocast ("Autocast Op Reference" of PyTorch), with a different dtype for the
weights, for autocast's results and for float32, so that the casts in a module's code show what they cast to. A value
ends where Python lets go of it. What autograd saves is asked of autograd: each distinct call is repeated with a
gradient for one operand at a time. Sizes are found from passes at several sizes: the numbers of elements must be sums
of the monomials in `recording.py`, exactly.

Attention counts as a fused kernel, which never has the matrix of tokens by tokens: GPUs compute it so.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import combinations
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from modules.memory.recording import (
    MONOMIALS,
    SIZES,
    Call,
    Count,
    Kind,
    Operation,
    PassSize,
    Program,
    Recording,
    Result,
)

WEIGHTS, COMPUTED, SINGLE = torch.float64, torch.float16, torch.float32
"""The dtypes that stand for that of the weights, that of autocast's results, and float32."""

_ATTENTION = "scaled_dot_product_attention"
_HALF = frozenset(
    [
        "linear",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
        "matmul",
        "__matmul__",
        "__rmatmul__",
        "mm",
        "bmm",
        "addmm",
        "addbmm",
        "baddbmm",
        "einsum",
        "prelu",
        "chain_matmul",
        "multi_dot",
    ]
)
_SINGLE = frozenset(
    [
        "acos",
        "asin",
        "cosh",
        "erfinv",
        "exp",
        "expm1",
        "log",
        "log10",
        "log2",
        "log1p",
        "reciprocal",
        "rsqrt",
        "sinh",
        "tan",
        "pow",
        "__pow__",
        "__rpow__",
        "softplus",
        "layer_norm",
        "group_norm",
        "rms_norm",
        "norm",
        "cosine_similarity",
        "softmax",
        "log_softmax",
        "cumsum",
        "cumprod",
        "prod",
        "sum",
        "l1_loss",
        "mse_loss",
        "smooth_l1_loss",
        "cdist",
    ]
)
_CASTS: Mapping[torch.dtype, Kind] = {WEIGHTS: "weights", COMPUTED: "compute", SINGLE: "float32"}
_TO = frozenset(["to", "float", "double", "half", "bfloat16", "type", "type_as"])
# Some versions of transformers have the layers of CLIP inside another module.
_INNER_MODULE = "text_model."
_MOST_TERMS = 4
_GRADIENT_BYTES = 4  # of the logarithms of sums that fused attention keeps for its backward pass


@dataclass(frozen=True, slots=True, eq=False)
class TracedPass:
    """A pass to record: a function, and its keyword arguments for a size.

    `is_per_image`: it goes through its images one by one, so that it is traced with one, and a batch needs a multiple.

    The inputs whose names are in `text` come from the text encoders. They are made on the meta device, with the dtype
    that stands for that of the weights as the default.
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
    module.train().to(WEIGHTS).requires_grad_(False)
    blocks = {m: _short(name) for name, m in module.named_modules() if isinstance(m, block_types)}
    if traced.is_per_image:
        sizes = [replace(size, batch=1) for size in sizes]
    with torch.no_grad():  # what a module makes in its first pass and keeps is not in the recording
        traced.run(**_inputs(traced, sizes[0]))
    first, *others = (_run(module, traced, size, blocks) for size in sizes)
    if any(other.events != first.events for other in others):
        raise ValueError("The operations of the pass depend on its size.")
    counts = _Counts([size.monomials() for size in sizes], is_per_image=traced.is_per_image)
    indices = [counts.index_of(numbers) for numbers in zip(*(run.numbers for run in (first, *others)), strict=True)]
    transformers = {name: isinstance(m, transformer_types) for m, name in blocks.items()}
    shapes = {_short(name): tuple(weight.shape) for name, weight in module.named_parameters()}
    programs = _Programs(indices, transformers, shapes)
    programs.add(iter(first.events), inputs=range(len(first.inputs)))
    return Recording(
        counts=tuple(counts.fitted),
        programs=tuple(programs.known),
        inputs=tuple(Result(indices[n], item_bytes) for n, item_bytes in first.inputs),
        text=tuple(i for i, name in enumerate(first.input_names) if name in traced.text),
        blocks=tuple(blocks.values()),
    )


def _short(name: str) -> str:
    return name.removeprefix(_INNER_MODULE)


# -- the events of one pass


@dataclass(frozen=True, slots=True)
class _Called:
    """A function that was called. Values and numbers of elements are counted over the whole pass."""

    kind: Kind
    operands: tuple[int, ...]
    weights: tuple[str, ...]
    results: tuple[tuple[int, int, int], ...]  # value, index of its number of elements, bytes of each or 0
    changes: int
    length: int
    saves: tuple[tuple[int, ...], ...] = ()
    extras: tuple[tuple[int, int], ...] = ()  # index of the number of elements, bytes of each or 0


@dataclass(frozen=True, slots=True)
class _Entered:
    block: str


@dataclass(frozen=True, slots=True)
class _Left:
    block: str


@dataclass(frozen=True, slots=True)
class _Freed:
    value: int


@dataclass(slots=True)
class _Events:
    """The events of one pass; each of its `inputs` is the index of its number of elements, and the bytes of an item."""

    events: list[_Called | _Entered | _Left | _Freed] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    inputs: list[tuple[int, int]] = field(default_factory=list)
    input_names: list[str] = field(default_factory=list)

    def add_number(self, number: int) -> int:
        """Note a number of elements and return its index."""
        self.numbers.append(number)
        return len(self.numbers) - 1


def _run(module: nn.Module, traced: TracedPass, size: PassSize, blocks: Mapping[nn.Module, str]) -> _Events:
    events = _Events()
    recorder = _Recorder(module, events)
    inputs = _inputs(traced, size)
    for name, tensor in _named_tensors(inputs):
        recorder.add_input(name, tensor)
    with torch.no_grad(), _noted_blocks(blocks, events), recorder:
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
def _noted_blocks(blocks: Mapping[nn.Module, str], events: _Events) -> Iterator[None]:
    handles = []
    for block, name in blocks.items():
        enter, leave = _Entered(name), _Left(name)
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
class _Saved:
    """The values saved of a call, by operand and weight, and those of the backward pass alone (size, item bytes)."""

    of_operands: tuple[tuple[int, ...], ...]
    extras: tuple[tuple[int, int], ...]


class _Recorder(TorchFunctionMode):
    """Notes each function that is called, under an imitation of autocast."""

    def __init__(self, module: nn.Module, events: _Events) -> None:
        super().__init__()
        self._events = events
        self._weights = {p.untyped_storage()._cdata: _short(name) for name, p in module.named_parameters()}
        self._values: dict[int, int] = {}
        self._num_values = 0
        self._saved: dict[str, _Saved] = {}
        self.is_over = False

    def add_input(self, name: str, tensor: torch.Tensor) -> None:
        """Note an input of the pass."""
        self._new_value(tensor.untyped_storage())
        item_bytes = 0 if tensor.dtype == WEIGHTS else tensor.itemsize
        self._events.inputs.append((self._events.add_number(tensor.numel()), item_bytes))
        self._events.input_names.append(name)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, given = getattr(func, "__name__", ""), (args, kwargs or {})
        call = _Call(func, name, given, _as_autocast(name, given))
        tensors = call.tensors()
        versions = [t._version for t in tensors]
        result = _attended(call) if name == _ATTENTION else func(*call.cast[0], **call.cast[1])
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
            _Called(
                _kind_of(call, made, names),
                values,
                names,
                results,
                changes=next((order[_key(t)] for t in changed if _key(t) in self._values), -1),
                length=_length_of(call),
                saves=saved.of_operands,
                extras=tuple((self._events.add_number(number), item_bytes) for number, item_bytes in saved.extras),
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
            self._events.events.append(_Freed(self._values.pop(key)))

    def _saved_by(self, call: _Call, order: Mapping[int, int], num_results: int) -> _Saved:
        if call.name == _ATTENTION:
            query = call.tensors()[0]
            logarithms = (query.numel() // query.shape[-1], _GRADIENT_BYTES)
            everything = tuple(range(len(order) + num_results + 1))
            return _Saved((everything,) * len(order), (logarithms,))
        signature = f"{call.func}{tree_map(lambda leaf: _described(leaf, order), call.cast)}"
        if signature not in self._saved:
            self._saved[signature] = _saved_by_autograd(call, order, num_results)
        return self._saved[signature]


def _described(leaf: Any, order: Mapping[int, int]) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return (tuple(leaf.shape), leaf.stride(), str(leaf.dtype), order.get(_key(leaf)))


def _saved_by_autograd(call: _Call, order: Mapping[int, int], num_results: int) -> _Saved:
    """Repeat a call with a gradient for one tensor at a time, and see what it saves."""
    saves: list[set[int]] = [set() for _ in order]
    extras: dict[tuple[int, int, int], int] = {}  # its place among those of one call, number and item bytes
    places = [order.get(_key(t), -1) for t in call.tensors()]
    cast = _tensors(call.cast)
    for index, (place, tensor) in enumerate(zip(places, cast, strict=True)):
        if place < 0 or not _is_float(tensor):
            continue
        leaves, kept, result = _called_with_gradient(call, index)
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
    return _Saved(tuple(tuple(sorted(s)) for s in saves), tuple((number, size) for _, number, size in extras))


def _called_with_gradient(call: _Call, index: int) -> tuple[list[torch.Tensor], list[torch.Tensor], Any]:
    """Return the tensors of a call that is repeated with a gradient for one of them, what it saves, and its result."""
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


def _attended(call: _Call) -> torch.Tensor:
    """Return the result of a fused attention kernel, which has the heads of a token next to each other in memory."""
    query, _, value = _tensors(call.cast)[:3]
    *batch, heads, length, _ = query.shape
    return query.new_empty(*batch, length, heads, value.shape[-1]).transpose(-3, -2)


def _is_float(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _num_values(storage: torch.UntypedStorage, tensor: torch.Tensor) -> int:
    """Return the number of values of a storage; a complex number is two."""
    return storage.nbytes() // (tensor.itemsize // 2 if tensor.is_complex() else tensor.itemsize)


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _as_autocast(name: str, given: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return the arguments of a function as autocast casts them."""
    dtype = COMPUTED if name in _HALF or name == _ATTENTION else SINGLE if name in _SINGLE else None
    if dtype is None:
        return given

    def cast(leaf: Any) -> Any:
        is_cast = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf.to(dtype) if is_cast else leaf

    cast_args, cast_kwargs = tree_map(cast, given)
    return cast_args, cast_kwargs


def _item_bytes(tensor: torch.Tensor, has_floats: bool) -> int:
    """Return the bytes of an element, 0 where they depend on the dtypes of a run."""
    if not _is_float(tensor):
        return tensor.itemsize
    return 0 if has_floats or tensor.dtype == WEIGHTS else tensor.itemsize


def _kind_of(call: _Call, made: Sequence[torch.Tensor], weights: Sequence[str]) -> Kind:
    name, has_weight = call.name, bool(weights) and weights[0].endswith(".weight")
    if name == _ATTENTION:
        return "attention"
    if name == "embedding" and has_weight:
        return "embedding"
    if name == "linear" and has_weight:
        return "linear"
    if name.startswith("conv") and has_weight and "transpose" not in name:
        return "conv"
    if name in _HALF:
        return "half"
    if name in _SINGLE:
        return "single"
    if any(t.is_complex() for t in made):
        return "complex"
    return _CASTS.get(made[0].dtype, "other") if name in _TO else "other"


def _length_of(call: _Call) -> int:
    """Return the length of the vectors of a matrix product, 0 for any other function."""
    if call.name not in _HALF:
        return 0
    tensors = call.tensors()
    if call.name.startswith("conv"):
        return int(tensors[1][0].numel())
    return int(tensors[1 if call.name in ("addmm", "baddbmm") else 0].shape[-1])


# -- from events to programs


@dataclass(frozen=True, slots=True)
class _Added:
    """A block's program, the values of others that it reads and ends, and its results."""

    block: str
    program: int
    operands: tuple[int, ...]
    results: tuple[int, ...]
    ended: tuple[int, ...]


class _Programs:
    """Makes programs of events, one for all blocks that are equal."""

    def __init__(
        self, indices: Sequence[int], blocks: Mapping[str, bool], shapes: Mapping[str, tuple[int, ...]]
    ) -> None:
        """`indices` are the counts of the pass's numbers of elements; `blocks`: whether each is a transformer block."""
        self._indices = indices
        self._blocks = blocks
        self._shapes = dict(shapes)
        self._by_content: dict[object, int] = {}
        self.known: list[Program] = []

    def add(self, events: Iterator[Any], path: str = "", inputs: Sequence[int] = ()) -> _Added:
        """Add the program of a block, up to its end, or of the whole pass with its inputs."""
        steps: list[tuple[_Called | _Added, list[int]]] = []
        read, made, ended = dict.fromkeys(inputs), dict[int, None](), list[int]()
        for event in events:
            match event:
                case _Freed(value) if value in made:
                    steps[-1][1].append(value)
                case _Freed(value):
                    ended.append(value)
                case _Left():
                    break
                case _Entered(block):
                    inner = self.add(events, block)
                    steps.append((inner, [value for value in inner.ended if value in made]))
                    ended += [value for value in inner.ended if value not in made]
                    read |= dict.fromkeys(value for value in inner.operands if value not in made)
                    made |= dict.fromkeys(inner.results)
                case _:
                    steps.append((event, []))
                    read |= dict.fromkeys(value for value in event.operands if value not in made)
                    made |= dict.fromkeys(value for value, *_ in event.results)
        numbers = {value: number for number, value in enumerate((*read, *made))}
        freed = {value for _, values in steps for value in values}
        results = tuple(value for value in made if value not in freed)
        program = Program(
            len(read),
            tuple(self._step(step, values, path, numbers) for step, values in steps),
            tuple(numbers[value] for value in results),
            self._weights_of(path),
            self._blocks.get(path, False),
        )
        content = (program.num_inputs, program.steps, program.results, tuple(program.weights.items()))
        index = self._by_content.setdefault((content, program.is_transformer), len(self.known))
        if index == len(self.known):
            self.known.append(program)
        return _Added(path, index, tuple(read), results, tuple(ended))

    def _step(
        self, step: _Called | _Added, freed: Sequence[int], path: str, numbers: Mapping[int, int]
    ) -> Operation | Call:
        operands, frees = tuple(numbers[v] for v in step.operands), tuple(numbers[v] for v in freed)
        prefix = f"{path}." if path else ""
        if isinstance(step, _Added):
            return Call(step.program, step.block.removeprefix(prefix), operands, frees)
        return Operation(
            step.kind,
            operands,
            tuple(name.removeprefix(prefix) for name in step.weights),
            tuple(Result(self._indices[number], item_bytes) for _, number, item_bytes in step.results),
            step.saves,
            tuple(Result(self._indices[number], item_bytes) for number, item_bytes in step.extras),
            step.changes,
            step.length,
            frees,
        )

    def _weights_of(self, path: str) -> dict[str, tuple[int, ...]]:
        """Take the weights of a block, without those of its own blocks; those of the whole pass are all others."""
        prefix = f"{path}." if path else ""
        names = [name for name in self._shapes if name.startswith(prefix)]
        return {name.removeprefix(prefix): self._shapes.pop(name) for name in names}


class _Counts:
    """The distinct numbers of elements of passes of several sizes, as sums of monomials."""

    def __init__(self, points: Sequence[tuple[int, ...]], *, is_per_image: bool) -> None:
        self._points = points
        self._monomials = range(len(SIZES), len(MONOMIALS)) if is_per_image else range(len(MONOMIALS))
        self._known: dict[tuple[int, ...], int] = {}
        self.fitted: list[Count] = []

    def index_of(self, numbers: tuple[int, ...]) -> int:
        """Return the index of the count that has these values at the sizes. Raises ValueError where no sum does."""
        if numbers not in self._known:
            self._known[numbers] = len(self.fitted)
            self.fitted.append(self._fit(numbers))
        return self._known[numbers]

    def _fit(self, numbers: tuple[int, ...]) -> Count:
        for num_terms in range(1, _MOST_TERMS + 1):
            for chosen in combinations(self._monomials, num_terms):
                rows = [[Fraction(point[index]) for index in chosen] for point in self._points]
                factors = _solved([[*row, Fraction(n)] for row, n in zip(rows, numbers, strict=True)])
                if factors is not None:
                    terms = zip(chosen, factors, strict=True)
                    return Count(tuple((index, f.numerator, f.denominator) for index, f in terms if f))
        raise ValueError(f"The size of a tensor is not a sum of monomials: {numbers}.")


def _solved(rows: list[list[Fraction]]) -> list[Fraction] | None:
    """Return the solution of linear equations, with the right side as the last column; None if there is not one."""
    num = len(rows[0]) - 1
    for column in range(num):
        pivot = next((i for i in range(column, len(rows)) if rows[i][column]), None)
        if pivot is None:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        top = [value / rows[column][column] for value in rows[column]]
        rows = [
            top if i == column else [a - row[column] * b for a, b in zip(row, top, strict=True)]
            for i, row in enumerate(rows)
        ]
    return [row[-1] for row in rows[:num]] if all(not row[-1] for row in rows[num:]) else None
