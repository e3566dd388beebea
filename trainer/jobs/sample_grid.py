"""The axes of grids, one record each, with the reader of its values and their effects; and all images of a request."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from modules.config.sections.evaluation import SamplePrompt
from modules.data.wildcards import expand
from modules.sampling.registry import sampler_labels
from modules.settings.edit import set_path
from modules.system.errors import DarkroomError
from modules.system.paths import from_root
from trainer.jobs.sample_sources import Cell, Weights, saves_of

if TYPE_CHECKING:  # the request's settings name the axes
    from trainer.jobs.sample import SampleRequest

MAX_IMAGES = 1_000
_RANGE = re.compile(
    r"^\s*(-?\d+(?:\.\d+)?)\s*-\s*(-?\d+(?:\.\d+)?)\s*(?:\(\s*\+?(\d+(?:\.\d+)?)\s*\)|\[\s*(\d+)\s*\])?\s*$"
)


@dataclass(frozen=True, slots=True)
class AxisValue:
    """A value of an axis: its label, and `apply(cell)`, which returns the image with this value.

    `is_first`: it is applied before the value of the other axis, which builds on it.
    """

    label: str
    apply: Callable[[Cell], Cell]
    is_first: bool = False


@dataclass(frozen=True, slots=True)
class AxisSpec:
    """An axis: its label, how values are written, and `values(text, request)`. Raises DarkroomError for a bad value."""

    label: str
    help: str
    values: Callable[[str, SampleRequest], Sequence[AxisValue]]


def grid_values(name: str, text: str, request: SampleRequest) -> Sequence[AxisValue]:
    """Return the values of an axis. Raises DarkroomError for an unknown axis, without values, and for a bad value."""
    if name not in AXES:
        raise DarkroomError(f"There is no axis {name!r}.", advice=f"The axes are: {', '.join(AXES)}.")
    values = AXES[name].values(text, request)
    if not values:
        raise DarkroomError(f"The axis {AXES[name].label} has no values.", advice=AXES[name].help)
    return values


def split_list(text: str) -> list[str]:
    """Return the values of a text: separated by commas, quoted where a value contains one."""
    return [
        value.strip()
        for value in next(csv.reader([text.replace("\n", ",")], skipinitialspace=True), [])
        if value.strip()
    ]


def numbers(text: str, label: str) -> list[float]:
    """Return numbers: single ones, and ranges as in 1-5, 10-50 (+10), 0-1 [5]. Raises DarkroomError for others."""
    values: list[float] = []
    for word in split_list(text):
        try:
            values += [float(word)]
            continue
        except ValueError:
            pass
        match = _RANGE.match(word)
        if match is None:
            raise DarkroomError(
                f"{label}: {word!r} is not a number.",
                advice="Write numbers as in 1, 2.5, or a range as in 10-50 (+10).",
            )
        first, last = float(match[1]), float(match[2])
        step = float(match[3]) if match[3] else 1.0
        count = int(match[4]) if match[4] else int((last - first) / step + 1e-9) + 1 if step else 0
        if not 1 <= count <= MAX_IMAGES:
            raise DarkroomError(
                f"{label}: the range {word!r} has no values, or too many.", advice="Write it as 10-50 (+10)."
            )
        step = (last - first) / (count - 1) if match[4] and count > 1 else step
        values += [round(first + n * step, 10) for n in range(count)]
    return values


def _field(name: str, label: str, *, is_whole: bool) -> Callable[[str, SampleRequest], Sequence[AxisValue]]:
    """Return the values of an axis that sets a field of the prompt."""

    def values(text: str, request: SampleRequest) -> Sequence[AxisValue]:
        return [_of_field(name, label, int(n) if is_whole else n, request) for n in numbers(text, label)]

    return values


def _of_field(name: str, label: str, value: float | int, request: SampleRequest) -> AxisValue:
    _, problems = set_path(request.config, f"sampling.prompts.0.{name}", value)
    if problems:
        raise DarkroomError(f"{label} {value:g}: {problems[0].message}", advice="Choose another value.")

    def apply(cell: Cell) -> Cell:
        offset = cell.number if name == "seed" else 0  # further images of a grid have further seeds
        return replace(cell, prompt=cell.prompt.model_copy(update={name: value + offset}))

    return AxisValue(f"{label} {value:g}" if name != "seed" else f"{label} {value}", apply)


def _strengths(text: str, request: SampleRequest) -> Sequence[AxisValue]:
    has_save = any(axis.partition("=")[0].strip() == "save" for axis in (request.choices.x, request.choices.y))
    if not request.choices.adapters and not has_save:
        raise DarkroomError("The axis Strength needs a LoRA.", advice="Add a LoRA, or choose another axis.")

    def value(strength: float) -> AxisValue:
        def apply(cell: Cell) -> Cell:
            if not cell.weights.adapters:
                return cell  # the save of a run that is a whole model
            first, *rest = cell.weights.adapters
            return replace(cell, weights=replace(cell.weights, adapters=(replace(first, strength=strength), *rest)))

        return AxisValue(f"Strength {strength:g}", apply)

    return [value(strength) for strength in numbers(text, "Strength")]


def _samplers(text: str, request: SampleRequest) -> Sequence[AxisValue]:
    labels = sampler_labels()
    by_word = {word.lower(): name for name, label in labels.items() for word in (name, label)}
    values = []
    for word in split_list(text):
        if word.lower() not in by_word:
            raise DarkroomError(f"There is no sampler {word!r}.", advice=f"Samplers are: {', '.join(labels)}.")
        name = by_word[word.lower()]
        values.append(AxisValue(labels[name], _sets({"sampler": name})))
    return values


def _sets(values: Mapping[str, object]) -> Callable[[Cell], Cell]:
    return lambda cell: replace(cell, prompt=cell.prompt.model_copy(update=dict(values)))


def _prompts(text: str, request: SampleRequest) -> Sequence[AxisValue]:
    """Return the values of a search and replace: the first is searched for, and is itself the first value."""
    words = split_list(text)
    if not words:
        return ()
    wanted = words[0]
    if wanted not in request.prompt.prompt and wanted not in request.prompt.negative_prompt:
        raise DarkroomError(f"The prompt does not contain {wanted!r}.", advice="The first value is searched for in it.")

    def value(word: str) -> AxisValue:
        def apply(cell: Cell) -> Cell:
            prompt: SamplePrompt = cell.prompt
            texts = {name: getattr(prompt, name).replace(wanted, word) for name in ("prompt", "negative_prompt")}
            return replace(cell, prompt=prompt.model_copy(update=texts))

        return AxisValue(word, apply)

    return [value(word) for word in words]


def _saves(text: str, request: SampleRequest) -> Sequence[AxisValue]:
    if not request.choices.run:
        raise DarkroomError("The axis Save needs a run.", advice="Choose a run's folder, or another axis.")
    run = saves_of(from_root(request.choices.run))
    words = split_list(text) or ["all"]
    chosen = [save for save in run.saves if "all" in words or save.label in words or str(save.step) in words]
    unknown = [
        w for w in words if w != "all" and w not in {s.label for s in run.saves} | {str(s.step) for s in run.saves}
    ]
    if unknown or not chosen:
        labels = ", ".join(save.label for save in run.saves) or "none"
        what = f"no save {unknown[0]!r}" if unknown else "no saves"
        raise DarkroomError(f"The run {Path(request.choices.run).name} has {what}.", advice=f"Its saves are: {labels}.")

    return [AxisValue(f"Step {s.label}" if s.label.isdigit() else s.label, s.put_on, is_first=True) for s in chosen]


_LIST = "Separate values by commas. Ranges: 1-5, 10-50 (+10), 0-1 [5]."
AXES: Mapping[str, AxisSpec] = {
    "strength": AxisSpec("Strength", f"The strength of the first LoRA. {_LIST}", _strengths),
    "save": AxisSpec("Save of a run", 'The steps of the saves of a run, as in 100, 200, or "all".', _saves),
    "steps": AxisSpec("Steps", f"Denoising steps. {_LIST}", _field("steps", "Steps", is_whole=True)),
    "guidance": AxisSpec("Guidance (CFG)", f"Guidance scale. {_LIST}", _field("guidance", "CFG", is_whole=False)),
    "seed": AxisSpec("Seed", f"Seeds. {_LIST}", _field("seed", "Seed", is_whole=True)),
    "sampler": AxisSpec("Sampler", "Names of samplers, separated by commas.", _samplers),
    "prompt": AxisSpec(
        "Prompt S/R",
        "Search and replace: the first value is searched for in the prompt, and each replaces it.",
        _prompts,
    ),
}


def axis_labels() -> Mapping[str, str]:
    """Return the labels of the axes by name."""
    return {name: spec.label for name, spec in AXES.items()}


_ONE = (AxisValue("", lambda cell: cell),)


@dataclass(frozen=True, slots=True)
class SamplePlan:
    """All images of a request in the order of sampling, and the labels of the grid's columns and rows."""

    cells: tuple[Cell, ...]
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    num_images: int

    @property
    def is_grid(self) -> bool:
        """Whether an axis is chosen."""
        return any(self.columns) or any(self.rows)

    @property
    def num_steps(self) -> int:
        """The number of denoising steps of all images."""
        return sum(cell.prompt.steps for cell in self.cells)


def plan_of(request: SampleRequest) -> SamplePlan:
    """Return the images of a request. Raises DarkroomError for axes that cannot be read, and for too many images.

    Images with the same weights are together, so that weights are changed as rarely as possible.
    """
    chosen = [_axis(text) for text in (request.choices.x, request.choices.y)]
    axes = [grid_values(*axis, request) if axis else _ONE for axis in chosen]
    if chosen[0] and chosen[1] and chosen[0][0] == chosen[1][0]:
        raise DarkroomError("Both axes are the same.", advice="Choose two different axes.")
    x_values, y_values = axes
    total = len(x_values) * len(y_values) * request.choices.num_images
    if total > MAX_IMAGES:
        raise DarkroomError(f"The grid has {total:,} images; at most {MAX_IMAGES:,} are possible.", advice="Use fewer.")
    first = Cell(request.prompt, Weights("", request.choices.adapters, request.choices.backup))
    cells = [
        _cell(first, number, (column, x), (row, y), request)
        for number in range(request.choices.num_images)
        for row, y in enumerate(y_values)
        for column, x in enumerate(x_values)
    ]
    order = list(dict.fromkeys(cell.weights for cell in cells))
    cells.sort(key=lambda cell: order.index(cell.weights))
    columns, rows = ([value.label for value in values] for values in axes)
    return SamplePlan(tuple(cells), tuple(columns), tuple(rows), request.choices.num_images)


def _cell(first: Cell, number: int, x: tuple[int, AxisValue], y: tuple[int, AxisValue], request: SampleRequest) -> Cell:
    (column, x_value), (row, y_value) = x, y
    prompt = first.prompt.model_copy(update={"seed": (first.prompt.seed + number) % 2**63})
    cell = replace(first, prompt=prompt, number=number, column=column, row=row, labels=(x_value.label, y_value.label))
    # The axis of saves puts an adapter before the others, so that a strength applies to the save.
    for value in sorted((x_value, y_value), key=lambda v: not v.is_first):
        cell = value.apply(cell)
    return _expand_prompts(cell, request)


def _expand_prompts(cell: Cell, request: SampleRequest) -> Cell:
    folder = from_root(request.choices.wildcards) if request.choices.wildcards.strip() else None
    missing: Sequence[str] = ()
    texts = {}
    for name in ("prompt", "negative_prompt"):
        expanded = expand(getattr(cell.prompt, name), seed=cell.prompt.seed, folder=folder)
        texts[name], missing = expanded.text, (*missing, *expanded.missing)
    return replace(cell, prompt=cell.prompt.model_copy(update=texts), missing=tuple(missing))


def _axis(text: str) -> tuple[str, str] | None:
    """Return the name and the values of an axis; None for an empty text. Raises DarkroomError without values."""
    if not text.strip():
        return None
    name, equals, values = text.partition("=")
    if not equals:
        raise DarkroomError(f"The axis {text!r} has no values.", advice="Write it as --x strength=0,0.5,1.")
    return name.strip(), values
