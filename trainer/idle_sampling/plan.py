"""The images of a request: every cell of its grid, with wildcards replaced. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from modules.data.wildcards import expand
from modules.system.errors import DarkroomError
from modules.system.paths import from_root
from trainer.idle_sampling.axes import MAX_IMAGES, AxisValue, grid_values
from trainer.idle_sampling.request import Cell, SampleRequest, Weights

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
    axes = [grid_values(axis.name, axis.values, request) if axis else _ONE for axis in (request.x, request.y)]
    if request.x and request.y and request.x.name == request.y.name:
        raise DarkroomError("Both axes are the same.", advice="Choose two different axes.")
    x_values, y_values = axes
    total = len(x_values) * len(y_values) * request.num_images
    if total > MAX_IMAGES:
        raise DarkroomError(f"The grid has {total:,} images; at most {MAX_IMAGES:,} are possible.", advice="Use fewer.")
    first = Cell(request.prompt, Weights("", request.adapters, request.backup))
    cells = [
        _cell(first, number, (column, x), (row, y), request)
        for number in range(request.num_images)
        for row, y in enumerate(y_values)
        for column, x in enumerate(x_values)
    ]
    order = list(dict.fromkeys(cell.weights for cell in cells))
    cells.sort(key=lambda cell: order.index(cell.weights))
    columns, rows = ([value.label for value in values] for values in axes)
    return SamplePlan(tuple(cells), tuple(columns), tuple(rows), request.num_images)


def _cell(first: Cell, number: int, x: tuple[int, AxisValue], y: tuple[int, AxisValue], request: SampleRequest) -> Cell:
    (column, x_value), (row, y_value) = x, y
    prompt = first.prompt.model_copy(update={"seed": (first.prompt.seed + number) % 2**63})
    cell = replace(first, prompt=prompt, number=number, column=column, row=row, labels=(x_value.label, y_value.label))
    # The axis of saves puts an adapter before the others, so that a strength is that of the save.
    for value in sorted((x_value, y_value), key=lambda v: not v.is_first):
        cell = value.apply(cell)
    return _expanded(cell, request)


def _expanded(cell: Cell, request: SampleRequest) -> Cell:
    folder = from_root(request.wildcards) if request.wildcards.strip() else None
    missing: Sequence[str] = ()
    texts = {}
    for name in ("prompt", "negative_prompt"):
        found = expand(getattr(cell.prompt, name), seed=cell.prompt.seed, folder=folder)
        texts[name], missing = found.text, (*missing, *found.missing)
    return replace(cell, prompt=cell.prompt.model_copy(update=texts), missing=tuple(missing))
