"""Rewards: what scores the images that a reward method samples."""

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
        Setting("Reward models", "What scores the images that a reward method samples.", group="Reward"),
    ] = ()
    measure_every: Annotated[
        Every,
        Setting(
            "Measure the reward",
            "How often the reward models, also the one held out, score images that are sampled for it: always of the "
            "same prompts and seeds, those of the samples, or else captions of the validation images.",
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
            "How many images are sampled for a measurement. More give a steadier number and take longer.",
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
