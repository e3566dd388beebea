"""What the model predicts, and the settings that go with one kind of prediction alone."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.schema import Config
from modules.families.kinds.file_kind import FileKind
from modules.sampling.registry import SAMPLERS
from modules.system.problem import Problem

_LABELS = {"epsilon": "the noise (epsilon)", "v_prediction": "velocity (v-prediction)"}


def problems_of_prediction(config: Config, found: FileKind | None) -> Iterator[Problem]:
    """Yield what cannot go with the kind of prediction. `found` is the base model as far as its headers tell."""
    own = found.prediction if found is not None and found.is_model else ""
    prediction = own if config.model.prediction_type == "auto" else config.model.prediction_type
    if prediction == "edm":
        yield Problem(
            "model.base_model",
            f"{config.model.base_model} predicts in EDM's way, which is not supported yet.",
            advice="Choose a model that predicts epsilon or velocity.",
        )
        return
    if own in _LABELS and prediction != own:
        yield Problem(
            "model.prediction_type",
            f"The base model says of itself that it predicts {_LABELS[own]}, and it is to be trained to predict "
            f"{_LABELS[prediction]}: it has to learn that anew, which takes many steps.",
            "warning",
            "Set it to automatic, unless the model says the wrong thing or is to change over.",
        )
    yield from _zero_snr(config, found, prediction)
    yield from _samplers(config, prediction)


def _zero_snr(config: Config, found: FileKind | None, prediction: str) -> Iterator[Problem]:
    wanted = config.model.zero_terminal_snr
    is_on = wanted == "on" or (wanted == "auto" and found is not None and found.zero_snr)
    if is_on and prediction == "epsilon":
        path = "model.zero_terminal_snr" if wanted == "on" else "model.base_model"
        yield Problem(
            path,
            f"{config.model.base_model} is to predict epsilon with zero terminal SNR, which cannot be learned: where "
            "there is noise alone, it says nothing of the image.",
            advice="Set the prediction to v-prediction, or zero terminal SNR to off.",
        )
    if is_on and config.training.noise.offset_weight > 0:
        yield Problem(
            "training.noise.offset_weight",
            f"Offset noise of {config.training.noise.offset_weight:g} with zero terminal SNR: both let very dark and "
            "very bright images be learned, and together they overdo it.",
            "warning",
            "Set the offset noise to 0.",
        )


def _samplers(config: Config, prediction: str) -> Iterator[Problem]:
    for index, sample in enumerate(config.sampling.prompts):
        spec = SAMPLERS[sample.sampler]
        if sample.enabled and prediction and prediction not in spec.predictions:
            fitting = ", ".join(s.label for s in SAMPLERS.values() if prediction in s.predictions)
            yield Problem(
                f"sampling.prompts.{index}.sampler",
                f"The sampler {spec.label} cannot sample a model that predicts {_LABELS.get(prediction, prediction)}.",
                advice=f"Choose one of: {fitting}.",
            )
