"""The sample prompts of kohya's scripts: a text or a file with a prompt and its options in each line, JSON, or TOML."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from modules.config.imports.kohya_values import Args, number_of
from modules.config.migrations.tree_moves import Notes
from modules.families.spec import FamilySpec
from modules.sampling.registry import SAMPLERS
from modules.system.problem import Problem
from modules.system.regular_files import read_regular

_SAMPLERS = {
    "ddim": "ddim",
    "euler": "euler",
    "k_euler": "euler",
    "euler_a": "euler_a",
    "k_euler_a": "euler_a",
    "dpmsolver++": "dpmpp",
    "dpmsolver": "dpmpp",
}
_OPTION = re.compile(r"\s--(\w+)(?=\s)")  # a prompt --n what not --w 512 --h 512 --d 1 --l 7.5 --s 28
# The options of a line, by their names in JSON and TOML. Others, such as `fs` and `frame_count`, are ignored.
_NAMES = {
    **{"n": "negative_prompt", "w": "width", "h": "height", "d": "seed", "s": "sample_steps", "l": "scale"},
    **{"g": "guidance_scale", "ss": "sample_sampler", "cfg_scale": "scale"},
}
_FIELDS = {"width": "width_px", "height": "height_px", "seed": "seed", "sample_steps": "steps"}
_MAX_FILE_BYTES, _MAX_DOTS = 1_000_000, 5_000


def sample_prompts(value: object, sampler: object, family: FamilySpec, notes: Notes) -> list[dict[str, Any]]:
    """Return our sample prompts for the text or the path of `sample_prompts` and the sampler of all.

    `guidance_scale` is the guidance scale that a model reads as an input, `scale` that of classifier-free guidance.
    """
    fields = _FIELDS | {"guidance_scale" if family.guidance == "embedded" else "scale": "guidance"}
    prompts = []
    for item in _items(value, notes):
        given = {_NAMES.get(key, key): text for key, text in item.items()}
        sample: dict[str, Any] = {"prompt": str(given.get("prompt", "")).strip()}
        if ours := _sampler(given.get("sample_sampler", sampler), family):
            sample["sampler"] = ours
        if text := str(given.get("negative_prompt") or "").strip():
            sample["negative_prompt"] = text
        for key, field in fields.items():
            if (number := number_of(given.get(key))) is not None:
                sample[field] = number
        prompts.append(sample)
    return prompts


def _sampler(name: object, family: FamilySpec) -> str:
    """Return our name of a sampler; empty for one that the family lacks, which sd-scripts ignores, too."""
    ours = _SAMPLERS.get(str(name), "")
    return ours if ours and SAMPLERS[ours].supports(family.process.predictions) else ""


def _items(value: object, notes: Notes) -> list[Args]:
    """Return the settings of each prompt of a file, or of the text that kohya_ss stores in the config itself."""
    if not isinstance(value, str):
        return []
    path = Path(value)
    if "\n" in value or path.suffix not in (".txt", ".toml", ".json"):
        return list(_of_lines(value))
    try:
        text = read_regular(path, _MAX_FILE_BYTES).decode("utf-8-sig")
        return list(_of_lines(text) if path.suffix == ".txt" else _of_entries(_entries(text, path.suffix)))
    except (OSError, ValueError, RecursionError):
        notes.append(Problem("sampling.prompts", f"The sample prompts in {value} could not be read.", "warning"))
        return []


def _of_lines(text: str) -> Iterator[Args]:
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            yield _of_line(line.strip())


def _of_line(line: str) -> Args:
    prompt, *options = _OPTION.split(f"{line} ")
    return {name.lower(): text.strip() for name, text in zip(options[::2], options[1::2], strict=True)} | {
        "prompt": prompt
    }


def _entries(text: str, suffix: str) -> list[Any]:
    """Return the prompts of a JSON list, or of TOML: `[[prompt.subset]]` with what `[prompt]` states for all.

    Raises ValueError for other content.
    """
    if suffix == ".toml" and text.count(".") > _MAX_DOTS:  # the time of tomllib grows with the square of a key's parts
        raise ValueError("The file has too many dots.")
    raw = tomllib.loads(text) if suffix == ".toml" else json.loads(text)
    common: Mapping[str, Any] = {}
    if isinstance(raw, dict):
        shared = raw.get("prompt")
        common = shared if isinstance(shared, dict) else {}
        raw = common.get("subset")
    if not isinstance(raw, list):
        raise ValueError("The file has no list of prompts.")
    return [{**common, **entry} if isinstance(entry, dict) else entry for entry in raw]


def _of_entries(entries: list[Any]) -> Iterator[Args]:
    for entry in entries:
        if isinstance(entry, dict):
            yield entry
        elif isinstance(entry, str) and entry.strip():
            yield _of_line(entry.strip())
