"""Choices that have no meaning for the noise process of the model family: DDPM, or flow matching."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.method_facts import method_of, rollout_of, settings_of_method, uses_denoiser
from modules.config.schema import Config
from modules.diffusion.weightings import WEIGHTINGS
from modules.families.registry import FAMILIES
from modules.objectives.spec import OTHER_METHOD
from modules.sampling.registry import SAMPLERS, samplers_for
from modules.system.problem import Problem


def noise_process(config: Config) -> Iterator[Problem]:
    """Yield an error for each choice that is not defined for the models of the family, and the ones that are."""
    if not uses_denoiser(config):
        return
    process, method, settings = FAMILIES[config.model.family].process, method_of(config), settings_of_method(config)
    if sentence := method.refusal(settings, process):
        yield Problem("training.method", sentence, advice=OTHER_METHOD)
    if method.has_denoising_loss(settings):
        sentence, advice = WEIGHTINGS[config.training.loss.weighting].refusal(process, process.predictions)
        if sentence:
            yield Problem("training.loss.weighting", sentence, advice=advice)
    if config.training.noise.generalized_offset and process.flow is not None and method.adds_noise(settings):
        sentence = process.undefined("Generalized offset noise")
        yield Problem("training.noise.generalized_offset", sentence, advice="Switch it off.")
    yield from _samplers(config)


def _samplers(config: Config) -> Iterator[Problem]:
    """Yield an error for each sampler in use that does not support the models of the family."""
    family, rollout = FAMILIES[config.model.family], rollout_of(config)
    used = {f"sampling.prompts.{i}.sampler": p.sampler for i, p in enumerate(config.sampling.prompts) if p.enabled}
    if rollout is not None and rollout.sampler:
        used["training.method.sampler"] = rollout.sampler
    for path, name in used.items():
        if not SAMPLERS[name].supports(family.process.predictions):
            others = ", ".join(spec.label for spec in samplers_for(family.process.predictions).values())
            yield Problem(
                path,
                f"The sampler {SAMPLERS[name].label} does not support {family.process.label} models.",
                advice=f"Choose one of: {others}.",
            )
    guided = [i for i, prompt in enumerate(config.sampling.prompts) if prompt.enabled and prompt.guidance > 1]
    if family.guidance == "none" and guided:
        yield Problem(
            f"sampling.prompts.{guided[0]}.guidance",
            f"{family.label} samples without guidance: the guidance scale of the samples has no effect.",
            "info",
        )
