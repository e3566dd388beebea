"""The file that a denoiser is read from, in place of the base model's own: what it contains, and whether it fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from modules.config.quantized_parts import denoiser_source, quantized_parts
from modules.config.schema import Config
from modules.estimate.architecture import architecture_of
from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.identify import identify_with_header
from modules.families.kinds.registry import serves_as
from modules.families.parts.single_file.denoiser_file import denoiser_tensors, has_denoiser, packed_layers
from modules.families.spec import FamilySpec, PartSpec
from modules.formats.checkpoint_header import CheckpointHeader
from modules.formats.gguf_header import READABLE
from modules.formats.headers import UnreadableFileError
from modules.memory.part_plan import PartPlan
from modules.quantization.registry import ChosenFormat
from modules.system.errors import DarkroomError
from modules.system.paths import from_root
from modules.system.problem import Problem, cut, with_article
from trainer.preflight.passes import MALFORMED_CONFIG, passes_of

_PATH = "model.denoiser_file"


def problems_of_denoiser_file(config: Config) -> Iterator[Problem]:
    """Yield why the denoiser's file cannot be used, and whether it fits the denoiser's weight dtype."""
    part = config.family.denoiser
    name = config.model.denoiser_file.strip()
    if name:
        found, header = identify_with_header(from_root(name))
        problem = _refusal(config, found, header, name) or _misfit(config, part, found, header, name)
        if problem is not None:
            yield problem
            return
    yield from _weight_dtype(config, part)


def with_stored_bytes(config: Config, chosen: ChosenFormat, settings: Mapping[str, Any]) -> ChosenFormat | None:
    """Return a format that a file has stored with the bytes of its layers; other formats unchanged.

    None where the file cannot be read. `settings` is the denoiser's config.
    """
    if not chosen.format.is_stored:
        return chosen
    try:
        packed = packed_layers(config.family.name, from_root(denoiser_source(config)), settings)
    except (DarkroomError, OSError):  # the check of the file reports it
        return None
    return replace(chosen, stored={layer: t.end - t.start for layer, t in packed.items()}) if packed else None


def _refusal(config: Config, found: FileKind, header: CheckpointHeader | None, name: str) -> Problem | None:
    """Return why a file cannot replace the denoiser, by its kind alone."""
    spec = config.family
    shown = cut(name, max_chars=200)
    if "code" in found.facts:
        return Problem(_PATH, found.sentence, advice="Get it as .safetensors, or from another place.")
    if header is None:
        return _no_denoiser(spec, found, shown)
    if found.family and found.family != spec.name:
        message = f"{shown} has no {spec.denoiser.label} of {spec.label}. {found.sentence}"
        return Problem(_PATH, message, advice="Choose one of the base model's family.")
    if header.has_scaled_float8:
        message = f"{shown} is in scaled float8, which is not supported."
        return Problem(_PATH, message, advice="Choose the same model in float16, bfloat16 or plain float8.")
    if header.container == "gguf" and (unreadable := sorted(set(header.dtypes.values()) - READABLE)):
        message = f"{shown} contains weights in {', '.join(unreadable)}, which is not supported."
        return Problem(_PATH, message, advice="Choose a file in Q8_0, Q6_K, Q5_K or Q4_K.")
    return None


def _no_denoiser(spec: FamilySpec, found: FileKind, shown: str) -> Problem:
    label = spec.denoiser.label
    message = f"{shown} contains no {label}. {found.sentence}"
    advice = f"Choose a .gguf or .safetensors file of {with_article(label)}, or leave it empty."
    return Problem(_PATH, message, advice=advice)


def _misfit(
    config: Config, part: PartSpec, found: FileKind, header: CheckpointHeader | None, name: str
) -> Problem | None:
    """Return an error where the tensors of a file do not match the base model's denoiser.

    A denoiser of a size that was never published is hard to tell from its names; the base model itself decides.
    """
    architecture = architecture_of(config.model.base_model, config.model.family.name)
    has_one = header is not None and has_denoiser(config.family.name, header.shapes)
    if header is None or not has_one or (architecture is None and not serves_as(found, "denoiser")):
        return _no_denoiser(config.family, found, cut(name, max_chars=200))
    if architecture is None:
        return None
    try:
        expected = passes_of(config.family, architecture.configs).weights(part.name, PartPlan()).own
        settings = architecture.configs[part.name]
        tensors = denoiser_tensors(config.family.name, header.shapes, settings, where=Path(name).name)
    except DarkroomError as error:
        return Problem(_PATH, error.message, advice=error.advice)
    except MALFORMED_CONFIG:  # the check of the model reports it
        return None
    shapes = {ours: stored.slot.shape_of(header.shapes[stored.name]) for ours, stored in tensors.items()}
    wrong = [n for n, shape in expected.items() if n in shapes and shapes[n] != shape]
    if not wrong:
        return None
    return Problem(
        _PATH,
        f"The {part.label} in {Path(name).name} does not fit the base model's: {len(wrong)} of its weights have other "
        f"shapes; the first is {wrong[0]}: {shapes[wrong[0]]} where {expected[wrong[0]]} is expected.",
        advice=f"Choose {with_article(part.label)} of the base model's family and variant.",
    )


def _weight_dtype(config: Config, part: PartSpec) -> Iterator[Problem]:
    chosen = quantized_parts(config).formats.get(part.name)
    is_stored = chosen is not None and chosen.format.is_stored
    source = denoiser_source(config)
    container = _container(source)
    if is_stored and chosen is not None and container != "gguf":
        file = cut(source, max_chars=200)
        what = f"{file} is not a GGUF file" if config.model.denoiser_file else "no GGUF file is set"
        yield Problem(
            f"parts.{part.name}.dtype",
            f"The weight dtype of {part.label} is {chosen.format.label}, but {what}.",
            advice="Choose a GGUF file as the denoiser file, or another weight dtype.",
        )
    elif container == "gguf" and not is_stored:
        yield Problem(
            f"parts.{part.name}.dtype",
            f"The weights of {Path(source).name} are unpacked, which takes more memory than the file.",
            "info",
            "Set the weight dtype to GGUF to keep them packed.",
        )


def _container(name: str) -> str:
    try:
        header = identify_with_header(from_root(name))[1]
    except (UnreadableFileError, OSError, ValueError):
        return ""
    return header.container if header is not None else ""
