"""The axes of grids, one record each: how its values are read, and what a value changes. Torch-free."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from modules.config.sections.evaluation import SamplePrompt
from modules.sampling.registry import sampler_labels
from modules.settings.edit import set_path
from modules.system.errors import DarkroomError
from trainer.idle_sampling.request import Cell, SampleRequest
from trainer.idle_sampling.saves import saves_of

MAX_IMAGES = 1_000
_RANGE = re.compile(
    r"^\s*(-?\d+(?:\.\d+)?)\s*-\s*(-?\d+(?:\.\d+)?)\s*(?:\(\s*\+?(\d+(?:\.\d+)?)\s*\)|\[\s*(\d+)\s*\])?\s*$"
)


@dataclass(frozen=True, slots=True)
class AxisValue:
    """A value of an axis: its label, and what it makes of an image; `is_first` for one that other axes build on."""

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
    """Return the values of an axis. Raises DarkroomError for an unknown axis, for none, and for a bad value."""
    if name not in AXES:
        raise DarkroomError(f"There is no axis {name!r}.", advice=f"The axes are: {', '.join(AXES)}.")
    values = AXES[name].values(text, request)
    if not values:
        raise DarkroomError(f"The axis {AXES[name].label} has no values.", advice=AXES[name].help)
    return values


def listed(text: str) -> list[str]:
    """Return the values of a text: separated by commas, quoted where a value contains one."""
    return [
        value.strip()
        for value in next(csv.reader([text.replace("\n", ",")], skipinitialspace=True), [])
        if value.strip()
    ]


def numbers(text: str, label: str) -> list[float]:
    """Return numbers: single ones, and ranges as in 1-5, 10-50 (+10), 0-1 [5]. Raises DarkroomError for others."""
    found: list[float] = []
    for word in listed(text):
        try:
            found += [float(word)]
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
        found += [round(first + n * step, 10) for n in range(count)]
    return found


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
    has_save = any(axis and axis.name == "save" for axis in (request.x, request.y))
    if not request.adapters and not has_save:
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
    found = []
    for word in listed(text):
        if word.lower() not in by_word:
            raise DarkroomError(f"There is no sampler {word!r}.", advice=f"Samplers are: {', '.join(labels)}.")
        name = by_word[word.lower()]
        found.append(AxisValue(labels[name], _sets({"sampler": name})))
    return found


def _sets(values: Mapping[str, object]) -> Callable[[Cell], Cell]:
    return lambda cell: replace(cell, prompt=cell.prompt.model_copy(update=dict(values)))


def _prompts(text: str, request: SampleRequest) -> Sequence[AxisValue]:
    """Return the values of a search and replace: the first is searched for, and is itself the first value."""
    words = listed(text)
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
    if not request.run:
        raise DarkroomError("The axis Save needs a run.", advice="Choose a run's folder, or another axis.")
    run = saves_of(Path(request.run))
    words = listed(text) or ["all"]
    chosen = [save for save in run.saves if "all" in words or save.label in words or str(save.step) in words]
    unknown = [
        w for w in words if w != "all" and w not in {s.label for s in run.saves} | {str(s.step) for s in run.saves}
    ]
    if unknown or not chosen:
        labels = ", ".join(save.label for save in run.saves) or "none"
        what = f"no save {unknown[0]!r}" if unknown else "no saves"
        raise DarkroomError(f"The run {Path(request.run).name} has {what}.", advice=f"Its saves are: {labels}.")

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
