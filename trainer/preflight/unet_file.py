"""The file that a UNet is read from, in place of the base model's own: what it contains, and whether it fits."""

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
from modules.families.parts.single_file.unet_file import has_unet, packed_layers, unet_names
from modules.families.spec import PartSpec
from modules.formats.checkpoint_header import CheckpointHeader
from modules.formats.gguf_header import READABLE
from modules.formats.headers import UnreadableFileError
from modules.memory.part_plan import PartPlan
from modules.quantization.spec import ChosenFormat
from modules.system.errors import DarkroomError
from modules.system.paths import from_root
from modules.system.problem import Problem, cut
from trainer.preflight.passes import MALFORMED_CONFIG, passes_of

_PATH = "model.denoiser_file"


def problems_of_unet_file(config: Config) -> Iterator[Problem]:
    """Yield why the UNet file cannot be used, and whether it fits the UNet's weight dtype."""
    part = next(p for p in config.family.parts if p.role == "denoiser")
    name = config.model.denoiser_file.strip()
    if name:
        found, header = identify_with_header(from_root(name))
        problem = _refusal(config, found, header, name) or _misfit(config, part, found, header, name)
        if problem is not None:
            yield problem
            return
    yield from _weight_dtype(config, part)


def with_stored_bytes(config: Config, chosen: ChosenFormat, unet: Mapping[str, Any]) -> ChosenFormat | None:
    """Return a format that a file has stored with the bytes of its layers; other formats unchanged.

    None where the file cannot be read. `unet` is the UNet's config.
    """
    if not chosen.format.is_stored:
        return chosen
    try:
        packed = packed_layers(from_root(denoiser_source(config)), unet)
    except (DarkroomError, OSError):  # the check of the file reports it
        return None
    return replace(chosen, stored={layer: t.end - t.start for layer, t in packed.items()}) if packed else None


def _refusal(config: Config, found: FileKind, header: CheckpointHeader | None, name: str) -> Problem | None:
    """Return why a file cannot replace the UNet, by its kind alone."""
    spec = config.family
    shown = cut(name, max_chars=200)
    if "code" in found.facts:
        return Problem(_PATH, found.sentence, advice="Get it as .safetensors, or from another place.")
    if header is None:
        return _no_unet(found, shown)
    if found.family and found.family != spec.name:
        message = f"{shown} has no UNet of {spec.label}. {found.sentence}"
        return Problem(_PATH, message, advice="Choose one of the base model's family.")
    if header.container == "gguf" and (unreadable := sorted(set(header.dtypes.values()) - READABLE)):
        message = f"{shown} contains weights in {', '.join(unreadable)}, which is not supported."
        return Problem(_PATH, message, advice="Choose a file in Q8_0, Q6_K, Q5_K or Q4_K.")
    return None


def _no_unet(found: FileKind, shown: str) -> Problem:
    message = f"{shown} contains no UNet. {found.sentence}"
    return Problem(_PATH, message, advice="Choose a .gguf or .safetensors file of a UNet, or leave it empty.")


def _misfit(
    config: Config, part: PartSpec, found: FileKind, header: CheckpointHeader | None, name: str
) -> Problem | None:
    """Return an error where the tensors of a file are not those of the base model's UNet.

    A UNet of a size that was never published is hard to tell from its names; the base model itself decides.
    """
    architecture = architecture_of(config.model.base_model, config.model.family.name)
    if header is None or not has_unet(header.shapes) or (architecture is None and not serves_as(found, "denoiser")):
        return _no_unet(found, cut(name, max_chars=200))
    if architecture is None:
        return None
    try:
        own = passes_of(config.family, architecture.configs).weights(part.name, PartPlan()).own
        names = unet_names(header.shapes, architecture.configs[part.name], where=Path(name).name)
    except DarkroomError as error:
        return Problem(_PATH, error.message, advice=error.advice)
    except MALFORMED_CONFIG:  # the check of the model reports it
        return None
    wrong = [n for n, shape in own.items() if n in names and header.shapes[names[n]] != shape]
    if not wrong:
        return None
    return Problem(
        _PATH,
        f"The UNet in {Path(name).name} does not fit the base model's: {len(wrong)} of its weights have other shapes; "
        f"the first is {wrong[0]}: {header.shapes[names[wrong[0]]]} where {own[wrong[0]]} is expected.",
        advice="Choose a UNet of the base model's family and variant.",
    )


def _weight_dtype(config: Config, part: PartSpec) -> Iterator[Problem]:
    chosen = quantized_parts(config).formats.get(part.name)
    is_stored = chosen is not None and chosen.format.is_stored
    source = denoiser_source(config)
    container = _container(source)
    if is_stored and chosen is not None and container != "gguf":
        what = f"{cut(source, max_chars=200)} is no GGUF file" if config.model.denoiser_file else "no GGUF file is set"
        yield Problem(
            f"parts.{part.name}.dtype",
            f"The weight dtype of {part.label} is {chosen.format.label}, but {what}.",
            advice="Choose a GGUF file as the UNet file, or another weight dtype.",
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
