"""The recipe of a run: everything that decided its result, as one JSON file that `train --recipe` repeats.

A recipe names files and never decides where something is written. It is read as what a stranger may have sent: each
entry has its type, unknown ones are refused, and its settings go through the reader of configs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from modules.settings.edit import reason_of
from modules.system.atomic import write_text
from modules.system.errors import DarkroomError
from modules.system.problem import quote, shorten
from modules.system.regular_files import FileTooLargeError, read_regular

RECIPE_FILE = "recipe.json"
VERSION = 2
"""Version 1 has no samples of files. A program refuses entries that it does not know, so a new one is a new version."""
MAX_LISTED = 10_000
"""Images that a recipe lists one by one; of more it has one digest for each concept."""
_MAX_BYTES = 64_000_000
_STRICT = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True, slots=True)
class ReadFile:
    """A file that the run read: the setting that names it, its name (in a folder with the path there), its digest.

    The digest is BLAKE2b with 20 bytes, as in cache keys; empty if it is not known. `sample` is one of the file's size
    and of blocks all over it, which takes milliseconds, so it is known when a run starts; empty in older recipes.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    setting: str
    name: str
    num_bytes: int
    digest: str = ""
    sample: str = ""


@dataclass(frozen=True, slots=True)
class ConceptImages:
    """The images of a concept as they were trained.

    `digest` is BLAKE2b over their names, contents and captions in the order of the run. `images` has the first digits
    of the digests of content and of captions by the name in the concept's folder; empty if there are too many. Of
    `num_by_size` images only the size in bytes is known instead of the content.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    name: str
    kind: str
    num_images: int
    digest: str
    num_by_size: int = 0
    images: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that computed the run: `device` is the GPU's name, or "cpu"; its numbers of threads and processes."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    device: str
    processor: str
    system: str
    driver: str = ""
    num_threads: int = 0
    num_processes: int = 1


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run: where it was written, after which step, and the digest of its tensors (`payload.py`)."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    path: str
    step: int
    num_tensors: int
    payload: str


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decided the result of a run.

    `config` are its settings as the run's config.json has them. `choices` are those that the run made itself, by name.
    `resumed_at` are the steps at which it was resumed, `origin` the run and step that a fork started from. `result` is
    None for a run that has not ended by itself.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    config: Mapping[str, Any]
    versions: Mapping[str, str]
    machine: Machine
    files: tuple[ReadFile, ...]
    concepts: tuple[ConceptImages, ...]
    choices: Mapping[str, str] = field(default_factory=dict)
    resumed_at: tuple[int, ...] = ()
    origin: str = ""
    result: Result | None = None
    recipe_version: int = VERSION


_READER = TypeAdapter(Recipe)


def write_recipe(run_dir: Path, recipe: Recipe) -> None:
    """Write the recipe of a run into its folder, atomically. Raises OSError."""
    newest = replace(recipe, recipe_version=VERSION)  # it may have been read from an older one
    text = json.dumps({"recipe_version": VERSION, **asdict(newest)}, indent=1, ensure_ascii=True)
    write_text(run_dir / RECIPE_FILE, text + "\n", follows_link=False)


def read_recipe(path: Path) -> Recipe:
    """Return the recipe in a file, or in the folder of a run. Raises DarkroomError for anything else."""
    file = path / RECIPE_FILE if path.is_dir() else path
    advice = f"A run writes its recipe into its folder, as {RECIPE_FILE}."
    try:
        text = read_regular(file, _MAX_BYTES)
    except FileTooLargeError as error:
        raise DarkroomError(
            f"{file} is not a recipe: it is larger than {_MAX_BYTES:,} bytes.", advice=advice
        ) from error
    except FileNotFoundError as error:
        raise DarkroomError(f"There is no recipe {file}.", advice=advice) from error
    except (OSError, ValueError) as error:
        raise DarkroomError(f"The recipe {file} cannot be read: {_reason(error)}.", advice=advice) from error
    _require_version(file, text)
    try:
        return _READER.validate_json(text)
    except ValidationError as error:
        raise DarkroomError(f"{file} is not a valid recipe: {_first_error(error)}.", advice=advice) from error


def known_recipe(run_dir: Path) -> Recipe | None:
    """Return the recipe in a run's folder; None without a readable one, as of an older version of the program."""
    try:
        return read_recipe(run_dir / RECIPE_FILE)
    except DarkroomError:
        return None


def _require_version(file: Path, text: bytes) -> None:
    """Raise DarkroomError if a text is not a JSON object with the version of a recipe that this program reads."""
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DarkroomError(f"{file} is not a recipe: it is not valid JSON.") from error
    number = data.get("recipe_version") if isinstance(data, dict) else None
    if not isinstance(number, int) or isinstance(number, bool):
        raise DarkroomError(
            f'{file} is not a recipe: it has no "recipe_version".',
            advice=f"A run writes its recipe into its folder, as {RECIPE_FILE}; train FILE takes a config.",
        )
    if not 1 <= number <= VERSION:
        raise DarkroomError(
            f"{file} is a recipe of version {quote(number)}; this program reads versions 1 to {VERSION}.",
            advice="Use the version of Darkroom that wrote it: the recipe names it.",
        )


def _first_error(error: ValidationError) -> str:
    """Return the first error of a recipe as half a sentence."""
    fault = error.errors(include_url=False)[0]
    place = shorten(".".join(map(str, fault["loc"])), max_chars=100)
    if fault["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return f"it has an unknown entry {quote(place)}"
    if fault["type"] in ("missing", "missing_argument"):
        return f"it has no entry {quote(place)}"
    reason = reason_of(fault)
    return f"{place or 'its content'} is {quote(fault.get('input'))}, but {reason}"


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)
