"""Checks across images: near-duplicates, and the balance of concepts."""

from __future__ import annotations

import math
from collections.abc import Iterator

from modules.data.doctor.examined import Examined, ExaminedImage
from modules.data.doctor.finding import CheckSpec, Finding
from modules.data.doctor.measure import Measured
from modules.data.doctor.pixel_checks import MIN_SPREAD
from modules.data.doctor.similar import similar_groups

MAX_IMBALANCE = 5.0  # times the samples of the rarest concept: more, and the rarest is hardly learned beside it


def _near_duplicates(examined: Examined) -> Iterator[Finding]:
    # Images of one colour have no structure to compare.
    comparable = [(i, m) for i, m in examined.measured() if m.spread >= MIN_SPREAD]
    for group, distance in similar_groups([m for _, m in comparable]):
        finding = _duplicates(examined, [comparable[i] for i in group], distance)
        if finding is not None:
            yield finding


def _duplicates(examined: Examined, group: list[tuple[ExaminedImage, Measured]], distance: int) -> Finding | None:
    are_validation = {examined.is_validation(image) for image, _ in group}
    files = tuple(dict.fromkeys(image.path for image, _ in group))
    is_leak = len(are_validation) > 1
    if len(files) < 2 and not is_leak:  # one file in two concepts: preflight reports their folder
        return None
    how = "the same" if distance == 0 else "almost the same"
    if is_leak:
        reason = f"Images for training and for validation are {how}: the validation loss does not show generalization."
        fix = "Remove them from one of the two concepts."
    else:
        reason = f"These images look {how}, so they count several times."
        fix = "Keep the best one; to give an image more weight, raise the repeats instead."
    return Finding("near_duplicate", files, reason, distance, "of 64 bits differ", fix)


def _imbalance(examined: Examined) -> Iterator[Finding]:
    """Compare the training concepts. Regularization concepts are balanced by the program."""
    samples = {
        index: sum(i.concept == index for i in examined.images) * concept.samples_per_image
        for index, concept in enumerate(examined.concepts)
        if concept.kind in ("training", "prompts", "pairs")
    }
    used = {index: number for index, number in samples.items() if number > 0}
    if len(used) < 2:
        return
    most = max(used, key=lambda i: used[i])
    for index, number in used.items():
        ratio = used[most] / number
        if ratio > MAX_IMBALANCE:
            concept = examined.concepts[index]
            field = "samples per epoch" if concept.sets_samples else "repeats"
            yield Finding(
                "concept_imbalance",
                (concept.folder,),
                f"The concept {concept.name} has {number:,.4g} samples per epoch, {examined.concepts[most].name} has "
                f"{used[most]:,.4g}.",
                ratio,
                "times as many",
                f"Multiply the {field} of {concept.name} by {_factor(ratio):g}, or lower those of the other.",
            )


def _factor(ratio: float) -> float:
    """Return a round factor that brings a concept within half of the largest one."""
    return math.ceil(ratio / 2)


NEAR_DUPLICATE = CheckSpec(
    "near_duplicate",
    "Near-duplicates",
    "Images that look the same, also across training and validation.",
    _near_duplicates,
)
CONCEPT_IMBALANCE = CheckSpec(
    "concept_imbalance",
    "Concept imbalance",
    "Training concepts with far fewer samples per epoch (images times repeats) than another.",
    _imbalance,
    compares_concepts=True,
)
