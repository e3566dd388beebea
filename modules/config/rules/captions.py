"""Settings of captions that change nothing, or less than they seem to. No file is read."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.schema import Config
from modules.data.captions.settings import CaptionChanges
from modules.families.registry import FAMILIES
from modules.families.spec import FamilySpec
from modules.system.problem import Problem


def caption_changes(config: Config) -> Iterator[Problem]:
    """Yield a warning for each operation of probability 0, and for random ones that are drawn once for a whole run."""
    family = FAMILIES[config.model.family]
    parts = family.parts
    is_trained = any(p.role == "text_encoder" and config.part(p.name).train for p in parts)
    is_repeated = config.data.text_cache and not is_trained and config.training.epochs > 1
    for index, concept in enumerate(config.concepts):
        if not concept.enabled or concept.dataset_kind != "training":
            continue
        label = concept.name or f"number {index + 1}"
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
    """Yield the field, a message and advice for what is on but changes nothing."""
    of = f"is on for the concept {label}, but"
    if text.tag_dropout and text.tag_dropout_probability == 0:
        message = f"Tag dropout {of} its probability is 0: it drops nothing."
        yield "tag_dropout_probability", message, "Raise the probability, or switch tag dropout off."
    elif text.tag_dropout and text.special_tags_mode == "blacklist" and not text.special_tags.strip():
        message = f"Tag dropout {of} only special tags may be dropped, and there are none."
        yield "special_tags", message, "Enter the special tags, or choose another special tags mode."
    if text.randomize_capitalization and family.lowercases_text:
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
