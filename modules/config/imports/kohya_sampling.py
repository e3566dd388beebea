"""kohya's samples, saves and training states."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from modules.config.imports.kohya_values import Args, flag_of, number_of, pop_first
from modules.config.migrations.tree_moves import Notes, Tree, put
from modules.system.problem import Problem

_SAMPLERS = {
    "ddim": "ddim",
    "euler": "euler",
    "k_euler": "euler",
    "euler_a": "euler_a",
    "k_euler_a": "euler_a",
    "dpmsolver++": "dpmpp",
    "dpmsolver": "dpmpp",
}
_OPTION = re.compile(r"\s--(\w)\s+")  # a prompt --n what not --w 512 --h 512 --d 1 --l 7.5 --s 28
_OPTIONS = {"w": "width_px", "h": "height_px", "d": "seed", "l": "guidance", "s": "steps"}
_MAX_FILE_BYTES = 1_000_000


def sampling_and_saving(given: Args, result: Tree, notes: Notes) -> None:
    """Convert how often samples and files are written, and the sample prompts."""
    put(result, "sampling.every", _period(given, "sample_every_n_epochs", "sample_every_n_steps"))
    put(result, "backup.save_every", _period(given, "save_every_n_epochs", "save_every_n_steps"))
    if flag_of(given.pop("save_state", False)):
        put(result, "backup.every", result["backup"]["save_every"])
    put(result, "backup.at_end", True)
    sampler = _SAMPLERS.get(str(pop_first(given, "sample_sampler")))
    prompts = [_prompt(line, sampler) for line in _lines(pop_first(given, "sample_prompts"), notes)]
    put(result, "sampling.prompts", prompts)


def _period(given: Args, epochs: str, steps: str) -> dict[str, Any]:
    in_epochs, in_steps = number_of(pop_first(given, epochs)), number_of(pop_first(given, steps))
    if in_epochs and in_epochs > 0:
        return {"n": in_epochs, "unit": "epoch"}
    if in_steps and in_steps > 0:  # sd-scripts counts optimizer updates, as we do
        return {"n": in_steps, "unit": "step"}
    return {"unit": "never"}


def _lines(value: object, notes: Notes) -> list[str]:
    """Return the lines of a prompt file, or of the text that kohya_ss stores in the config itself."""
    if not isinstance(value, str):
        return []
    text = value
    path = Path(value)
    try:
        if "\n" not in value and path.suffix in (".txt", ".toml", ".json"):
            text = path.read_text(encoding="utf-8-sig") if path.stat().st_size < _MAX_FILE_BYTES else ""
    except (OSError, ValueError):
        notes.append(Problem("sampling.prompts", f"The sample prompts in {value} could not be read.", "warning"))
        return []
    return [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def _prompt(line: str, sampler: str | None) -> dict[str, Any]:
    prompt, *options = _OPTION.split(f"{line} ")
    sample: dict[str, Any] = {"prompt": prompt.strip()} | ({"sampler": sampler} if sampler else {})
    for letter, text in zip(options[::2], options[1::2], strict=True):
        if letter == "n":
            sample["negative_prompt"] = text.strip()
        elif letter in _OPTIONS and (value := number_of(text)) is not None:
            sample[_OPTIONS[letter]] = value
    return sample
