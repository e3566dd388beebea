"""The places at the side of the file dialog, and its recent folders."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

_MOUNT_PARENTS = ("/media", "/mnt", "/run/media", "/Volumes")


@dataclass(frozen=True, slots=True)
class Place:
    """A folder to go to, its label, and the heading above it."""

    label: str
    folder: Path
    heading: str = ""


def places(known: Sequence[tuple[str, Path]], recent: Iterable[str], disks: Iterable[Path]) -> tuple[Place, ...]:
    """Return the places that exist, each folder once: the user's, the known ones, the disks, then the recent ones."""
    users = [
        ("Home", Path.home()),
        ("Pictures", platformdirs.user_pictures_path()),
        ("Downloads", platformdirs.user_downloads_path()),
    ]
    groups: tuple[tuple[str, list[tuple[str, Path]]], ...] = (
        ("Places", [*users, *known]),
        ("Disks", [(disk.name or str(disk), disk) for disk in disks]),
        ("Recent folders", [(Path(name).name or name, Path(name)) for name in recent]),
    )
    seen: set[Path] = set()
    result: list[Place] = []
    for heading, rows in groups:
        for label, folder in rows:
            if folder not in seen and folder.is_dir():
                seen.add(folder)
                result.append(Place(label, folder, heading))
    return tuple(result)


def mounted_disks(*, mounts_file: Path = Path("/proc/mounts")) -> tuple[Path, ...]:
    """Return the roots of the disks of this machine: drives, volumes, and what is mounted where disks usually are."""
    if sys.platform == "win32":
        return tuple(d for d in (Path(f"{letter}:\\") for letter in "CDEFGHIJKLMNOPQRSTUVWXYZAB") if d.exists())
    if mounts_file.exists():
        return (Path("/"), *_usual_mounts(mounts_file.read_text(encoding="utf-8", errors="replace")))
    volumes = Path("/Volumes")
    return (Path("/"), *sorted(volumes.iterdir())) if volumes.is_dir() else (Path("/"),)


def _usual_mounts(text: str) -> Iterator[Path]:
    for line in text.splitlines():
        fields = line.split(" ")
        if len(fields) > 1:
            point = fields[1].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
            if any(point.startswith(f"{parent}/") for parent in _MOUNT_PARENTS):
                yield Path(point)
