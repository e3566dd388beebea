"""A request for samples without a run, as the window sends it to the worker: JSON, without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from modules.config.codec import decode, encode
from modules.config.schema import Config
from modules.config.sections.evaluation import SamplePrompt
from modules.system.errors import DarkroomError


@dataclass(frozen=True, slots=True)
class AdapterChoice:
    """An adapter file and its strength."""

    path: str
    strength: float = 1.0


@dataclass(frozen=True, slots=True)
class AxisChoice:
    """An axis of a grid: the name of its record in `axes`, and its values as typed."""

    name: str
    values: str


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """What to sample: a config's base model and the first of its prompts, with adapters, embeddings and grid axes.

    Image n of `num_images` has the prompt's seed plus n. `backup` is the backup of a run whose weights replace those of
    the config; `run` is the run that the axis of saves takes them from. `folder` is where the images are written.
    """

    config: Config
    folder: str
    adapters: tuple[AdapterChoice, ...] = ()
    embeddings: tuple[str, ...] = ()
    num_images: int = 1
    x: AxisChoice | None = None
    y: AxisChoice | None = None
    wildcards: str = ""
    backup: str = ""
    run: str = ""
    number: int = 0

    @property
    def prompt(self) -> SamplePrompt:
        """The prompt to sample. Raises DarkroomError if there is none."""
        prompts = self.config.sampling.prompts
        if not prompts:
            raise DarkroomError("There is no prompt.", advice="Write a prompt.")
        return prompts[0]


def request_line(request: SampleRequest) -> str:
    """Return a request as one line of JSON."""
    axes = {name: [axis.name, axis.values] for name, axis in (("x", request.x), ("y", request.y)) if axis}
    return json.dumps(
        {
            "request": request.number,
            "config": encode(request.config),
            "folder": request.folder,
            "adapters": [[a.path, a.strength] for a in request.adapters],
            "embeddings": list(request.embeddings),
            "num_images": request.num_images,
            "wildcards": request.wildcards,
            "backup": request.backup,
            "run": request.run,
            **axes,
        }
    )


def request_in(line: str) -> SampleRequest | None:
    """Return the request of a line, or None for any other line."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or "request" not in data:
        return None
    return _request(data)


def _request(data: Mapping[str, Any]) -> SampleRequest:
    return SampleRequest(
        decode(data["config"]).config,
        str(data["folder"]),
        tuple(AdapterChoice(str(path), float(strength)) for path, strength in data["adapters"]),
        tuple(map(str, data["embeddings"])),
        int(data["num_images"]),
        AxisChoice(*data["x"]) if "x" in data else None,
        AxisChoice(*data["y"]) if "y" in data else None,
        wildcards=str(data["wildcards"]),
        backup=str(data["backup"]),
        run=str(data["run"]),
        number=int(data["request"]),
    )


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of one image: a base model (empty: the config's), adapters, and a backup whose weights replace it."""

    model: str = ""
    adapters: tuple[AdapterChoice, ...] = ()
    backup: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """One image to sample: its place in the grid, its prompt, and its weights; `labels` are those of its axes."""

    prompt: SamplePrompt
    weights: Weights
    labels: tuple[str, str] = ("", "")
    column: int = 0
    row: int = 0
    number: int = 0
    missing: tuple[str, ...] = field(default=())
