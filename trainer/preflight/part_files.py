"""The files that parts are read from, in place of the base model's own: what they contain, and whether they fit.

For the parts that the file of a denoiser alone lacks, the files on this machine are tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from modules.config.quantized_parts import part_file, part_source, quantized_parts
from modules.config.schema import Config
from modules.estimate.architecture import architecture_of
from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.identify import identify, identify_with_header
from modules.families.kinds.registry import serves_as
from modules.families.parts.single_file.denoiser_file import (
    has_denoiser,
    is_in_denoiser_files,
    packed_layers,
    tensors_of,
)
from modules.families.parts.single_file.encoder_file import layout_of, require_encoder
from modules.families.registry import files_of
from modules.families.separate_parts import advice_for, lack_of
from modules.families.spec import DENOISERS, PartSpec
from modules.formats.checkpoint_header import CheckpointHeader
from modules.formats.float8_scales import ADVICE
from modules.formats.gguf_header import READABLE, is_gguf
from modules.memory.part_plan import PartPlan
from modules.quantization.registry import ChosenFormat
from modules.settings.edit import replace_value
from modules.system.errors import DarkroomError
from modules.system.paths import as_config_path, from_root
from modules.system.problem import Problem, Severity, shorten, with_article
from trainer.preflight.passes import MALFORMED_CONFIG, passes_of
from trainer.preflight.vae import problems_of_vaes

_PERMUTED = "llama"  # llama.cpp's architecture whose queries and keys it stores in another order, for its rotations


def path_of(part: PartSpec) -> str:
    """Return the path of the setting with a part's file."""
    return f"parts.{part.name}.file"


def problems_of_part_files(config: Config) -> Iterator[Problem]:
    """Yield why files of parts cannot be used, which parts have none, and whether files fit the weight dtypes.

    `problems_of_vaes` checks the file of a VAE.
    """
    for part in config.family.parts:
        name = part_file(config, part)
        if part.role == "vae":
            continue
        if name:
            file_kind, header = identify_with_header(from_root(name))
            problem = _refusal(config, part, file_kind, header, name) or _misfit(config, part, file_kind, header, name)
            if problem is not None:
                yield problem
                continue
        yield from _weight_dtype(config, part)


def with_stored_bytes(
    config: Config, part: PartSpec, chosen: ChosenFormat, settings: Mapping[str, Any]
) -> ChosenFormat | None:
    """Return the format of a part with the bytes of its layers, if a file stores them in it; other formats unchanged.

    None where the file cannot be read. `settings` is the part's config.
    """
    if not chosen.format.is_stored:
        return chosen
    try:
        packed = packed_layers(config.family.name, part, from_root(part_source(config, part)), settings)
    except (DarkroomError, OSError):  # the check of the file reports it
        return None
    return replace(chosen, stored={layer: t.end - t.start for layer, t in packed.items()}) if packed else None


def _refusal(
    config: Config, part: PartSpec, file_kind: FileKind, header: CheckpointHeader | None, name: str
) -> Problem | None:
    """Return why a file cannot replace a part, by its kind alone."""
    spec, path = config.family, path_of(part)
    shown = shorten(name, max_chars=200)
    if "code" in file_kind.facts:
        return Problem(path, file_kind.sentence, advice="Get it as .safetensors, or from another place.")
    if header is None:
        return _none_of_part(part, file_kind, shown)
    if part.role in DENOISERS and file_kind.family and file_kind.family != spec.name:
        message = f"{shown} has no {part.label} of {spec.label}. {file_kind.sentence}"
        return Problem(path, message, advice="Choose one of the base model's family.")
    if file_kind.problem:
        return Problem(path, f"{shown} {file_kind.problem}", advice=ADVICE)
    if header.container == "gguf" and header.metadata.get("general.architecture") == _PERMUTED:
        message = f"{shown} is the GGUF file of a Llama or a Mistral, which has its queries and keys in another order."
        return Problem(path, message, advice="Choose a .safetensors file.")
    if header.container == "gguf" and (unreadable := sorted(set(header.dtypes.values()) - READABLE)):
        message = f"{shown} contains weights in {', '.join(unreadable)}, which is not supported."
        return Problem(path, message, advice="Choose a file in Q8_0, Q6_K, Q5_K or Q4_K.")
    return None


def _none_of_part(part: PartSpec, file_kind: FileKind, shown: str) -> Problem:
    message = file_kind.explain(f"{shown} contains no {part.label}.")
    advice = f"Choose a .gguf or .safetensors file of {with_article(part.label)}, or leave it empty."
    return Problem(path_of(part), message, advice=advice)


def _misfit(
    config: Config, part: PartSpec, file_kind: FileKind, header: CheckpointHeader | None, name: str
) -> Problem | None:
    """Return an error where the tensors of a file do not match the base model's part.

    A denoiser of a size that was never published is hard to tell from its names; the base model itself decides.
    """
    architecture = architecture_of(config.model.base_model, config.model.family.name, config.model.variant)
    shown = shorten(name, max_chars=200)
    if header is None or not _has_part(config, part, header):
        return _none_of_part(part, file_kind, shown)
    if architecture is None:
        can_be = part.role not in DENOISERS or serves_as(file_kind, "denoiser")
        return None if can_be else _none_of_part(part, file_kind, shown)
    try:
        expected = passes_of(config.family, architecture.configs).weights(part.name, PartPlan()).shapes
        if not is_in_denoiser_files(config.family.name, part):
            require_encoder(expected, header.weights, file=Path(name).name, part=part)
            return None
        settings = architecture.configs[part.name]
        tensors = tensors_of(config.family.name, part, header.weights, settings, where=Path(name).name)
    except DarkroomError as error:
        return Problem(path_of(part), error.message, advice=error.advice)
    except MALFORMED_CONFIG:  # the check of the model reports it
        return None
    shapes = {ours: stored.slot.shape_of(header.shapes[stored.name]) for ours, stored in tensors.items()}
    wrong = [n for n, shape in expected.items() if n in shapes and shapes[n] != shape]
    if not wrong:
        return None
    return Problem(
        path_of(part),
        f"The {part.label} in {Path(name).name} does not fit the base model's: {len(wrong)} of its weights have other "
        f"shapes; the first is {wrong[0]}: {shapes[wrong[0]]} where {expected[wrong[0]]} is expected.",
        advice=f"Choose {with_article(part.label)} of the base model's family and variant.",
    )


def _has_part(config: Config, part: PartSpec, header: CheckpointHeader) -> bool:
    if part.role in DENOISERS:
        return has_denoiser(config.family.name, header.shapes)
    if is_in_denoiser_files(config.family.name, part):  # without a mark of its own in a file of it alone
        return True
    return layout_of(header.shapes) is not None


def _weight_dtype(config: Config, part: PartSpec) -> Iterator[Problem]:
    chosen = quantized_parts(config).formats.get(part.name)
    is_stored = chosen is not None and chosen.format.is_stored
    source = part_source(config, part)
    is_packed = bool(source) and is_gguf(from_root(source))
    if is_stored and chosen is not None and not is_packed:
        file = shorten(source, max_chars=200)
        what = f"{file} is not a GGUF file" if config.part(part.name).file else "no GGUF file is set"
        yield Problem(
            f"parts.{part.name}.dtype",
            f"The weight dtype of {part.label} is {chosen.format.label}, but {what}.",
            advice="Choose a GGUF file as the file of the part, or another weight dtype.",
        )
    elif is_packed and not is_stored:
        yield Problem(
            f"parts.{part.name}.dtype",
            f"The weights of {Path(source).name} are unpacked, which takes more memory than the file.",
            "info",
            "Set the weight dtype to GGUF to keep them packed.",
        )


def fitting_files(config: Config, files: Sequence[Path]) -> dict[str, list[Path]]:
    """Return the files that fit each part which the base model lacks, in their order; an empty list where none does.

    The base model of `config` is the file of a denoiser. A VAE is compared by its class and its latent channels alone,
    which families share: a person has to confirm it.
    """
    base = identify(from_root(config.model.base_model))
    there = {config.family.denoiser.name, *base.facts.get("also", "").split(", ")}
    return {
        part.name: [file for file in files if _fits(config, part, file)]
        for part in config.family.parts
        if part.name not in there
    }


def _fits(config: Config, part: PartSpec, file: Path) -> bool:
    """Return whether the checks before a run have no error about a file for a part."""
    path = path_of(part)
    trial = replace_value(config, path, as_config_path(file))
    problems = problems_of_vaes(trial) if part.role == "vae" else problems_of_part_files(trial)
    return not any(p.path == path and p.severity == "error" for p in problems)


# Checks of the parts that are published apart from their models: that there are files of them.


def problems_of_separate_parts(config: Config, file_kind: FileKind | None) -> Iterator[Problem]:
    """Yield which parts the base model lacks, and which files have no tokenizer.

    `file_kind` is the base model's; None if it is not here.
    """
    name = config.model.base_model.strip()
    for part in (p for p in config.family.in_base_model.parts if p.published_in):
        if file := part_file(config, part):
            if not (from_root(name) / part.tokenizer_folder).is_dir():
                yield from _without_tokenizer(part, file)
        elif part.name in file_kind.without if file_kind is not None else _is_by_publisher(config, name):
            severity: Severity = "warning" if file_kind is None else "error"  # a repository that is not here yet
            yield Problem(path_of(part), lack_of(part, shorten(name, max_chars=200)), severity, advice_for(part))


def _is_by_publisher(config: Config, repository: str) -> bool:
    """Return whether a repository is of the family's publisher, whose models all lack these parts."""
    owners = {model.repository.partition("/")[0] for model in files_of(config.family.name).models}
    return repository.partition("/")[0] in owners - {""}


def _without_tokenizer(part: PartSpec, file: str) -> Iterator[Problem]:
    if from_root(file).is_file() and not (from_root(file).parent / "tokenizer.json").is_file():
        message = f"There is no tokenizer.json next to {shorten(file, max_chars=200)}, the file of {part.label}."
        yield Problem(path_of(part), message, advice=f"Copy it there from the repository {part.published_in[0]}.")
