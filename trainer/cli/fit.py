"""--fit: the settings of a run that fit a card, shown as a table, for `check` and `train`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from modules.config.codec import save_file
from modules.config.schema import Config
from modules.estimate.disk import free_memory
from modules.estimate.run import in_gb
from modules.system import hardware
from modules.system.errors import DarkroomError
from modules.system.gpu_memory import gpu_memory
from modules.system.paths import from_caller
from trainer.data.datasets import datasets_of
from trainer.data.hub_datasets import with_local_folders
from trainer.preflight.estimates import sizes_of
from trainer.preflight.fit import Fit, describe_fit, fit

_AUTO = "auto"
_UNITS = {"": 1e9, "gb": 1e9, "g": 1e9, "gib": 1 << 30, "mb": 1e6, "mib": 1 << 20}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")


def add_fit_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --fit and --save."""
    parser.add_argument(
        "--fit",
        metavar="SIZE",
        default="",
        help="show the fastest settings that fit a card of this size, such as 8GB, or the memory that is free now "
        "(auto); the config file stays as it is",
    )
    parser.add_argument("--save", metavar="FILE", default="", help="with --fit: save the changed config in this file")


def fitted(config: Config, options: argparse.Namespace, *, is_run: bool = False) -> tuple[Fit, str]:
    """Return what fits the card of --fit, and the table of changes; save the changed config where --save says.

    `is_run`: the run is to start on this machine, so its device counts whatever the size.
    Raises DarkroomError for an invalid size, without an estimate, and if a file cannot be written.
    """
    card_bytes, is_here = card_of(options.fit, config)
    datasets = datasets_of(with_local_folders(config))
    sizes = sizes_of(datasets.training, datasets.validation)
    found = fit(config, sizes, card_bytes=card_bytes, is_this_card=is_here or is_run)
    if found is None:
        raise DarkroomError(
            "The memory of this run cannot be estimated, so --fit has nothing to choose by.",
            advice="It needs images and a base model whose shapes are known. check lists what is wrong.",
        )
    lines = list(fit_lines(found))
    if options.save:
        lines.append(_saved(found.config, from_caller(options.save)))
    return found, "".join(f"{line}\n" for line in lines)


def card_of(text: str, config: Config) -> tuple[int, bool]:
    """Return the bytes of a size such as "8GB", and whether it is what is free on this machine ("auto").

    Raises DarkroomError for anything else.
    """
    if text.strip().lower() == _AUTO:
        return free_here(config), True
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None or match[2] not in _UNITS or float(match[1]) <= 0:
        raise DarkroomError(f"--fit {text} is not a size of memory.", advice="Write it as 8GB, or auto.")
    return round(float(match[1]) * _UNITS[match[2]]), False


def free_here(config: Config) -> int:
    """Return the free bytes of the device that a config trains on: of its GPU, or of the computer's memory on a CPU.

    Raises DarkroomError for a GPU whose memory no tool reports.
    """
    gpu = gpu_memory(config.general.train_device)
    if gpu is not None:
        return gpu.free_bytes
    if hardware.here().kind_of(config.general.train_device) in ("cpu", "mps"):
        return free_memory()
    raise DarkroomError(
        f"The free memory of the device {config.general.train_device} is not known.",
        advice="Give the size of the card, such as --fit 8GB.",
    )


def fit_lines(found: Fit) -> Iterator[str]:
    """Yield the changes as a table, then the outcome."""
    if found.changes:
        rows = [("Change", "Memory", "Time of a step")]
        for change in found.changes:
            words = f"{change.move.words[:1].upper()}{change.move.words[1:]} ({change.move.path})"
            rows.append((words, bytes_words(change.saved_bytes), factor_words(change.time_factor)))
        total = ("All of them", bytes_words(found.before_bytes - found.after_bytes), factor_words(found.time_factor))
        widths = [max(len(row[i]) for row in [*rows, total]) for i in range(3)]
        for row in (*rows, total):
            yield "  ".join((row[0].ljust(widths[0]), row[1].rjust(widths[1]), row[2].rjust(widths[2])))
    yield describe_fit(found)


def fit_as_json(found: Fit) -> dict[str, Any]:
    """Return what fits as JSON values: the new values by path, and what each change saves and costs."""
    return {
        "fits": found.fits,
        "card_bytes": found.card_bytes,
        "limit_bytes": found.limit_bytes,
        "before_bytes": found.before_bytes,
        "after_bytes": found.after_bytes,
        "time_factor": found.time_factor,
        "words": describe_fit(found),
        "changes": [
            {"values": dict(c.move.values), "saved_bytes": c.saved_bytes, "time_factor": c.time_factor}
            for c in found.changes
        ],
    }


def bytes_words(saved: int) -> str:
    """Return the bytes that a change saves, or adds, as text."""
    if abs(saved) < 10_000_000:
        return "the same"
    return f"-{in_gb(saved)}" if saved > 0 else f"+{in_gb(-saved)}"


def factor_words(factor: float) -> str:
    """Return the factor on a step's time as text."""
    return "the same" if 0.995 < factor < 1.005 else f"x {factor:.2f}"


def _saved(config: Config, file: Path) -> str:
    try:
        kept = save_file(config, file)
    except OSError as error:
        message = f"The config {file} cannot be written: {error.strerror or error}."
        raise DarkroomError(message, advice="Choose another file with --save.") from error
    return f"Saved as {file}." + (f" The file before is kept as {kept}." if kept else "")
