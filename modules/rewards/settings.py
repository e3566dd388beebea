"""The settings of a reward model, one flat record for every kind: a field shows where the kind's own record uses it."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Le

from modules.rewards.registry import reward_labels, rewards_using
from modules.settings.field import Section, Setting, When, one_of


class Scorer(Section):
    """One reward model and how much its score counts."""

    enabled: Annotated[bool, Setting("Enabled", "Whether it is used.")] = True
    kind: Annotated[
        str,
        *one_of(reward_labels),
        Setting(
            "Reward model",
            "What scores the images: a published reward model, a plain measure that needs no file, or a function of "
            "your own.",
        ),
    ] = "aesthetic"
    weight: Annotated[
        float, Ge(0), Le(1000), Setting("Weight", "How much its score counts against those of the others.")
    ] = 1.0
    file: Annotated[
        str,
        Setting(
            "File",
            "Its weights: a file, a folder or a repository at Hugging Face. For your own function, the Python file and "
            "the function's name, as in rewards/mine.py:score; it is run as a program.",
            path_kind="file",
            empty_means="the published ones",
            applies_when=When("kind", rewards_using("file")),
        ),
    ] = ""
    clip_model: Annotated[
        str,
        Setting(
            "CLIP model",
            "The CLIP model it looks through: a folder or a repository in transformers' layout.",
            level="advanced",
            path_kind="folder",
            empty_means="the published one",
            applies_when=When("kind", rewards_using("clip_model")),
        ),
    ] = ""
    colour: Annotated[
        str,
        Setting(
            "Colour",
            "The colour that is aimed at, as #rrggbb.",
            applies_when=When("kind", rewards_using("colour")),
        ),
    ] = "#ff0000"
