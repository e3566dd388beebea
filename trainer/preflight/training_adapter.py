"""Checks of the training adapter, from its header: that it is one of the base model, and can be taken away again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from modules.adapters.registry import adapter_labels
from modules.adapters.stored_header import StoredHeader, match_header, reason_if_broken, reason_if_outside
from modules.config.schema import Config
from modules.config.usage import uses_denoiser
from modules.estimate.passes import count
from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.identify import identify
from modules.formats.adapter_names import layers_in
from modules.formats.adapter_targets import AdapterTargets, fits
from modules.formats.adapter_types import can_act, depends_on_weight
from modules.formats.checkpoint_header import read_checkpoint_header
from modules.formats.headers import UnreadableFileError
from modules.memory.part_plan import FLOAT32_BYTES
from modules.system.paths import from_root
from modules.system.problem import Problem, shorten
from trainer.preflight.start_from import base_targets

_PATH = "model.training_adapter"
_CHOOSE = "Choose the training adapter of the base model, or leave it empty."
_OF_REPOSITORY = re.compile(r"\w[\w.-]*")  # the name of an owner, or of a repository


def problems_of_training_adapter(config: Config) -> Iterator[Problem]:
    """Yield why the training adapter cannot be used."""
    name = config.model.training_adapter.strip()
    if not name or not uses_denoiser(config):
        return
    path, shown = from_root(name), shorten(name, max_chars=200)
    file_kind = identify(path)
    if file_kind.facts.get("defect") == "missing":
        yield Problem(_PATH, f"{shown} does not exist.", advice=_advise_missing(name))
    elif file_kind.kind != "lora":
        yield Problem(_PATH, file_kind.explain(f"{shown} is not a LoRA."), advice=_CHOOSE)
    elif refusal := _refusal(config, path, file_kind, shown):
        yield refusal
    yield from _start_file(config)


def _advise_missing(name: str) -> str:
    """Return the advice for a file that is not there: ai-toolkit names it within a repository."""
    parts = name.split("/")
    is_in_repository = len(parts) > 2 and all(map(_OF_REPOSITORY.fullmatch, parts[:2]))
    is_in_repository = is_in_repository and not from_root(parts[0]).exists()  # else it is a path on this computer
    place = f" from https://huggingface.co/{parts[0]}/{parts[1]}" if is_in_repository else ""
    return f"Download {parts[-1] if place else 'it'}{place} and choose the file, or leave it empty."


def _start_file(config: Config) -> Iterator[Problem]:
    """Yield an error if the run keeps layers of its start file that depend on the weights, as its own may not."""
    name = config.adapter.start_from.strip()
    if not name or config.training.trains != "adapter" or config.adapter.other_layers != "keep":
        return
    try:
        layers = layers_in(read_checkpoint_header(from_root(name)).shapes)
    except (UnreadableFileError, OSError):  # the check of that file reports it
        return
    if layer := next((layer for layer, shapes in layers.items() if depends_on_weight(shapes)), ""):
        yield Problem(
            "adapter.start_from",
            f"The change of {layer} in {shorten(name, max_chars=200)} depends on the weights of the model, which "
            "contain the training adapter while it trains.",
            advice='Choose "Leave out" under Other layers, or remove the training adapter.',
        )


def training_adapter_bytes(config: Config) -> int:
    """Return the bytes of the training adapter's factors while images are sampled; 0 without one."""
    name = config.model.training_adapter.strip()
    if not name or not uses_denoiser(config):
        return 0
    try:
        return FLOAT32_BYTES * count(read_checkpoint_header(from_root(name)).shapes.values())
    except (UnreadableFileError, OSError):  # the check of the file reports it
        return 0


def _refusal(config: Config, path: Path, file_kind: FileKind, shown: str) -> Problem | None:
    """Return why a LoRA cannot be the training adapter of the base model; None where it can, or is not known."""
    matched = _match(config, path)
    if matched is None:
        is_other = file_kind.family not in ("", config.family.name)
        return (
            Problem(_PATH, f"{shown} is for another model family. {file_kind.sentence}", advice=_CHOOSE)
            if is_other
            else None
        )
    stored, targets = matched
    message, advice = reason_if_outside(shown, stored.unplaced, stored.layers, config.family.denoiser.name)
    if message:
        return Problem(_PATH, f"{message} {file_kind.sentence}", advice=advice)
    message, advice = reason_if_broken(shown, stored.layers)
    if message:
        return Problem(_PATH, message, advice=advice)
    weights = {(target.part, target.path): target.weight for target in targets.all}
    for (part, layer), shapes in stored.layers.items():
        if not fits(shapes, weights[part, layer]):
            message = f"{shown} does not fit the base model: {part}.{layer} has another size."
            return Problem(_PATH, message, advice=_CHOOSE)
        if depends_on_weight(shapes) or not can_act(shapes):
            message = (
                f"{shown} changes {part}.{layer} in a way that cannot be taken away for samples. {file_kind.sentence}"
            )
            return Problem(_PATH, message, advice=f"Choose {adapter_labels(needs_model=False)} without DoRA.")
    return None


def _match(config: Config, path: Path) -> tuple[StoredHeader, AdapterTargets] | None:
    targets = base_targets(config)
    try:
        return None if targets is None else (match_header(read_checkpoint_header(path), targets), targets)
    except UnreadableFileError:  # the check of the file reports it
        return None
