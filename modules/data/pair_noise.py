"""The noises that the images of a pair were sampled from, as seeds in a folder next to the pair's own folders."""

from __future__ import annotations

from pathlib import Path
from typing import TypeGuard

from modules.system.regular_files import read_json_object

CHOSEN, REJECTED = "chosen", "rejected"
_FOLDER, _HIGHEST = "noise", 2**63
_MAX_BYTES = 10_000


def noise_file(chosen: Path) -> Path:
    """Return the file next to the folders of a pair with the seeds of the noises that its images were sampled from."""
    return chosen.parent.parent / _FOLDER / f"{chosen.stem}.json"


def noise_seeds(chosen: Path) -> tuple[int, int] | None:
    """Return the seeds of the noises that the chosen and the rejected image of a pair were sampled from.

    None if they are not known, as of images that were not sampled by a run of this program.
    """
    content = read_json_object(noise_file(chosen), _MAX_BYTES) or {}
    chosen_seed, rejected_seed = map(content.get, (CHOSEN, REJECTED))
    return (chosen_seed, rejected_seed) if is_seed(chosen_seed) and is_seed(rejected_seed) else None


def is_seed(value: object) -> TypeGuard[int]:
    """Return whether a value of a file can be the seed of a generator."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _HIGHEST
