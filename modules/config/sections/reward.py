"""Rewards: what rates the images that a reward method paints."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Le

from modules.rewards.registry import NEED_CLIP, NEED_FILES, reward_labels
from modules.settings.every import Every
from modules.settings.field import Section, Setting, When, one_of

_A_REWARD_METHOD = When("training.method", ("alignprop",))


class Scorer(Section):
    """One reward model of images and how much its word counts."""

    enabled: Annotated[bool, Setting("Enabled", "Whether it is asked.")] = True
    kind: Annotated[
        str,
        *one_of(reward_labels),
        Setting(
            "RewardModel",
            "Aesthetic rates how pleasing an image is, whatever its caption. HPS and PickScore rate how well people "
            "would like it as a picture of its caption, the CLIP score how well it fits. The plain ones, from "
            "brightness to symmetry, need no file.",
        ),
    ] = "aesthetic"
    weight: Annotated[
        float, Ge(0), Le(1000), Setting("Weight", "How much its rating counts against those of the others.")
    ] = 1.0
    file: Annotated[
        str,
        Setting(
            "File",
            "Its weights: a file, a folder or a repository at Hugging Face. For your own function, the Python file and "
            "the function's name, as in rewards/mine.py:score; it is run as a program.",
            path_kind="file",
            empty_means="the published ones",
            applies_when=When("kind", (*NEED_FILES, "user_code")),
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
            applies_when=When("kind", NEED_CLIP),
        ),
    ] = ""
    colour: Annotated[
        str,
        Setting(
            "Colour",
            "The colour that is aimed at, as #rrggbb.",
            applies_when=When("kind", ("colour_target",)),
        ),
    ] = "#ff0000"


class Reward(Section):
    """The reward models whose ratings the reward methods follow. The other methods ask none."""

    models: Annotated[
        tuple[Scorer, ...],
        Setting("RewardModels", "Who rates the images that a reward method paints.", group="Reward"),
    ] = ()
    measure_every: Annotated[
        Every,
        Setting(
            "Measure the reward",
            "How often the reward models, also the one held out, rate images that are painted for it: always of "
            "the same "
            "prompts and seeds, those of the samples, or else captions of the validation images.",
            group="Reward",
            applies_when=_A_REWARD_METHOD,
            changeable_on_resume=True,
        ),
    ] = Every(n=20, unit="step")
    num_images: Annotated[
        int,
        Ge(1),
        Le(1000),
        Setting(
            "Images per measurement",
            "How many images are painted for a measurement. More give a steadier number and take longer.",
            unit="images",
            group="Reward",
            level="advanced",
            applies_when=_A_REWARD_METHOD,
        ),
    ] = 8
    early_stopping_patience: Annotated[
        int,
        Ge(0),
        Le(10_000),
        Setting(
            "Stop early after",
            "The run ends, and saves, once this many measurements in a row were not better than the best before them, "
            "by the held-out reward model, or by those that are followed where none is. 0 never stops early.",
            unit="measurements",
            group="Reward",
            applies_when=_A_REWARD_METHOD,
            changeable_on_resume=True,
        ),
    ] = 0
