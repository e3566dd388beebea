"""Concepts for folders and files that are added, a few at a time: a thousand at once would stall the window. No Tk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from modules.data.archives import ARCHIVE_SUFFIXES
from modules.data.concept import Concept
from modules.system.paths import as_config_path

_AT_ONCE = 50


def adding(
    paths: Iterable[Path], *, made: Callable[[int, Concept], object], add: Callable[[Sequence[Concept]], object]
) -> Iterator[None]:
    """Make a concept for each folder and archive, some per `next`, and add all with the last; another file stands for
    its folder. `made` is called with the number of each new concept.
    """
    new: dict[Path, Concept] = {}
    for number, path in enumerate(paths, 1):
        # `Path.is_dir` takes five times as long.
        is_own = os.path.isdir(path) or path.suffix.lower() in ARCHIVE_SUFFIXES  # noqa: PTH112
        source = path if is_own else path.parent
        if source not in new:
            new[source] = concept = Concept(path=as_config_path(source))
            made(len(new) - 1, concept)
        if number % _AT_ONCE == 0:
            yield
    if new:
        add(tuple(new.values()))
