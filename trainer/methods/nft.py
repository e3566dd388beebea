"""DiffusionNFT and AWM: the objectives of a policy on the forward process (`forward_policy.py`)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from modules.config.sections.training import Training
from modules.diffusion.process import NoiseProcess
from modules.objectives.forward_policy import (
    matching_log_ratios,
    negative_aware_losses,
    optimality,
    prediction_gaps,
)
from modules.objectives.methods import nft as settings
from modules.objectives.policy_losses import clipped_surrogate
from modules.rewards.composite import CompositeReward
from modules.system.errors import DarkroomError
from trainer.methods.forward_policy import (
    ForwardObjective,
    ForwardPolicy,
    Losses,
    Metrics,
    NoisedChunk,
    add_ratio_metrics,
    forward_policy,
)
from trainer.methods.policy_batches import PolicyBatch
from trainer.methods.protocol import StepContext


@dataclass(frozen=True)
class NegativeAware:
    """DiffusionNFT: predictions are drawn towards better images, a mirrored model's predictions towards worse ones."""

    beta: float
    advantage_clip: float
    may_clip: bool = False
    shares_noise: bool = False

    def prepare(self, context: StepContext) -> None:
        """Raise DarkroomError if the image does not follow from a prediction of the model."""
        require_predicted_images(context.family.process)

    def before_step(self, policy: ForwardPolicy, batches: Sequence[PolicyBatch], context: StepContext) -> None:
        """Do nothing: each image has a loss of its own."""

    def losses(self, policy: ForwardPolicy, noised: NoisedChunk, known: None, metrics: Metrics) -> Losses:
        """Return the losses (`ForwardObjective`)."""
        with policy.old.active(noised.context):
            old_BCHW = noised.predict()
        original_BCHW, new_BCHW = policy.original(noised), noised.predict()
        process = noised.context.family.process
        to_x0 = functools.partial(process.to_x0, noised.noisy_BCHW, timesteps_B=noised.timesteps_B)
        optimality_B = optimality(noised.advantages_B, limit=self.advantage_clip)
        losses_B = negative_aware_losses(
            noised.clean_BCHW, to_x0(new_BCHW), to_x0(old_BCHW), optimality_B, beta=self.beta
        )
        return self.advantage_clip * losses_B, original_BCHW, new_BCHW


@dataclass(frozen=True)
class AdvantageWeighted:
    """AWM: the negative denoising loss of an image is its log-probability, in the clipped surrogate of PPO."""

    clip_range: float
    advantage_clip: float
    sampling_kl_weight: float
    may_clip: bool = True
    shares_noise: bool = False

    def prepare(self, context: StepContext) -> None:
        """Do nothing: the loss is defined for every process."""

    def before_step(self, policy: ForwardPolicy, batches: Sequence[PolicyBatch], context: StepContext) -> None:
        """Do nothing: each image has a loss of its own."""

    def losses(self, policy: ForwardPolicy, noised: NoisedChunk, known: None, metrics: Metrics) -> Losses:
        """Return the losses (`ForwardObjective`)."""
        with policy.old.active(noised.context):
            old_BCHW = noised.predict()
        original_BCHW, new_BCHW = policy.original(noised), noised.predict()
        log_ratios_B = matching_log_ratios(new_BCHW, old_BCHW, noised.target_BCHW)
        add_ratio_metrics(metrics, log_ratios_B, clip_range=self.clip_range)
        advantages_B = noised.advantages_B.clamp(-self.advantage_clip, self.advantage_clip)
        surrogate_B = clipped_surrogate(log_ratios_B, advantages_B, clip_range=self.clip_range)
        losses_B = surrogate_B + self.sampling_kl_weight * prediction_gaps(new_BCHW, old_BCHW)
        return losses_B, original_BCHW, new_BCHW


def require_predicted_images(process: NoiseProcess) -> None:
    """Raise DarkroomError for a process at whose last timestep the image does not follow from a prediction."""
    last = torch.tensor([process.num_timesteps - 1])
    if process.prediction_type == "epsilon" and not process.snr(last).all():
        raise DarkroomError(
            "DiffusionNFT trains on predicted images, and a model that predicts epsilon with zero terminal SNR "
            "predicts none at its last timestep.",
            advice="Set the prediction type to v-prediction, turn zero terminal SNR off, or choose the objective AWM.",
        )


def build(chosen: settings.Nft, training: Training, reward: CompositeReward | None) -> ForwardPolicy:
    """Return the method from its settings and the run's noise settings. Raises ValueError without a reward."""
    objective: ForwardObjective = NegativeAware(chosen.beta, chosen.advantage_clip)
    if chosen.objective == "advantage_weighted":
        objective = AdvantageWeighted(chosen.clip_range, chosen.advantage_clip, chosen.sampling_kl_weight)
    return forward_policy(chosen, training, reward, objective)
