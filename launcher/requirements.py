"""The requirements in pyproject.toml, the installed packages, and the difference.

Reads the installed metadata itself: importlib.metadata takes five times as long for the hundred packages of
a full environment, and this runs at every start.
"""

import importlib
import os
import re
import sys
import tomllib
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from launcher.messages import Failure, Sentence

_SEEDS = frozenset({"pip", "setuptools", "wheel"})
_VERSION = re.compile(r"(\d+!)?\d+(\.\d+)*((a|b|rc|\.post|\.dev)\d+)*(\+[a-z0-9.]+)?")
_OF_WHEEL = re.compile(r"[^/]+\.dist-info/METADATA")

Package = str
"""A package's normalised name: lower case, words joined by hyphens."""


class InstalledPackage(NamedTuple):
    """One installed package, from its metadata."""

    version: str
    requires: tuple[str, ...]
    folder: Path


class UnmetRequirement(NamedTuple):
    """A requirement that the environment does not meet; `held` is the installed version, if any."""

    requirement: str
    package: Package
    held: str | None


def normalise(name: str) -> Package:
    """The normalised spelling of a package's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def name_of(requirement: str) -> Package:
    """The package that a requirement line names."""
    return normalise(re.split(r"[^\w.-]", requirement.strip(), maxsplit=1)[0])


def project_requirements(root: Path, extras: Iterable[str]) -> list[str]:
    """The project's dependencies, and the requirements of some extras. Raises `Failure` for an incomplete project."""
    dependencies, by_extra = _requirements_in(root)
    return [*dependencies, *(line for extra in extras for line in by_extra.get(extra, []))]


def optional_requirements(root: Path) -> list[str]:
    """The requirements of all extras except the development's, then the project's dependencies. Raises `Failure`."""
    dependencies, by_extra = _requirements_in(root)
    return [*(line for extra, lines in by_extra.items() if extra != "dev" for line in lines), *dependencies]


def _requirements_in(root: Path) -> tuple[list[str], dict[str, list[str]]]:
    """The dependencies of the project, and the requirements of each extra."""
    path = root / "pyproject.toml"
    try:
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        return project["dependencies"], project.get("optional-dependencies", {})
    except (OSError, ValueError, KeyError) as error:
        raise Failure(Sentence.INCOMPLETE, path=path, reason=error, command="git checkout .") from error


def tested_versions(root: Path) -> dict[Package, str]:
    """The exact versions in constraints.txt."""
    path = root / "constraints.txt"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise Failure(Sentence.INCOMPLETE, path=path, reason=error, command="git checkout .") from error
    pairs = (line.partition("==") for line in lines if "==" in line and not line.startswith("#"))
    return {normalise(name.strip()): version.strip() for name, _, version in pairs}


def installed_packages(paths: Sequence[str] | None = None) -> dict[Package, InstalledPackage]:
    """Every package on these import paths (by default this process' own)."""
    packages: dict[Package, InstalledPackage] = {}
    for folder in sys.path if paths is None else paths:
        for entry in _metadata_folders(folder):
            head = _head(entry)
            if head is not None and head.get("Name") and head.get("Version"):
                package = InstalledPackage(head["Version"][0], tuple(head.get("Requires-Dist", ())), entry)
                packages.setdefault(normalise(head["Name"][0]), package)
    return packages


def environment_state() -> str:
    """This Python and the packages on its import paths; equal as long as none is installed, changed or removed."""
    folders = (entry for folder in sys.path for entry in _metadata_folders(folder))
    return "\n".join([sys.version, *sorted(f"{entry} {_changed_at(entry)}" for entry in folders)])


def _changed_at(entry: Path) -> int:
    try:
        return entry.stat().st_mtime_ns
    except OSError:  # such as a link to a folder that is gone
        return 0


def of_wheels(folder: Path) -> dict[Package, InstalledPackage]:
    """Every package that a folder has a wheel of."""
    import zipfile  # here, as `csv` below: a start that installs nothing takes a fifth less without them

    packages: dict[Package, InstalledPackage] = {}
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as content:
            # A wheel may contain the metadata of copied packages, as setuptools does: deeper in its folders.
            metadata = next(name for name in content.namelist() if _OF_WHEEL.fullmatch(name))
            head = _fields(content.read(metadata).decode("utf-8", "replace").splitlines())
        packages[normalise(head["Name"][0])] = InstalledPackage(
            head["Version"][0], tuple(head.get("Requires-Dist", ())), wheel
        )
    return packages


def unmet_requirements(
    requirements: Iterable[str],
    present: Mapping[Package, InstalledPackage],
    conditions: Mapping[str, str] = types.MappingProxyType({}),
) -> list[UnmetRequirement]:
    """Every requirement that is not met, following the requirements of the installed packages.

    `conditions` are the values of environment markers on another machine.
    """
    parse = _parser()
    if parse is None:  # no pip in this environment yet, so nothing can be checked: everything counts as missing
        return [UnmetRequirement(line, name_of(line), None) for line in requirements]
    missing: dict[str, UnmetRequirement] = {}
    followed: set[tuple[Package, str]] = set()
    direct = list(requirements)
    to_do = [(line, "") for line in direct]
    while to_do:
        line, extra = to_do.pop()
        if not extra and re.search(r"\bextra\s*==", line):
            continue  # most of them: evaluating the marker would take a hundred times as long for the same result
        try:
            requirement = parse(line)
        except ValueError:
            if line in direct:
                raise
            continue  # old packages contain invalid lines; pip ignores them too
        if requirement.marker is not None and not requirement.marker.evaluate({**conditions, "extra": extra}):
            continue
        package = normalise(requirement.name)
        there = present.get(package)
        if there is None or not requirement.specifier.contains(there.version, prereleases=True):
            missing[line] = UnmetRequirement(line, package, there.version if there else None)
            continue
        for name in ("", *requirement.extras):
            if (package, name) not in followed:
                followed.add((package, name))
                to_do += [(further, name) for further in there.requires]
    return list(missing.values())


def damaged_packages(present: Mapping[Package, InstalledPackage]) -> list[Package]:
    """The packages with missing files, as left by an installation that was killed."""
    return [name for name, package in present.items() if not _is_whole(package.folder)]


def seeds_that_nobody_needs(present: Mapping[Package, InstalledPackage]) -> frozenset[Package]:
    """The packages that a new environment begins with, unless another installed package requires them.

    Python 3.11's venv begins with a setuptools that is too old for torch: pinned to it, no installation could succeed.
    """
    others = (package for name, package in present.items() if name not in _SEEDS)
    needed = {name_of(line) for package in others for line in package.requires if "extra ==" not in line}
    return _SEEDS & set(present) - needed


def pins(
    tested: Mapping[Package, str], present: Mapping[Package, InstalledPackage], kept: Iterable[Package]
) -> list[str]:
    """The lines of a constraints file: tested versions, except for packages that keep their version."""
    stay = {name: present[name].version for name in kept if name in present}
    versions = dict(tested) | {name: version for name, version in stay.items() if _VERSION.fullmatch(version)}
    return [f"{name}=={version}" for name, version in sorted(versions.items())]


def _parser() -> Any:
    for place in ("pip._vendor.packaging.requirements", "packaging.requirements"):
        try:
            return importlib.import_module(place).Requirement
        except ImportError:
            continue
    return None


def _metadata_folders(folder: str) -> list[Path]:
    try:
        with os.scandir(folder or ".") as entries:
            names = [entry.path for entry in entries if entry.name.endswith((".dist-info", ".egg-info"))]
    except OSError:
        return []
    return [Path(name) for name in names]


def _head(folder: Path) -> dict[str, list[str]] | None:
    """The header of a package's metadata: the lines before the first empty line."""
    path = folder / ("METADATA" if folder.suffix == ".dist-info" else "PKG-INFO")
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            return _fields(lines)
    except OSError:
        return None


def _fields(lines: Iterable[str]) -> dict[str, list[str]]:
    fields: dict[str, list[str]] = {}
    for line in lines:
        if not line.strip():
            break
        key, _, value = line.partition(":")
        fields.setdefault(key, []).append(value.strip())
    return fields


def _is_whole(folder: Path) -> bool:
    if folder.suffix != ".dist-info":
        return True
    if not (folder / "INSTALLER").is_file():  # the last file but one that pip writes
        return False
    import csv

    try:
        with (folder / "RECORD").open(encoding="utf-8", newline="") as rows:
            sizes = [(row[0], int(row[2])) for row in csv.reader(rows) if len(row) == 3 and row[2].isdigit()]
        return all((folder.parent / name).stat().st_size == size for name, size in sizes)
    except OSError:
        return False
