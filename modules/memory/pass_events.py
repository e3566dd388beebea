"""The events of traced passes, and the recording made of them: programs of the blocks, and sizes as monomials.

A pass is traced at several sizes. Its events must be the same at each, and the numbers of elements must be sums of the
monomials in `recording.py`, exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    Shape,
)

_MOST_TERMS = 4
_CLOSE = 1e-9  # relative to the numbers: far above rounding; sums that are as close are then solved exactly


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A function that was called. Values and numbers of elements are numbered over the whole pass."""

    kind: Kind
    operands: tuple[int, ...]
    weights: tuple[str, ...]
    results: tuple[tuple[int, int, int], ...]  # value, index of its number of elements, bytes of each or 0
    changes: int
    length: int
    saves: tuple[tuple[int, ...], ...] = ()
    extras: tuple[tuple[int, int], ...] = ()  # index of the number of elements, bytes of each or 0
    parts: tuple[int, ...] = ()  # indices of the numbers of elements that are read of the operands


@dataclass(frozen=True, slots=True)
class BlockStart:
    """A block began."""

    block: str


@dataclass(frozen=True, slots=True)
class BlockEnd:
    """A block ended."""

    block: str


@dataclass(frozen=True, slots=True)
class ValueRelease:
    """The last reference to a value was dropped."""

    value: int


_Event = FunctionCall | BlockStart | BlockEnd | ValueRelease


@dataclass(slots=True)
class PassEvents:
    """The events of one pass; each of its `inputs` is the index of its number of elements, and the bytes of an item."""

    events: list[_Event] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    inputs: list[tuple[int, int]] = field(default_factory=list)
    input_names: list[str] = field(default_factory=list)

    def add_number(self, number: int) -> int:
        """Note a number of elements and return its index."""
        self.numbers.append(number)
        return len(self.numbers) - 1


def recording_of(
    passes: Sequence[PassEvents],
    sizes: Sequence[PassSize],
    *,
    is_per_image: bool,
    text: frozenset[str],
    blocks: Mapping[str, bool],
    weights: Mapping[str, Shape],
) -> Recording:
    """Return the recording of a pass that was traced at several sizes.

    `text` are the names of the inputs that come from the text encoders, `weights` the shapes of all weights by name.
    `blocks` has, by the path of each block in the order of the module, whether it is a transformer block. Raises
    ValueError if the operations depend on the size, or a tensor's size is not a sum of the monomials.
    """
    first = passes[0]
    events = _equal_events([one.events for one in passes])
    counts = _Counts([size.monomials() for size in sizes], is_per_image=is_per_image)
    indices = [counts.index_of(numbers) for numbers in zip(*(p.numbers for p in passes), strict=True)]
    made = [result for event in events if isinstance(event, FunctionCall) for result in event.results]
    counts_of_values = [indices[number] for number, _ in first.inputs]
    counts_of_values += [indices[number] for _, number, _ in sorted(made)]
    programs = _Programs(indices, counts_of_values, blocks, weights)
    programs.add(iter(events), inputs=range(len(first.inputs)))
    return Recording(
        counts=tuple(counts.fitted),
        programs=tuple(programs.known),
        inputs=tuple(Result(indices[n], item_bytes) for n, item_bytes in first.inputs),
        text=tuple(i for i, name in enumerate(first.input_names) if name in text),
        blocks=tuple(blocks),
    )


def _equal_events(passes: Sequence[Sequence[_Event]]) -> list[_Event]:
    """Return the events that all passes have. Raises ValueError if they differ in more than the length of a product.

    The length of a product of two values may be the tokens or the latents (linear attention): the longest is recorded.
    """
    equal = []
    if len({len(events) for events in passes}) == 1:
        for same in zip(*passes, strict=True):
            longest = max((e.length for e in same if isinstance(e, FunctionCall) and not e.weights), default=0)
            every = [replace(e, length=longest) if isinstance(e, FunctionCall) and not e.weights else e for e in same]
            equal += every[:1] if all(event == every[0] for event in every) else []
    if len(equal) != len(passes[0]):
        raise ValueError("The operations of the pass depend on its size.")
    return equal


@dataclass(frozen=True, slots=True)
class _NestedBlock:
    """A block's program, the outer values that it reads (`operands`) and releases (`ended`), and its results."""

    block: str
    program: int
    operands: tuple[int, ...]
    results: tuple[int, ...]
    ended: tuple[int, ...]


class _Programs:
    """Makes programs of events, one for all blocks that are equal."""

    def __init__(
        self, indices: Sequence[int], counts: Sequence[int], blocks: Mapping[str, bool], shapes: Mapping[str, Shape]
    ) -> None:
        """`indices` are the counts of the pass's numbers of elements, `counts` those of its values, as indices.

        `blocks` has, by path, whether a block is a transformer block.
        """
        self._indices = indices
        self._counts = counts
        self._blocks = blocks
        self._shapes = dict(shapes)
        self._by_content: dict[object, int] = {}
        self.known: list[Program] = []

    def add(self, events: Iterator[Any], path: str = "", inputs: Sequence[int] = ()) -> _NestedBlock:
        """Add the program of a block, up to its end, or of the whole pass with its inputs."""
        steps: list[tuple[FunctionCall | _NestedBlock, list[int]]] = []
        read, made, ended = dict.fromkeys(inputs), dict[int, None](), list[int]()
        for event in events:
            match event:
                case ValueRelease(value) if value in made:
                    steps[-1][1].append(value)
                case ValueRelease(value):
                    ended.append(value)
                case BlockEnd():
                    break
                case BlockStart(block):
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
        return _NestedBlock(path, index, tuple(read), results, tuple(ended))

    def _step(
        self, step: FunctionCall | _NestedBlock, freed: Sequence[int], path: str, numbers: Mapping[int, int]
    ) -> Operation | Call:
        operands, frees = tuple(numbers[v] for v in step.operands), tuple(numbers[v] for v in freed)
        prefix = f"{path}." if path else ""
        if isinstance(step, _NestedBlock):
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
            self._parts(step),
        )

    def _parts(self, step: FunctionCall) -> tuple[int, ...]:
        """Return the counts of what a function reads of its operands, -1 for all; empty if it reads all of each."""
        counts = [self._indices[number] for number in step.parts]
        parts = tuple(-1 if n == self._counts[v] else n for v, n in zip(step.operands, counts, strict=False))
        return parts if any(n >= 0 for n in parts) else ()

    def _weights_of(self, path: str) -> dict[str, Shape]:
        """Remove and return the weights of a block, without its inner blocks' weights, which were removed before."""
        prefix = f"{path}." if path else ""
        names = [name for name in self._shapes if name.startswith(prefix)]
        return {name.removeprefix(prefix): self._shapes.pop(name) for name in names}


class _Counts:
    """The distinct numbers of elements of passes of several sizes, as sums of monomials."""

    def __init__(self, points: Sequence[tuple[int, ...]], *, is_per_image: bool) -> None:
        self._points = points
        self._monomials = range(len(SIZES), len(MONOMIALS)) if is_per_image else range(len(MONOMIALS))
        self._known: dict[tuple[int, ...], int] = {}
        self._spans = [self._spans_of(num_terms) for num_terms in range(1, _MOST_TERMS + 1)]
        self.fitted: list[Count] = []

    def index_of(self, numbers: tuple[int, ...]) -> int:
        """Return the index of the count with these values at the sizes. Raises ValueError if no sum has them."""
        if numbers not in self._known:
            self._known[numbers] = len(self.fitted)
            self.fitted.append(self._fit(numbers))
        return self._known[numbers]

    def _fit(self, numbers: tuple[int, ...]) -> Count:
        for chosen in self._near(numbers):
            rows = [[Fraction(point[index]) for index in chosen] for point in self._points]
            factors = _solve([[*row, Fraction(n)] for row, n in zip(rows, numbers, strict=True)])
            if factors is not None:
                terms = zip(chosen, factors, strict=True)
                return Count(tuple((index, f.numerator, f.denominator) for index, f in terms if f))
        raise ValueError(f"The size of a tensor is not a sum of monomials: {numbers}.")

    def _spans_of(self, num_terms: int) -> tuple[list[tuple[int, ...]], NDArray[np.float64]]:
        """Return each choice of `num_terms` monomials, and orthonormal vectors (choices, sizes, terms) that span it."""
        choices = list(combinations(self._monomials, num_terms))
        points_PM = np.array(self._points, dtype=np.float64)
        return choices, np.linalg.qr(points_PM[:, np.array(choices)].swapaxes(0, 1)).Q

    def _near(self, numbers: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Yield, fewest terms first, the monomials whose sums come close to the numbers: solving all exactly is slow.

        The distance of an exact sum from its span is a rounding error of float64, so none is missed.
        """
        numbers_P = np.array(numbers, dtype=np.float64)
        for choices, spans_CPT in self._spans:
            within_CP = np.einsum("cpt,ct->cp", spans_CPT, np.einsum("cpt,p->ct", spans_CPT, numbers_P))
            distances_C = np.linalg.norm(numbers_P - within_CP, axis=1)
            for index in np.flatnonzero(distances_C <= _CLOSE * np.linalg.norm(numbers_P)):
                yield choices[index]


def _solve(rows: list[list[Fraction]]) -> list[Fraction] | None:
    """Return the solution of linear equations, whose right side is the last column; None if there is no single one."""
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
