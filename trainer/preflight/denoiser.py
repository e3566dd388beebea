"""Checks of a run's denoiser: its prediction type, its sizes, and how a distilled one is trained."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from modules.config.quantized_parts import part_source
from modules.config.sampled_model import config_of_samples
from modules.config.schema import Config
from modules.config.usage import uses_denoiser
from modules.data.buckets import Size
from modules.data.dataset import Dataset
from modules.estimate.architecture import architecture_of
from modules.families.distilled import DistilledSpec
from modules.families.kinds.file_kind import FileKind
from modules.families.parts.diffusion_settings import LatentDiffusionSettings
from modules.sampling.registry import SAMPLERS
from modules.system.paths import from_root
from modules.system.problem import Problem, Severity, count, shorten
from modules.system.regular_files import read_json_object
from trainer.preflight.model_files import downloaded_folder, kind_of
from trainer.preflight.passes import MALFORMED_CONFIG

_MAX_CONFIG_BYTES = 1_000_000
_MANY = 3  # times the usual number of steps


def denoiser_config(config: Config) -> Mapping[str, Any]:
    """Return the config of the denoiser: of its own file, of the base model, or of the published model of its name.

    Empty where the files do not contain one, and for a repository that is neither downloaded nor published.
    """
    denoiser = config.family.denoiser
    folder = None if config.part(denoiser.name).file.strip() else downloaded_folder(config)
    architecture = architecture_of(str(folder) if folder else part_source(config, denoiser), config.family.name)
    return {} if architecture is None else architecture.configs.get(denoiser.name, {})


def problems_of_distilled(config: Config) -> Iterator[Problem]:
    """Yield a warning about a distilled model that is trained directly, or sampled as if it were not distilled."""
    distilled = config.family.distilled
    if distilled is None or not uses_denoiser(config):
        return
    yield from _training(config, distilled)
    yield from _samples(config, distilled)


def distilled_by(config: Config) -> str:
    """Return the sign by which the denoiser of a config is known to be distilled; empty if it is not."""
    return "" if config.family.distilled is None else _evidence(config, config.family.distilled)


def _training(config: Config, distilled: DistilledSpec) -> Iterator[Problem]:
    source, evidence = _source(config), _evidence(config, distilled)
    has_adapter = bool(config.model.training_adapter.strip())
    if evidence and not has_adapter:
        advice = distilled.advice
        if config.training.trains == "adapter":
            advice += " Or set a training adapter for this model."
        is_refused = distilled.refuses(part_source(config, config.family.denoiser), evidence)
        severity: Severity = "error" if is_refused else "warning"
        message = f"{source} seems to be a distilled model, by {evidence}."
        yield Problem("model.base_model", message, severity, advice, "base_model")
    elif has_adapter and not evidence and source:
        yield Problem(
            "model.training_adapter",
            f"{source} does not seem to be a distilled model. A training adapter undoes a distillation, which it does "
            "not have: the result will differ from training without the adapter.",
            "warning",
            "Remove the training adapter, or choose the distilled model that it was made for.",
        )


def _samples(config: Config, distilled: DistilledSpec) -> Iterator[Problem]:
    """Yield a warning for the first sample with far more steps or guidance than the sampled model was distilled for."""
    sampled = config_of_samples(config)
    if not _evidence(sampled, distilled):
        return
    for index, prompt in enumerate(config.sampling.prompts):
        is_guided = config.family.guidance == "classifier_free" and prompt.guidance > max(distilled.guidance, 1.0)
        if prompt.enabled and (is_guided or prompt.steps > _MANY * distilled.steps):
            name = "guidance" if is_guided else "steps"
            yield Problem(
                f"sampling.prompts.{index}.{name}",
                f"Sample {index + 1} has {prompt.steps} steps and a guidance of {prompt.guidance:g}. "
                f"{_source(sampled)} is distilled: it is sampled in about {distilled.steps} steps with a guidance of "
                f"{distilled.guidance:g}.",
                "warning",
                f"Set the steps to {distilled.steps} and the guidance to {distilled.guidance:g}.",
            )
            return


def _evidence(config: Config, distilled: DistilledSpec) -> str:
    name = part_source(config, config.family.denoiser)
    if not name:
        return ""
    settings = denoiser_config(config) if distilled.config_key else {}
    index = _json_of(config, "model_index.json") if distilled.index_key else {}
    return distilled.evidence(name, settings, _json_of(config, "scheduler/scheduler_config.json"), index)


def _source(config: Config) -> str:
    return shorten(part_source(config, config.family.denoiser), max_chars=200)


def _json_of(config: Config, name: str) -> Mapping[str, Any]:
    """Return a JSON file in the folder of a denoiser's model, downloaded or not; empty without a readable one."""
    place: Path | None = from_root(config.model.base_model.strip())
    if place is not None and kind_of(place) != "folder":
        place = downloaded_folder(config)
    if place is None or config.part(config.family.denoiser.name).file.strip():
        return {}
    return read_json_object(place / name, _MAX_CONFIG_BYTES) or {}


_LABELS = {"epsilon": "the noise (epsilon)", "v_prediction": "velocity (v-prediction)"}


def problems_of_prediction(config: Config, file_kind: FileKind | None) -> Iterator[Problem]:
    """Yield settings that do not fit the prediction type. `file_kind` is the base model's, by its headers."""
    settings = config.model.family
    if not isinstance(settings, LatentDiffusionSettings):
        return
    from_file = file_kind.prediction if file_kind is not None and file_kind.is_model else ""
    prediction = from_file if settings.prediction_type == "auto" else settings.prediction_type
    if prediction == "edm":
        yield Problem(
            "model.base_model",
            f"{config.model.base_model} uses the EDM formulation, which is not supported yet.",
            advice="Choose a model with epsilon or v-prediction.",
            remedy="base_model",
        )
        return
    if from_file in _LABELS and prediction != from_file:
        yield Problem(
            "model.family.prediction_type",
            f"The base model's metadata specify that it predicts {_LABELS[from_file]}, but the prediction type is "
            f"set to {_LABELS[prediction]}. The model has to learn this first, which takes many steps.",
            "warning",
            "Set it to automatic, unless the metadata are wrong or the model should change its prediction type.",
        )
    yield from _zero_snr(config, settings.zero_terminal_snr, file_kind, prediction)
    yield from _samplers(config, prediction)


def _zero_snr(config: Config, wanted: str, file_kind: FileKind | None, prediction: str) -> Iterator[Problem]:
    is_on = wanted == "on" or (wanted == "auto" and file_kind is not None and file_kind.zero_snr)
    if is_on and prediction == "epsilon":
        path = "model.family.zero_terminal_snr" if wanted == "on" else "model.base_model"
        yield Problem(
            path,
            f"{config.model.base_model} would be trained with epsilon prediction and zero terminal SNR, which cannot "
            "work: at the last timestep the input is pure noise, and epsilon contains no information about the image.",
            advice="Set the prediction type to v-prediction, or zero terminal SNR to off.",
        )
    if is_on and config.training.noise.offset_weight > 0:
        yield Problem(
            "training.noise.offset_weight",
            f"Offset noise of {config.training.noise.offset_weight:g} is combined with zero terminal SNR. Both make "
            "very dark and very bright images possible; together the effect is too strong.",
            "warning",
            "Set the offset noise to 0.",
        )


def _samplers(config: Config, prediction: str) -> Iterator[Problem]:
    for index, sample in enumerate(config.sampling.prompts):
        spec = SAMPLERS[sample.sampler]
        if sample.enabled and prediction and not spec.supports([prediction]):
            supported = ", ".join(s.label for s in SAMPLERS.values() if s.supports([prediction]))
            yield Problem(
                f"sampling.prompts.{index}.sampler",
                f"The sampler {spec.label} does not support a model that predicts "
                f"{_LABELS.get(prediction, prediction)}.",
                advice=f"Choose one of: {supported}.",
            )


def problems_of_sample_sides(config: Config) -> Iterator[Problem]:
    """Yield an error for each enabled sample with a side for which the model has no positions."""
    sampled = config_of_samples(config)
    longest_px = longest_side_px(sampled)
    for index, prompt in enumerate(config.sampling.prompts):
        side_px = max(prompt.width_px, prompt.height_px)
        if longest_px is not None and prompt.enabled and side_px > longest_px:
            yield Problem(
                f"sampling.prompts.{index}.{'width' if side_px == prompt.width_px else 'height'}_px",
                f"Sample {index + 1} is {prompt.width_px} × {prompt.height_px} px. {_limit(sampled, longest_px)}",
                advice=f"Set its width and its height to {longest_px} px or less.",
            )


def problems_of_image_sides(config: Config, training: Dataset, validation: Dataset) -> Iterator[Problem]:
    """Yield an error if images are trained or validated at a size for which the model has no positions."""
    longest_px = longest_side_px(config)
    if longest_px is None:
        return
    largest_of_each = [max(sizes, key=_side_px) for data in (training, validation) for sizes in data.buckets]
    too_large = [size for size in largest_of_each if _side_px(size) > longest_px]
    if not too_large:
        return
    largest = max(too_large, key=_side_px)
    lower_px = int(longest_px * math.sqrt(min(largest.sides_px) / max(largest.sides_px)))  # with the same aspect ratio
    yield Problem(
        "data.resolution_px",
        f"{count(len(too_large), 'image')} would be trained at up to {largest.width_px} × {largest.height_px} px. "
        f"{_limit(config, longest_px)}",
        advice=f"Lower the resolution, to about {lower_px:,} px, or the max aspect ratio.",
    )


def longest_side_px(config: Config) -> int | None:
    """Return the longest side of an image for which the denoiser has positions; None without a limit, or unknown."""
    spec = config.family
    longest_side = spec.denoiser.model.longest_side
    if longest_side is None or not uses_denoiser(config):
        return None
    try:
        return spec.latents.px(longest_side(denoiser_config(config)))
    except (*MALFORMED_CONFIG, ArithmeticError):  # no config is known, or the check of the model reports it
        return None


def _side_px(size: Size) -> int:
    return max(size.sides_px)


def _limit(config: Config, longest_px: int) -> str:
    return f"This {config.family.label} model has positions for sides up to {longest_px:,} px."
