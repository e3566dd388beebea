"""What a model file is, from its headers alone: its kind, the programs that load it, its metadata. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.folder import folder_metadata
from modules.families.kinds.identify import identify_with_header
from modules.families.kinds.programs import who_loads
from modules.families.kinds.record import Loads
from modules.families.kinds.unrecognised import BROKEN


@dataclass(frozen=True, slots=True)
class Inspection:
    """A file or folder: its kind, the programs that load it, and its metadata."""

    path: Path
    kind: FileKind
    loads: tuple[Loads, ...]
    metadata: Mapping[str, str]

    @property
    def is_sound(self) -> bool:
        """Whether the file can be read and contains no code."""
        return self.kind.kind != BROKEN.name and "code" not in self.kind.facts

    @property
    def facts(self) -> tuple[tuple[str, str], ...]:
        """The facts about it, by their labels."""
        return tuple((name.replace("_", " "), value) for name, value in self.kind.facts.items())

    @property
    def shown_loads(self) -> tuple[Loads, ...]:
        """The programs to show: the main ones, and others that do not load it, for a reason that no main one has."""
        main = {(x.answer, x.note) for x in self.loads if x.is_main}
        return tuple(x for x in self.loads if x.is_main or (x.complete is False and (x.answer, x.note) not in main))


def inspect_file(path: Path) -> Inspection:
    """Return what a file or folder is; a file that cannot be read is one, too."""
    kind, header = identify_with_header(path)
    metadata = header.metadata if header is not None else folder_metadata(path, kind) if path.is_dir() else {}
    return Inspection(path, kind, tuple(who_loads(header, kind)), metadata)
