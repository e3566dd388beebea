"""Distilled models: what training them directly does, and how they are sampled."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from modules.config.quantized_parts import part_source
from modules.config.sampled_model import config_of_samples
from modules.config.schema import Config
from modules.config.usage import uses_denoiser
from modules.families.distilled import DistilledSpec
from modules.system.paths import from_root
from modules.system.problem import Problem, Severity, cut
from modules.system.regular_files import read_regular
from trainer.preflight.denoiser_config import denoiser_config
from trainer.preflight.model import downloaded_folder, kind_of

_MAX_CONFIG_BYTES = 1_000_000
_MANY = 3  # times the usual number of steps


def problems_of_distilled(config: Config) -> Iterator[Problem]:
    """Yield a warning about a distilled model that is trained directly, or is sampled as one that is not."""
    distilled = config.family.distilled
    if distilled is None or not uses_denoiser(config):
        return
    yield from _training(config, distilled)
    yield from _samples(config, distilled)


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
    return cut(part_source(config, config.family.denoiser), max_chars=200)


def _json_of(config: Config, name: str) -> Mapping[str, Any]:
    """Return a JSON file in the folder of a denoiser's model, downloaded or not; empty without a readable one."""
    place: Path | None = from_root(config.model.base_model.strip())
    if place is not None and kind_of(place) != "folder":
        place = downloaded_folder(config)
    if place is None or config.part(config.family.denoiser.name).file.strip():
        return {}
    try:
        content = json.loads(read_regular(place / name, _MAX_CONFIG_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
