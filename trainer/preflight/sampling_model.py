"""Checks of the sampling model before it is loaded: that it can take the place of the base model in samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from modules.config.quantized_parts import quantized_parts
from modules.config.sampled_model import config_of_samples
from modules.config.schema import Config
from modules.config.usage import uses_denoiser
from modules.estimate.architecture import architecture_of
from modules.estimate.run import plain_bytes
from modules.families.kinds.identify import identify
from modules.families.kinds.registry import serves_as
from modules.families.parts.single_file.denoiser_file import config_in_file, denoiser_tensors
from modules.families.spec import BASE_VARIANT
from modules.formats.checkpoint_header import read_checkpoint_header
from modules.formats.gguf_header import is_gguf
from modules.formats.headers import UnreadableFileError
from modules.memory.part_plan import PartPlan, Shape
from modules.system.errors import DarkroomError
from modules.system.hardware import free_memory
from modules.system.paths import from_root
from modules.system.problem import Problem, format_size, shorten
from trainer.preflight.model_files import downloaded_folder, is_repository, kind_of, why_incomplete
from trainer.preflight.passes import MALFORMED_CONFIG, passes_of
from trainer.preflight.run_budget import TIGHT, Budget

_PATH = "sampling.model"
_CHOOSE = "Choose a distilled version of the base model, or leave the sampling model empty."


def problems_of_sampling_model(config: Config) -> Iterator[Problem]:
    """Yield why samples cannot be drawn with the sampling model."""
    name = config.sampling.model.strip()
    if not name or not uses_denoiser(config):
        return
    shown, place = shorten(name, max_chars=200), from_root(name)
    if not kind_of(place):
        yield from _of_repository(config, name, shown)
    elif problem := _refusal(config, place, shown) or _misfit(config, name, shown):
        yield problem


def memory_problems_of_sampling_model(budget: Budget) -> Iterator[Problem]:
    """Yield a warning if the computer's memory has no room for the denoiser of the sampling model."""
    config = budget.config
    if not config.sampling.model.strip() or not uses_denoiser(config):
        return
    needed = plain_bytes(budget.passes, config.family.denoiser.name, budget.run.plans)
    if needed > TIGHT * (available := free_memory()):
        yield Problem(
            _PATH,
            f"The sampling model needs about {format_size(needed)} of the computer's memory besides the base model, "
            f"and {format_size(available)} are free.",
            "warning",
            "Quantize the denoiser (the weight dtype), or leave the sampling model empty.",
        )


def _of_repository(config: Config, name: str, shown: str) -> Iterator[Problem]:
    if not is_repository(name):
        yield Problem(_PATH, f"The sampling model {shown} does not exist.", advice=_CHOOSE)
        return
    folder = downloaded_folder(config_of_samples(config))
    if folder is not None:
        problem = _refusal(config, folder, shown, is_whole=config.model.offline)
        if problem is not None:
            yield problem
    elif config.model.offline:
        yield Problem(
            _PATH,
            f"The repository {shown} has not been downloaded, and offline mode is on.",
            advice="Switch off offline mode, or choose a file or a folder.",
        )


def _refusal(config: Config, place: Path, shown: str, *, is_whole: bool = True) -> Problem | None:
    """Return why a file or folder cannot be the sampling model, by its kind alone."""
    spec, file_kind = config.family, identify(place)
    if "code" in file_kind.facts:
        return Problem(_PATH, file_kind.sentence, advice="Get it as .safetensors, or from another place.")
    if file_kind.family not in ("", spec.name) or not (
        file_kind.is_model or serves_as(file_kind, "denoiser") or place.is_file()
    ):
        message = f"{shown} is not a {spec.label} model, so samples cannot be drawn with it. {file_kind.sentence}"
        return Problem(_PATH, message, advice=_CHOOSE)
    if file_kind.is_model and (file_kind.variant or BASE_VARIANT) != config.model.variant:
        message = f"{shown} is another model variant than the base model. {file_kind.sentence}"
        return Problem(_PATH, message, advice=_CHOOSE)
    if place.is_dir() and is_whole and (reason := why_incomplete(place / spec.denoiser.name)):
        return Problem(_PATH, f"{shown} is incomplete: {reason}", advice="Download or copy the model again.")
    stored = quantized_parts(config).formats.get(spec.denoiser.name)
    if stored is not None and stored.format.is_stored and not is_gguf(place):
        return Problem(
            _PATH,
            f"The weight dtype of {spec.denoiser.label} is {stored.format.label}, but {shown} is not a GGUF file.",
            advice="Choose a GGUF file as the sampling model, or another weight dtype.",
        )
    return None


def _misfit(config: Config, name: str, shown: str) -> Problem | None:
    """Return an error if the denoiser of the sampling model has another architecture than the base model's."""
    base = architecture_of(config.model.base_model, config.family.name, config.model.variant)
    if base is None:
        return None
    denoiser, distilled = config.family.denoiser, config.family.distilled
    lacks, adds = ((), ()) if distilled is None else (distilled.lacks, distilled.adds)
    settings = base.configs[denoiser.name]
    try:
        other = None if identify(from_root(name)).is_denoiser else architecture_of(name, config.family.name)
        if other is not None and _public(other.configs[denoiser.name]) == _public(settings):
            return None
        expected = passes_of(config.family, base.configs).weights(denoiser.name, PartPlan()).shapes
        if other is None:
            # The names in a file were compared; buffers, such as a table of positions, are not expected here.
            in_file = _shapes_in_file(config, name, settings)
            shapes = {n: shape for n, shape in in_file.items() if n in expected or n.startswith(adds)}
        else:
            configs = {**base.configs, denoiser.name: other.configs[denoiser.name]}
            shapes = dict(passes_of(config.family, configs).weights(denoiser.name, PartPlan()).shapes)
    except DarkroomError as error:
        return Problem(_PATH, f"Samples cannot be drawn with {shown}. {error.message}", advice=_CHOOSE)
    except (*MALFORMED_CONFIG, UnreadableFileError, OSError):  # the check of the model reports it
        return None
    names = shapes.keys() | {name for name in expected if not name.startswith(lacks)}
    wrong = [name for name in sorted(names) if expected.get(name) != shapes.get(name)]
    if not wrong:
        return None
    return Problem(
        _PATH,
        f"{shown} has another architecture than the base model: {len(wrong)} of its weights are missing, added or of "
        f"another shape; the first is {wrong[0]}.",
        advice=_CHOOSE,
    )


def _shapes_in_file(config: Config, name: str, settings: Mapping[str, object]) -> dict[str, Shape]:
    path = from_root(name)
    header, family = read_checkpoint_header(path), config.family.name
    settings = config_in_file(family, header.weights, settings)
    tensors = denoiser_tensors(family, header.weights, settings, where=path.name)
    return {ours: stored.slot.shape_of(header.shapes[stored.name]) for ours, stored in tensors.items()}


def _public(settings: Mapping[str, object]) -> dict[str, object]:
    """Return a config without the names and versions that diffusers adds."""
    return {name: value for name, value in settings.items() if not name.startswith("_")}
