"""Sizes, concepts and sample prompts, as far as no folder has to be looked into."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.schema import Config
from modules.families.registry import FAMILIES
from modules.system.problem import Problem


def sizes(config: Config) -> Iterator[Problem]:
    """Sizes are multiples of what the family and the size step want."""
    spec = FAMILIES[config.model.family]
    if config.data.bucket_step_px % spec.size_step_px:
        yield Problem(
            "data.bucket_step_px",
            f"The size step of {config.data.bucket_step_px} px does not fit {spec.label}.",
            advice=f"Use a multiple of {spec.size_step_px}.",
        )
    fixed = (config.data.fixed_width_px, config.data.fixed_height_px)
    if any(fixed) and not all(fixed):
        yield Problem(
            f"data.fixed_{'height' if fixed[0] else 'width'}_px",
            "A fixed size needs both a width and a height.",
            advice="Give both, or set both to 0.",
        )
    for side_px in config.data.resolution_px:
        if side_px % config.data.bucket_step_px:
            step_px = config.data.bucket_step_px
            rounded_px = max(1, side_px // step_px) * step_px
            yield Problem(
                "data.resolution_px",
                f"{side_px} px is no multiple of the size step of {config.data.bucket_step_px} px; "
                f"squares will have a side of {rounded_px} px.",
                "warning",
                f"Use {rounded_px} or {rounded_px + step_px}.",
            )


def concepts(config: Config) -> Iterator[Problem]:
    """There is something to learn from, and something to validate on where that is wanted."""
    active = [c for c in config.concepts if c.enabled]
    if not any(c.kind == "training" for c in active):
        yield Problem(
            "concepts",
            "There are no images to learn from.",
            advice="Add a concept on the Concepts page and name its folder.",
        )
    for index, concept in enumerate(config.concepts):
        if concept.enabled and concept.kind == "training" and concept.repeats == 0:
            yield Problem(
                f"concepts.{index}.repeats",
                f"The concept {concept.name or f'number {index + 1}'} has 0 repeats: its images are never shown.",
                "warning",
                "Raise the repeats or disable the concept.",
            )
    if not config.validation.every.is_never and not any(c.kind == "validation" for c in active):
        yield Problem(
            "validation.every",
            "Validation is on, but no concept is used for validation.",
            advice="Set a concept to be used for validation, or switch validation off.",
        )


def samples(config: Config) -> Iterator[Problem]:
    """Samples that are wanted have prompts."""
    sampling = config.sampling
    is_wanted = not sampling.every.is_never or sampling.at_start or sampling.at_end
    if is_wanted and not any(p.enabled for p in sampling.prompts):
        yield Problem("sampling.prompts", "No sample prompts are given, so no samples will be painted.", "info")
