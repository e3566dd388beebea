"""Rewards: the models that score the images sampled by a reward method."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Le

from modules.objectives.registry import reward_methods
from modules.rewards.settings import Scorer
from modules.settings.every import Every
from modules.settings.field import Section, Setting, When

_A_REWARD_METHOD = When("training.method", reward_methods())


class Reward(Section):
    """The reward models that reward methods train on. The other methods need none."""

    models: Annotated[
        tuple[Scorer, ...],
        Setting("Reward models", "The models that score the images sampled by a reward method.", group="Reward"),
    ] = ()
    measure_every: Annotated[
        Every,
        Setting(
            "Measure the reward",
            "How often the reward is measured, including the held-out reward. The images are always sampled with the "
            "same prompts and seeds: those of the samples, or captions of the validation images.",
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
            "How many images are sampled for a measurement. More give a more stable score and take longer.",
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
            "Early stopping patience",
            "The run saves and ends after this many measurements in a row without a new best, by the held-out reward "
            "or, without one, by the trained rewards. 0 never stops early.",
            unit="measurements",
            group="Reward",
            applies_when=_A_REWARD_METHOD,
            changeable_on_resume=True,
        ),
    ] = 0
