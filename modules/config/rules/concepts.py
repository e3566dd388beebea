"""Concepts that do not fit what the training method learns from (images, pairs, only prompts), and their captions."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.schema import Config
from modules.config.usage import learns_from, method_of
from modules.data.captions.settings import CaptionChanges
from modules.families.spec import FamilySpec
from modules.objectives.registry import METHODS
from modules.system.problem import Problem


def prompts_for_images(config: Config) -> Iterator[Problem]:
    """Yield an error for each concept of prompts whose method needs images."""
    if learns_from(config) == "prompts":
        return
    for index, concept in enumerate(config.concepts):
        if concept.enabled and not concept.has_images:
            yield Problem(
                f"concepts.{index}.kind",
                f"The concept {concept.label_at(index)} has prompts without images, but "
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
                f"The concept {concept.label_at(index)} is for {role}, but {label} trains on images that "
                "it samples itself: it uses the captions of the concept like the captions of any other.",
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


def caption_changes(config: Config) -> Iterator[Problem]:
    """Yield a warning for each change of probability 0, and for random changes that are drawn once for a whole run."""
    family = config.family
    parts = family.parts
    is_trained = any(p.role == "text_encoder" and config.part(p.name).train for p in parts)
    is_repeated = config.data.text_cache and not is_trained and config.training.epochs > 1
    for index, concept in enumerate(config.concepts):
        if not concept.enabled or concept.dataset_kind != "training":
            continue
        label = concept.label_at(index)
        for field, message, advice in _without_effect(concept.text, label, family):
            yield Problem(f"concepts.{index}.text.{field}", message, "warning", advice)
        if is_repeated and concept.text_variations == 1 and _is_random(concept.text):
            yield Problem(
                f"concepts.{index}.text_variations",
                f"The captions of the concept {label} are changed at random, but 1 text variation is cached: every "
                "epoch trains the same one of each caption.",
                "warning",
                "Raise Text variations, or switch caching of text embeddings off.",
            )


def _without_effect(text: CaptionChanges, label: str, family: FamilySpec) -> Iterator[tuple[str, str, str]]:
    """Yield the field, a message and advice for each change that is on but has no effect."""
    of = f"is on for the concept {label}, but"
    if text.tag_dropout and text.tag_dropout_probability == 0:
        message = f"Tag dropout {of} its probability is 0: it drops nothing."
        yield "tag_dropout_probability", message, "Raise the probability, or switch tag dropout off."
    elif text.tag_dropout and text.special_tags_mode == "blacklist" and not text.special_tags.strip():
        message = f"Tag dropout {of} only special tags may be dropped, and there are none."
        yield "special_tags", message, "Enter the special tags, or choose another special tags mode."
    if text.randomize_capitalization and family.text.is_lower_case:
        message = f"Randomize capitalization {of} the text encoders of {family.label} read all text in lower case."
        yield "randomize_capitalization", message, "Switch it off."
    elif text.randomize_capitalization and text.capitalization_probability == 0 and not text.lowercase_first:
        message = f"Randomize capitalization {of} its probability is 0: it changes nothing."
        yield "capitalization_probability", message, "Raise the probability, or switch it off."


def _is_random(text: CaptionChanges) -> bool:
    """Return whether two draws of the final caption may differ."""
    drops = text.tag_dropout and text.tag_dropout_probability > 0
    capitalizes = text.randomize_capitalization and text.capitalization_probability > 0
    return text.wildcards or text.shuffle_tags or drops or capitalizes


def _methods_of_pairs() -> str:
    return " or ".join(m.label for m in METHODS.values() if m.learns_from(m.settings.with_defaults()) == "pairs")


def pairs(config: Config) -> Iterator[Problem]:
    """Yield problems with concepts that do not have what the method learns from, and settings without effect."""
    if learns_from(config) == "pairs":
        yield from _for_a_method_of_pairs(config)
        return
    for index, concept in enumerate(config.concepts):
        if concept.enabled and concept.kind == "pairs":
            yield Problem(
                f"concepts.{index}.kind",
                f"The concept {_label(config, index)} holds preference pairs, which {method_of(config).label} does not "
                "train on.",
                advice=f"Set the method to {_methods_of_pairs()}, or change the concept type.",
            )


def _for_a_method_of_pairs(config: Config) -> Iterator[Problem]:
    label = method_of(config).label
    active = [(i, c) for i, c in enumerate(config.concepts) if c.enabled]
    if not any(c.kind == "pairs" for _, c in active):
        yield Problem(
            "concepts",
            f"{label} needs pairs of images, but no concept holds any.",
            advice="Add a folder with the subfolders chosen and rejected, or a table of pairs, as a concept. Without "
            "any, choose the method that learns from your own eye: its run keeps your choices as such a folder.",
            remedy="method",
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
    if config.masks.enabled and config.masks.prior_preservation_weight > 0:
        message = (
            f"Masked prior preservation has no effect with {label}: the masks only weigh the errors of both images."
        )
        yield Problem("masks.prior_preservation_weight", message, "warning", "Set it to 0.")


def _label(config: Config, index: int) -> str:
    return config.concepts[index].label_at(index)
