"""Rules that span fields. Each takes the config and yields what is wrong; none reads a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from modules.config.problem import Problem
from modules.config.schema import Config
from modules.families.registry import FAMILIES

Rule = Callable[[Config], Iterator[Problem]]


def problems_of(config: Config) -> list[Problem]:
    """Return everything the rules find, in their order."""
    return [problem for rule in RULES for problem in rule(config)]


def _supported(config: Config) -> Iterator[Problem]:
    """What files may ask for and the engine does not do yet is an error, never silence."""
    if config.training.trains not in ("adapter", "full"):
        yield Problem(
            "training.trains",
            f"Training of the kind {config.training.trains!r} is not supported yet.",
            advice="Choose LoRA or fine-tune.",
        )
    model_type = _onetrainer(config).get("model_type")
    if model_type:
        yield Problem(
            "model.family",
            f"The file asks for a model of the kind {model_type}, which is not supported yet.",
            advice="Choose a base model of a family that is supported, in a fresh config.",
        )


def _something_is_trained(config: Config) -> Iterator[Problem]:
    spec = FAMILIES[config.model.family]
    trained = [p for p in spec.trainable_parts if config.part(p.name).train]
    if not trained:
        yield Problem(
            f"parts.{spec.trainable_parts[0].name}.train",
            "No part of the model is trained.",
            advice=f"Switch training on for one of: {', '.join(p.label for p in spec.trainable_parts)}.",
        )
    for part in trained:
        settings = config.part(part.name)
        rate = config.training.learning_rate if settings.learning_rate is None else settings.learning_rate
        if rate == 0:
            yield Problem(
                f"parts.{part.name}.learning_rate",
                f"{part.label} is to be trained, but its learning rate is 0.",
                advice="Give it a rate, or switch its training off.",
            )


def _custom_layers(config: Config) -> Iterator[Problem]:
    if config.adapter.layers == "custom" and not config.adapter.custom_layers.strip(" ,"):
        yield Problem(
            "adapter.custom_layers",
            "The layers are to be the named ones, but none is named.",
            advice="Name parts of layer names, as in: attn1, attn2.",
        )


def _sizes(config: Config) -> Iterator[Problem]:
    spec = FAMILIES[config.model.family]
    if config.data.bucket_step_px % spec.size_step_px:
        yield Problem(
            "data.bucket_step_px",
            f"The size step of {config.data.bucket_step_px} px does not fit {spec.label}.",
            advice=f"Use a multiple of {spec.size_step_px}.",
        )
    for side_px in config.data.resolution_px:
        if side_px % config.data.bucket_step_px:
            rounded_px = max(1, side_px // config.data.bucket_step_px) * config.data.bucket_step_px
            yield Problem(
                "data.resolution_px",
                f"{side_px} px is no multiple of the size step of {config.data.bucket_step_px} px; "
                f"squares will have a side of {rounded_px} px.",
                "warning",
            )


def _concepts(config: Config) -> Iterator[Problem]:
    active = [c for c in config.concepts if c.enabled]
    if not any(c.kind == "training" for c in active):
        yield Problem(
            "concepts",
            "There are no pictures to learn from.",
            advice="Add a concept on the Concepts page and name its folder.",
        )
    for index, concept in enumerate(config.concepts):
        if concept.enabled and concept.kind == "training" and concept.repeats == 0:
            yield Problem(
                f"concepts.{index}.repeats",
                f"The concept {concept.name or f'number {index + 1}'} has 0 repeats: its pictures are never shown.",
                "warning",
                "Raise the repeats or disable the concept.",
            )
    if not config.validation.every.is_never and not any(c.kind == "validation" for c in active):
        yield Problem(
            "validation.every",
            "Validation is on, but no concept is used for validation.",
            advice="Set a concept to be used for validation, or switch validation off.",
        )


def _samples(config: Config) -> Iterator[Problem]:
    sampling = config.sampling
    is_wanted = not sampling.every.is_never or sampling.at_start or sampling.at_end
    if is_wanted and not any(p.enabled for p in sampling.prompts):
        yield Problem("sampling.prompts", "No sample prompts are given, so no samples will be painted.", "info")


def _learning_rate(config: Config) -> Iterator[Problem]:
    rate = config.training.learning_rate
    is_full = config.training.trains == "full"
    usual = "a fine-tune lie between 0.000001 and 0.00002" if is_full else "a LoRA lie between 0.00005 and 0.001"
    if rate > (0.001 if is_full else 0.05):
        yield Problem(
            "training.learning_rate",
            f"A learning rate of {rate:g} is far above what {config.training.optimizer.name} can use.",
            "warning",
            f"Usual values for {usual}.",
        )


def _small_weights(config: Config) -> Iterator[Problem]:
    """Stochastic rounding goes to bfloat16, the upper half of float32; float16 is no half of anything."""
    if config.training.small_weights != "stochastic" or config.training.trains != "full":
        return
    for part in FAMILIES[config.model.family].trainable_parts:
        if config.part(part.name).train and config.part(part.name).dtype == "float16":
            yield Problem(
                "training.small_weights",
                f"{part.label} is kept in float16, to which nothing is rounded stochastically.",
                advice="Keep it in bfloat16, or let its weights learn through float32 copies.",
            )


def _stops(config: Config) -> Iterator[Problem]:
    for name, part in config.parts.items():
        if part.train and part.stop_after.unit == "epoch" and part.stop_after.n >= config.training.epochs:
            yield Problem(
                f"parts.{name}.stop_after",
                f"It would stop after {part.stop_after.n:g} epochs, which the run of {config.training.epochs} "
                "does not outlast.",
                "info",
            )


def _onetrainer(config: Config) -> dict[str, object]:
    rest = config.unknown.get("onetrainer")
    return rest if isinstance(rest, dict) else {}


RULES: tuple[Rule, ...] = (
    _supported,
    _something_is_trained,
    _custom_layers,
    _sizes,
    _concepts,
    _samples,
    _learning_rate,
    _small_weights,
    _stops,
)
