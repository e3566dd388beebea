"""The recording of a forward pass: its operations, with the bytes that each allocates and saves for the backward pass.

`trace.py` makes one from the real module, once for all sizes, dtypes and memory settings; `replay.py` evaluates it.
A block (`ModelClass`) is a program of its own, which all equal blocks share. The values of a program are numbered: its
inputs first, then the results in the order in which they are computed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

Shape = tuple[int, ...]
Kind = Literal[
    "linear",
    "conv",
    "embedding",
    "attention",
    "norm",
    "half",
    "single",
    "weights",
    "compute",
    "float32",
    "complex",
    "other",
]
"""Linear layers, convolutions, lookups, fused attention and RMS norms of diffusers; other functions that autocast
computes in 16 bits ("half") or in float32 ("single"); casts to the dtype of the weights, of autocast's results or to
float32; functions with complex results, of two floats of 32 bits each; everything else.
"""

SIZES = ("1", "L", "S", "H", "W", "SS", "SL", "LL")
MONOMIALS = (*SIZES, *(f"B{name}" for name in SIZES))
"""The terms of a tensor's number of elements, for B images of H x W = S pixels with L tokens each."""


@dataclass(frozen=True, slots=True)
class PassSize:
    """The size of a pass: images (or prompts) at once, their sides in pixels, and the tokens of a prompt."""

    batch: int
    width_px: int
    height_px: int
    tokens: int

    def monomials(self) -> tuple[int, ...]:
        """Return the values of `MONOMIALS`."""
        pixels, length = self.width_px * self.height_px, self.tokens
        alone = (1, length, pixels, self.height_px, self.width_px, pixels**2, pixels * length, length**2)
        return (*alone, *(self.batch * value for value in alone))


@dataclass(frozen=True, slots=True)
class Count:
    """A number of elements: a sum of monomials with fractional factors, as (monomial, numerator, denominator)."""

    terms: tuple[tuple[int, int, int], ...]

    def at(self, monomials: Sequence[int]) -> int:
        """Return the number for the values of the monomials."""
        return sum(numerator * monomials[index] // denominator for index, numerator, denominator in self.terms)


@dataclass(frozen=True, slots=True)
class Result:
    """A new storage: its number of elements (an index into `Recording.counts`) and bytes of each, 0 for floats."""

    count: int
    item_bytes: int


@dataclass(frozen=True, slots=True)
class Operation:
    """A function of the forward pass.

    `operands` are the values that it reads, `weights` the names of the weights below the program's path. `saves` has,
    for each operand and weight, the tensors that autograd saves if that one needs a gradient: numbers in the list of
    operands, weights, results and `extras`, which only the backward pass uses. `changes` is the operand that is changed
    in place, -1 for none. `length` is the length of the vectors in a product. `frees` are the values that are released
    after it. `parts`, unless empty, are the numbers of elements (indices into `Recording.counts`) that it reads of each
    operand, -1 for all: of a view, such as the queries in a fused product, autocast casts only these.
    """

    kind: Kind
    operands: tuple[int, ...]
    weights: tuple[str, ...]
    results: tuple[Result, ...]
    saves: tuple[tuple[int, ...], ...]
    extras: tuple[Result, ...]
    changes: int
    length: int
    frees: tuple[int, ...]
    parts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a block: its program, its path below the calling program's, the values that it reads and releases."""

    program: int
    path: str
    operands: tuple[int, ...]
    frees: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """The steps of a module, in order, and the shapes of its weights below its path, without the weights of its blocks.

    `results` are the values that are still in use after it.
    """

    num_inputs: int
    steps: tuple[Operation | Call, ...]
    results: tuple[int, ...]
    weights: Mapping[str, Shape]
    is_transformer: bool = False


@dataclass(frozen=True)
class Recording:
    """A forward pass of a part. The last program is the whole pass.

    `inputs` are its inputs; those at the indices `text` come from the text encoders. `blocks` are the paths of the
    part's blocks in the order of the module.
    """

    counts: tuple[Count, ...]
    programs: tuple[Program, ...]
    inputs: tuple[Result, ...]
    text: tuple[int, ...]
    blocks: tuple[str, ...]

    @cached_property
    def weights(self) -> Mapping[str, Shape]:
        """The shapes of all weights of the part, by name."""
        return dict(self._weights_of(self.programs[-1], ""))

    def _weights_of(self, program: Program, path: str) -> Iterator[tuple[str, Shape]]:
        yield from ((f"{path}{name}", shape) for name, shape in program.weights.items())
        for step in program.steps:
            if isinstance(step, Call):
                yield from self._weights_of(self.programs[step.program], f"{path}{step.path}.")

    def text_elements(self, size: PassSize) -> int:
        """Return the number of elements of the inputs that come from the text encoders."""
        monomials = size.monomials()
        return sum(self.counts[self.inputs[index].count].at(monomials) for index in self.text)

    def to_json(self) -> dict[str, Any]:
        """Return the recording as JSON values."""
        return {
            "counts": [count.terms for count in self.counts],
            "programs": [
                {
                    "inputs": program.num_inputs,
                    "results": program.results,
                    "is_transformer": program.is_transformer,
                    "weights": program.weights,
                    "steps": [_step_to_json(step) for step in program.steps],
                }
                for program in self.programs
            ],
            "inputs": [_pair(result) for result in self.inputs],
            "text": self.text,
            "blocks": self.blocks,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Recording:
        """Return the recording of `to_json`. Raises KeyError, TypeError, ValueError or IndexError for other values."""
        return cls(
            counts=tuple(Count(tuple((int(i), int(n), int(d)) for i, n, d in terms)) for terms in values["counts"]),
            programs=tuple(
                Program(
                    int(program["inputs"]),
                    tuple(_step_from_json(step) for step in program["steps"]),
                    tuple(program["results"]),
                    {name: tuple(shape) for name, shape in program["weights"].items()},
                    bool(program["is_transformer"]),
                )
                for program in values["programs"]
            ),
            inputs=_results(values["inputs"]),
            text=tuple(values["text"]),
            blocks=tuple(values["blocks"]),
        )


def to_text(recordings: Mapping[str, Recording]) -> str:
    """Return recordings by pass as JSON."""
    return json.dumps({name: recording.to_json() for name, recording in recordings.items()}, separators=(",", ":"))


def from_text(text: str) -> dict[str, Recording]:
    """Return the recordings of `to_text`. Raises KeyError, TypeError, ValueError or IndexError for another text."""
    return {str(name): Recording.from_json(values) for name, values in json.loads(text).items()}


_NUM_ALWAYS = 5  # values of an operation in JSON; later ones are left out from the end if they have their defaults
_DEFAULTS: tuple[Any, ...] = ((), 0, [], -1, ())


def _step_to_json(step: Operation | Call) -> list[Any]:
    if isinstance(step, Call):
        return [step.program, step.path, step.operands, step.frees]
    extras = [_pair(extra) for extra in step.extras]
    results = [_pair(result) for result in step.results]
    values = [
        step.kind,
        step.operands,
        results,
        step.frees,
        step.saves,
        step.weights,
        step.length,
        extras,
        step.changes,
        step.parts,
    ]
    while len(values) > _NUM_ALWAYS and values[-1] == _DEFAULTS[len(values) - _NUM_ALWAYS - 1]:
        values.pop()
    return values


def _step_from_json(step: Sequence[Any]) -> Operation | Call:
    if not isinstance(step[0], str):
        program, path, operands, frees = step
        return Call(int(program), str(path), tuple(operands), tuple(frees))
    kind, operands, results, frees, saves, weights, length, extras, changes, parts = [
        *step,
        *_DEFAULTS[len(step) - _NUM_ALWAYS :],
    ]
    return Operation(
        kind,
        tuple(operands),
        tuple(weights),
        _results(results),
        tuple(tuple(saved) for saved in saves),
        _results(extras),
        int(changes),
        int(length),
        tuple(frees),
        tuple(parts),
    )


def _pair(result: Result) -> tuple[int, int]:
    return result.count, result.item_bytes


def _results(pairs: Sequence[Sequence[int]]) -> tuple[Result, ...]:
    return tuple(Result(int(count), int(item_bytes)) for count, item_bytes in pairs)
