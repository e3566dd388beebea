"""Preference pairs: the methods that learn from them, and the settings that do not apply to them."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.method_facts import learns_from, method_of
from modules.config.schema import Config
from modules.objectives.registry import METHODS
from modules.system.problem import Problem


def pairs(config: Config) -> Iterator[Problem]:
    """Yield problems with concepts that do not have what the method learns from, and settings without effect."""
    if learns_from(config) == "pairs":
        yield from _for_a_method_of_pairs(config)
        return
    of_pairs = " or ".join(spec.label for spec in METHODS.values() if spec.learns_from(spec.settings()) == "pairs")
    for index, concept in enumerate(config.concepts):
        if concept.enabled and concept.kind == "pairs":
            yield Problem(
                f"concepts.{index}.kind",
                f"The concept {_label(config, index)} holds preference pairs, which {method_of(config).label} does not "
                "train on.",
                advice=f"Set the method to {of_pairs}, or change the concept type.",
            )


def _for_a_method_of_pairs(config: Config) -> Iterator[Problem]:
    label = method_of(config).label
    active = [(i, c) for i, c in enumerate(config.concepts) if c.enabled]
    if not any(c.kind == "pairs" for _, c in active):
        yield Problem(
            "concepts",
            f"{label} needs pairs of images, but no concept holds any.",
            advice="Add a concept, set its type to Preference pairs, and choose a folder with the subfolders chosen "
            "and rejected, or a metadata file.",
        )
    for index, concept in active:
        if concept.dataset_kind == "training" and concept.has_images and not concept.holds_pairs:
            yield Problem(
                f"concepts.{index}.kind",
                f"{label} trains on pairs of images, but the concept {_label(config, index)} holds single ones.",
                advice="Set its concept type to Preference pairs, or disable it.",
            )
        if concept.holds_pairs and concept.image.mask_rotate_crop:
            yield Problem(
                f"concepts.{index}.image.mask_rotate_crop",
                f"The concept {_label(config, index)} crops to masks, which is not possible for pairs of images.",
                advice="Switch Mask rotate and crop off.",
            )
    if config.masks.enabled:
        message = f"Masked training is on, but {label} does not use masks: whole images are compared."
        yield Problem("masks.enabled", message, "warning", "Switch masked training off.")


def _label(config: Config, index: int) -> str:
    return config.concepts[index].name or f"number {index + 1}"
