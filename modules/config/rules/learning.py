"""Concepts and settings that do not fit what the training method learns from: images, pairs, or only prompts."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.method_facts import learns_from, method_of
from modules.config.schema import Config
from modules.system.problem import Problem


def prompts_for_images(config: Config) -> Iterator[Problem]:
    """Yield an error for each concept of prompts whose method needs images."""
    if learns_from(config) == "prompts":
        return
    for index, concept in enumerate(config.concepts):
        if concept.enabled and not concept.has_images:
            yield Problem(
                f"concepts.{index}.kind",
                f"The concept {concept.name or f'number {index + 1}'} has prompts without images, but "
                f"{method_of(config).label} needs images with its current settings.",
                advice="Disable the concept, or choose a method that only trains on images it samples itself.",
            )


def roles_of_images(config: Config) -> Iterator[Problem]:
    """Yield a warning for each concept whose role has no effect with a method that learns from prompts."""
    if learns_from(config) != "prompts":
        return
    label = method_of(config).label
    roles = {"prior_prediction": "prior prediction", "regularization": "regularization"}
    for index, concept in enumerate(config.concepts):
        if concept.enabled and (role := roles.get(concept.kind)):
            yield Problem(
                f"concepts.{index}.kind",
                f"The concept {concept.name or f'number {index + 1}'} is for {role}, but {label} trains on images that "
                "it samples itself: it uses the captions of the concept like those of any other.",
                "warning",
                "Disable the concept, or set its concept type to Training.",
            )


def dropped_prompts(config: Config) -> Iterator[Problem]:
    """Yield a warning for caption dropout with a method that samples images for the captions."""
    share = config.data.caption_dropout
    if learns_from(config) != "prompts" or share == 0:
        return
    yield Problem(
        "data.caption_dropout",
        f"{method_of(config).label} samples images for the captions: with a caption dropout of {share:g}, some of them "
        "are sampled without a prompt, and trained on.",
        "warning",
        "Set it to 0.",
    )
