"""How the tensors of two results differ."""

from __future__ import annotations

from pathlib import Path

import torch

from modules.formats.headers import UnreadableFileError
from modules.formats.safetensors_io import read_safetensors
from modules.system.errors import DarkroomError
from modules.system.problem import count
from trainer.run_folder.payload import payload_of, weight_files
from trainer.run_folder.recipe import Result


def compare_results(before: Result, now: Path) -> str:
    """Return in a sentence which tensors of a result differ from a recipe's result, and by how much.

    That needs the file of the recipe, unchanged. Raises nothing for one that is gone or cannot be read.
    """
    place = Path(before.path)
    try:
        if payload_of(place)[1] != before.payload:
            return f"{place} has changed since, so the tensors cannot be compared."
        return _compare(_tensors_of(place), _tensors_of(now))
    except (OSError, ValueError, UnreadableFileError, DarkroomError):
        return f"{place} is not there any more, so the tensors cannot be compared."


def _tensors_of(result: Path) -> dict[str, torch.Tensor]:
    return {
        f"{place}:{name}".removeprefix(":"): tensor
        for place, file in weight_files(result).items()
        for name, tensor in read_safetensors(file)[0].items()
    }


def _compare(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> str:
    if names := sorted(one.keys() ^ other.keys()):
        return f"{count(len(names), 'tensor')} are in one of the results only, the first is {names[0]}."
    shapes = [n for n in one if one[n].shape != other[n].shape or one[n].dtype != other[n].dtype]
    if shapes:
        return f"{count(len(shapes), 'tensor')} have another shape or dtype, the first is {shapes[0]}."
    largest, where, num_differing = 0.0, "", 0
    for name, tensor in one.items():
        if torch.equal(tensor, other[name]):
            continue
        num_differing += 1
        by = float((tensor.to(torch.float64) - other[name].to(torch.float64)).abs().max())
        if by >= largest:
            largest, where = by, name
    return f"{num_differing:,} of {count(len(one), 'tensor')} differ, by {largest:.3g} at most ({where})."
