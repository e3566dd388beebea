"""Rewards: the models that score the images sampled by a reward method."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Interval

from modules.objectives.registry import policy_methods, reward_methods
from modules.rewards.settings import Scorer
from modules.settings.every import Every
from modules.settings.field import Section, Setting, When, advanced_setting
from modules.settings.shared_types import CountTo1000

_A_REWARD_METHOD = When("training.method", reward_methods)
_A_POLICY_METHOD = When("training.method", policy_methods)


class Reward(Section):
    """The reward models that reward methods train on. The other methods need none."""

    group: ClassVar[str] = "Reward"

    models: Annotated[
        tuple[Scorer, ...], Setting("Reward models", "The models that score the images sampled by a reward method.")
    ] = ()
    measure_every: Annotated[
        Every,
        Setting(
            "Measure the reward",
            "How often the reward is measured, including the held-out reward. The images are always sampled with the "
            "same prompts and seeds: the prompts of the samples, or captions of the validation images.",
            applies_when=_A_REWARD_METHOD,
            changeable_on_resume=True,
        ),
    ] = Every(n=20, unit="step")
    num_images: Annotated[
        CountTo1000,
        advanced_setting(
            "Images per measurement",
            "How many images are sampled for a measurement. More give a more stable score and take longer.",
            unit="images",
            applies_when=_A_REWARD_METHOD,
        ),
    ] = 8
    early_stopping_patience: Annotated[
        int,
        *Interval(ge=0, le=10_000),
        Setting(
            "Early stopping patience",
            "The run saves and ends after this many measurements in a row without a new best, by the held-out reward "
            "or, without one, by the trained rewards. 0 never stops early.",
            unit="measurements",
            applies_when=_A_REWARD_METHOD,
            changeable_on_resume=True,
        ),
    ] = 0
    keep_best: Annotated[
        bool,
        Setting(
            "Keep best checkpoint",
            "Whenever the held-out reward (without one, the trained reward) reaches a new high, the model is saved in "
            'the run\'s save folder as "...-best-reward", replacing the previous one. The measurement before the first '
            "step does not count.",
            applies_when=_A_REWARD_METHOD,
            changeable_on_resume=True,
        ),
    ] = False
    result: Annotated[
        Literal["last", "best"],
        Setting(
            "Result",
            "Which model becomes the result when the run ends: the one after the last step, or the one with the "
            "highest reward.",
            choice_labels={"last": "Last step", "best": "Best checkpoint"},
            applies_when=When("keep_best", (True,)),
            changeable_on_resume=True,
        ),
    ] = "last"
    stop_at_reward: Annotated[
        float | None,
        *Interval(ge=-1000, le=1000),
        Setting(
            "Stop at reward",
            "The run saves and ends when the measured reward of the trained reward models (their weighted sum) "
            "reaches this value. Training a reward further than needed makes images worse in other ways.",
            group="Overoptimization",
            empty_means="no target",
            applies_when=_A_REWARD_METHOD,
            changeable_on_resume=True,
        ),
    ] = None
    min_diversity: Annotated[
        float | None,
        *Interval(gt=0, lt=1),
        Setting(
            "Min diversity",
            "The run saves and ends when the images of a prompt differ less than this share of how much they differed "
            "at the start: the model begins to sample the same image again and again. Methods that sample several "
            "images per prompt measure it in every rollout; for the others, each prompt is measured with at least two "
            "seeds. A usual value is 0.5.",
            group="Overoptimization",
            empty_means="no limit",
            applies_when=_A_REWARD_METHOD,
            changeable_on_resume=True,
        ),
    ] = None
    max_kl: Annotated[
        float | None,
        *Interval(gt=0, le=1_000_000),
        Setting(
            "Max KL",
            "The run saves and ends when the model has moved this far away from the reference model (KL per denoising "
            "step, averaged over the latents).",
            group="Overoptimization",
            empty_means="no limit",
            applies_when=_A_POLICY_METHOD,
            changeable_on_resume=True,
        ),
    ] = None
    guard_steps: Annotated[
        int,
        *Interval(ge=1, le=10_000),
        advanced_setting(
            "Steps averaged",
            "The diversity and the KL of rollouts are averaged over this many steps before they are compared with "
            "their limits, because single rollouts differ.",
            unit="steps",
            group="Overoptimization",
            applies_when=_A_POLICY_METHOD,
        ),
    ] = 10
