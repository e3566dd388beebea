"""The prediction type of the model, and settings that need a certain prediction type."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.schema import Config
from modules.families.kinds.file_kind import FileKind
from modules.families.parts.diffusion_settings import LatentDiffusionSettings
from modules.sampling.registry import SAMPLERS
from modules.system.problem import Problem

_LABELS = {"epsilon": "the noise (epsilon)", "v_prediction": "velocity (v-prediction)"}


def problems_of_prediction(config: Config, found: FileKind | None) -> Iterator[Problem]:
    """Yield settings that do not fit the prediction type. `found` is the base model as identified by its headers."""
    settings = config.model.family
    if not isinstance(settings, LatentDiffusionSettings):
        return
    from_file = found.prediction if found is not None and found.is_model else ""
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
    yield from _zero_snr(config, settings.zero_terminal_snr, found, prediction)
    yield from _samplers(config, prediction)


def _zero_snr(config: Config, wanted: str, found: FileKind | None, prediction: str) -> Iterator[Problem]:
    is_on = wanted == "on" or (wanted == "auto" and found is not None and found.zero_snr)
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
