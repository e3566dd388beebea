"""A copy of a result in the folders of another program: each file in its folder, and no other file replaced unasked."""

from __future__ import annotations

import filecmp
from dataclasses import dataclass, replace
from pathlib import Path

from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.registry import kept_as
from modules.model_finder.programs import ProgramFolder
from modules.system.atomic import copy_file
from modules.system.errors import DarkroomError
from trainer.run_folder.result import embeddings_folder, model_files
from ui.loop.background import Report


@dataclass(frozen=True, slots=True)
class ProgramCopy:
    """The files of a result, each with its place in a program."""

    files: tuple[tuple[Path, Path], ...]

    @property
    def destination(self) -> Path:
        """The place of the result itself."""
        return self.files[0][1]

    @property
    def is_there(self) -> bool:
        """Whether the program has all files already. Their content is compared: for a background thread."""
        return all(_is_equal(source, place) for source, place in self.files)

    @property
    def taken(self) -> tuple[Path, ...]:
        """The places at which there is another file. Their content is compared: for a background thread."""
        return tuple(place for source, place in self.files if place.exists() and not _is_equal(source, place))

    def with_free_names(self) -> ProgramCopy:
        """Return the copy with the first number in its names for which all places are free."""
        number = 2
        while True:
            files = tuple((s, p.with_name(f"{p.stem}-{number}{p.suffix}")) for s, p in self.files)
            if not any(place.exists() for _, place in files):
                return replace(self, files=files)
            number += 1

    def write(self, report: Report) -> None:
        """Copy the files, each atomically; `report` is called with the bytes so far. Raises OSError."""
        needed = [(source, place) for source, place in self.files if not _is_equal(source, place)]
        total, done = sum(source.stat().st_size for source, _ in needed), 0

        def count_bytes(num_bytes: int) -> None:
            nonlocal done
            done += num_bytes
            report("", done, total)

        for source, place in needed:
            copy_file(source, place, count_bytes)


def copy_into(program: ProgramFolder, result: Path, kind: FileKind) -> ProgramCopy:
    """Return the copy of a result for a program. Raises DarkroomError if the program has no folder for its kind."""
    sort = kept_as(kind)
    folder = program.place_for(sort) if sort is not None else None
    embeddings = program.place_for("embeddings")
    if folder is None:
        raise DarkroomError(
            f"{program.program.label} has no folder for {result.name}. {kind.sentence}",
            advice="Convert it to a single file on the Tools page.",
        )
    files = []
    for file in model_files(result):
        is_embedding = file.parent == embeddings_folder(result)
        files.append((file, (embeddings if is_embedding and embeddings is not None else folder) / file.name))
    return ProgramCopy(tuple(files))


def _is_equal(source: Path, place: Path) -> bool:
    try:
        return filecmp.cmp(source, place, shallow=False)
    except OSError:
        return False
