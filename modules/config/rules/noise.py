"""The loss, the noise and the timesteps, and choices without meaning for the noise process of the model family."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.schema import Config
from modules.config.sections.noise import timestep_sampling_of
from modules.config.usage import method_of, rollout_of, settings_of_method, uses_denoiser
from modules.diffusion.weightings import WEIGHTINGS
from modules.objectives.loss_mix import loss_mix_of
from modules.objectives.losses import LOSSES, OTHER_SCHEDULE
from modules.objectives.spec import OTHER_METHOD
from modules.sampling.registry import SAMPLERS, samplers_for
from modules.system.problem import Problem

_SECTION = "training.loss."


def loss_strengths(config: Config) -> Iterator[Problem]:
    """Yield an error if all strengths are 0: nothing would be trained."""
    if _uses_loss(config) and not loss_mix_of(config.training.loss.mix).terms:
        usual, *_ = LOSSES.values()
        yield Problem(
            f"{_SECTION}mix.{usual.name}.strength",
            f"All losses have the strength 0 ({', '.join(s.label for s in LOSSES.values())}): nothing is trained.",
            advice=f"Set the {usual.label} strength to 1, or give another loss a strength.",
        )


def weighting_gamma(config: Config) -> Iterator[Problem]:
    """Yield a warning for a gamma above the limit of the loss weighting."""
    loss = config.training.loss
    spec = WEIGHTINGS[loss.weighting]
    if spec.gamma_limit is not None and loss.gamma > spec.gamma_limit.value and _uses_loss(config):
        yield Problem(
            f"{_SECTION}gamma",
            f"{spec.label} weighting with a gamma of {loss.gamma:g} {spec.gamma_limit.effect}.",
            "warning",
            spec.gamma_limit.advice,
        )


def _uses_loss(config: Config) -> bool:
    return method_of(config).has_denoising_loss(settings_of_method(config))


_PATH = "training.noise"


def noising_strengths(config: Config) -> Iterator[Problem]:
    """Yield a problem if no timestep lies between the lowest and the highest noising strength."""
    noise = config.training.noise
    if noise.min_strength >= noise.max_strength:
        yield Problem(
            f"{_PATH}.min_strength",
            f"The min noising strength of {noise.min_strength:g} is not below the max of {noise.max_strength:g}: no "
            "timestep is left to train.",
            advice="Lower the min noising strength, or raise the max.",
        )


def timestep_distribution(config: Config) -> Iterator[Problem]:
    """Yield a problem if the noising weight and bias give no distribution."""
    wrong = timestep_sampling_of(config.training.noise).problem
    if wrong:
        yield Problem(
            f"{_PATH}.noising_weight",
            f"The timestep distribution cannot be used: {wrong}.",
            advice="Change the noising weight and bias, or choose another timestep distribution.",
        )


def noise_without_effect(config: Config) -> Iterator[Problem]:
    """Yield the noise settings whose values change nothing, although their conditions hold."""
    noise = config.training.noise
    if not method_of(config).adds_noise(settings_of_method(config)):
        return
    if noise.stratification != "off" and config.training.batch_size * config.training.accumulation_steps == 1:
        yield Problem(
            f"{_PATH}.stratification",
            "Stratified timesteps have no effect with one image per step.",
            "info",
            "Increase the batch size or the accumulation steps.",
        )
    if noise.pyramid_iterations == 1 or (noise.pyramid_iterations and not noise.pyramid_discount):
        yield Problem(
            f"{_PATH}.pyramid_iterations",
            "Pyramid noise has no effect: its first level is the plain noise, and no further level counts.",
            "info",
            "Set 6 to 10 levels and a discount of 0.1 to 0.3, or 0 levels.",
        )
    if noise.offset_adaptive_scale < 0 and not noise.offset_weight:
        yield Problem(
            f"{_PATH}.offset_adaptive_scale",
            "A negative adaptive offset scale has no effect: it only lowers the offset noise, which is 0.",
            "info",
            "Set an offset noise, or a scale above 0.",
        )


def noise_process(config: Config) -> Iterator[Problem]:
    """Yield an error, with the possible choices, for each choice that is not defined for the models of the family."""
    if not uses_denoiser(config):
        return
    process, method, settings = config.family.process, method_of(config), settings_of_method(config)
    if sentence := method.refusal(settings, process):
        yield Problem("training.method", sentence, advice=OTHER_METHOD)
    yield from method.problems_of_process(settings, process)
    if method.has_denoising_loss(settings):
        sentence, advice = WEIGHTINGS[config.training.loss.weighting].refusal(process, process.predictions)
        if sentence:
            yield Problem("training.loss.weighting", sentence, advice=advice)
        for field, sentence in loss_mix_of(config.training.loss.mix).refusals(process).items():
            yield Problem(f"{_SECTION}mix.{field}", sentence, advice=OTHER_SCHEDULE)
    if config.training.noise.generalized_offset and process.flow is not None and method.adds_noise(settings):
        sentence = process.undefined_message("Generalized offset noise")
        yield Problem("training.noise.generalized_offset", sentence, advice="Switch it off.")
    yield from _samplers(config)


def _samplers(config: Config) -> Iterator[Problem]:
    """Yield an error for each sampler in use that does not support the models of the family."""
    family, rollout = config.family, rollout_of(config)
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
    yield from _steps_of_samples(config)
    yield from _guidance_of_samples(config)


def _steps_of_samples(config: Config) -> Iterator[Problem]:
    """Yield an error for each sample with more steps than its sampler takes."""
    for index, prompt in enumerate(config.sampling.prompts):
        most = None if config.family.process.flow is not None else SAMPLERS[prompt.sampler].most_steps
        if prompt.enabled and most is not None and prompt.steps > most:
            yield Problem(
                f"sampling.prompts.{index}.steps",
                f"The sampler {SAMPLERS[prompt.sampler].label} takes at most {most} steps, not {prompt.steps}.",
                advice="Lower the steps (4 to 8 are usual), or choose another sampler.",
            )


def _guidance_of_samples(config: Config) -> Iterator[Problem]:
    """Yield the first sample whose guidance scale has no effect, and the first whose negative prompt has none."""
    family = config.family
    prompts = [(index, prompt) for index, prompt in enumerate(config.sampling.prompts) if prompt.enabled]
    guided = [index for index, prompt in prompts if prompt.guidance > 1]
    if family.guidance == "none" and guided:
        yield Problem(
            f"sampling.prompts.{guided[0]}.guidance",
            f"{family.label} samples without guidance: the guidance scale of the samples has no effect.",
            "info",
        )
    idle = [i for i, prompt in prompts if prompt.negative_prompt.strip() and not family.doubles_batch(prompt.guidance)]
    if idle:
        acts = family.guidance == "classifier_free"
        why = "it acts with a guidance above 1" if acts else f"{family.label} has no classifier-free guidance"
        yield Problem(
            f"sampling.prompts.{idle[0]}.negative_prompt",
            f"The negative prompt of sample {idle[0] + 1} has no effect: {why}.",
            "info",
        )
