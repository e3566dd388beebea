"""The settings of a reward model, one flat record for every kind: a field applies where the kind's record uses it."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Le

from modules.rewards.registry import reward_labels, rewards_using
from modules.settings.field import Section, Setting, When, one_of


class Scorer(Section):
    """One reward model and the weight of its score."""

    enabled: Annotated[bool, Setting("Enabled", "Whether this reward model is used.")] = True
    kind: Annotated[
        str,
        *one_of(reward_labels),
        Setting(
            "Reward model",
            "How images are scored: by a published reward model, by a simple measure that needs no file, or by your "
            "own function.",
        ),
    ] = "aesthetic"
    weight: Annotated[
        float, Ge(0), Le(1000), Setting("Weight", "The weight of its score relative to the other reward models.")
    ] = 1.0
    file: Annotated[
        str,
        Setting(
            "File",
            "Its weights: a file, a folder or a Hugging Face repository. For a custom function: the Python file and "
            "the function's name, for example rewards/mine.py:score; the file runs as a program.",
            path_kind="file",
            empty_means="the published weights",
            applies_when=When("kind", rewards_using("file")),
        ),
    ] = ""
    clip_model: Annotated[
        str,
        Setting(
            "CLIP model",
            "The CLIP model that encodes the images: a folder or a repository in transformers' layout.",
            level="advanced",
            path_kind="folder",
            empty_means="the published CLIP model",
            applies_when=When("kind", rewards_using("clip_model")),
        ),
    ] = ""
    vocabulary: Annotated[
        str,
        Setting(
            "Vocabulary",
            "The text encoder's vocabulary, vocab.txt: a file or a repository.",
            level="advanced",
            path_kind="file",
            empty_means="the published vocabulary",
            applies_when=When("kind", rewards_using("vocabulary")),
        ),
    ] = ""
    colour: Annotated[
        str,
        Setting(
            "Colour",
            "The target colour, as #rrggbb.",
            applies_when=When("kind", rewards_using("colour")),
        ),
    ] = "#ff0000"
    jpeg_quality: Annotated[
        int,
        Ge(1),
        Le(95),
        Setting(
            "JPEG quality",
            "The quality at which images are compressed to measure their file size.",
            level="advanced",
            applies_when=When("kind", rewards_using("jpeg_quality")),
        ),
    ] = 95
