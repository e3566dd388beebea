"""Building online DPO from its settings."""

from __future__ import annotations

from modules.config.sections.training import Training
from modules.data.buckets import Size
from modules.objectives.methods import online_dpo as settings
from modules.objectives.rollout_fields import size_of
from modules.rewards.composite import CompositeReward
from modules.sampling.rollout import RolloutSettings
from modules.sampling.step_selection import RandomShare
from trainer.methods import choosing
from trainer.methods.dpo import PairLoss
from trainer.methods.held_reference import HeldReference
from trainer.methods.image_pairs import ImagePairs
from trainer.methods.noising import noising_of
from trainer.methods.online_dpo import OnlineDpo
from trainer.methods.rollouts import Sampling
from trainer.methods.step_pairs import StepPairs, StepPairSettings


def build(chosen: settings.OnlineDpo, training: Training, reward: CompositeReward | None) -> OnlineDpo:
    """Return the method from its settings and the run's noise settings; a person needs no reward."""
    if reward is None and chosen.chosen_by == "reward":
        raise ValueError("Online DPO needs a reward, or a person who chooses.")
    reward = reward or CompositeReward(())
    reference = HeldReference(chosen.refresh_every if chosen.reference == "refreshed" else 0)
    pairing = _step_pairs(chosen, reward) if chosen.pairs == "steps" else _image_pairs(chosen, training, reward)
    return OnlineDpo(pairing, reference, chosen.updates_per_rollout, chosen.pairs_per_update)


def _image_pairs(chosen: settings.OnlineDpo, training: Training, reward: CompositeReward) -> ImagePairs:
    loop = RolloutSettings(chosen.steps, chosen.guidance)
    return ImagePairs(
        reward,
        Sampling(chosen.samples_per_prompt, loop, size=_size(chosen), sampler=chosen.sampler),
        chosen.reward_sum,
        PairLoss(chosen.loss, chosen.beta, chosen.label_smoothing, chosen.sft_weight),
        noising_of(training.noise),
        wait=choosing.wait_a_moment if chosen.chosen_by == "person" else None,
    )


def _step_pairs(chosen: settings.OnlineDpo, reward: CompositeReward) -> StepPairs:
    return StepPairs(
        reward,
        RolloutSettings(chosen.steps, chosen.guidance, eta=1.0),
        _size(chosen),
        StepPairSettings(
            num_candidates=chosen.candidates,
            selection=RandomShare(chosen.timestep_share),
            max_timestep=chosen.max_timestep,
            beta=chosen.step_beta,
            ratio_clip=chosen.ratio_clip,
            reward_sum=chosen.reward_sum,
        ),
    )


def _size(chosen: settings.OnlineDpo) -> Size | None:
    sides = size_of(chosen.size)
    return Size(*sides) if sides else None
