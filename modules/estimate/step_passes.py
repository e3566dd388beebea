"""The passes through the denoiser in an optimizer step, on which its time depends."""

from __future__ import annotations

from dataclasses import dataclass

from modules.objectives.rollout_facts import RolloutFacts

_FORWARD, _BACKWARD = 1.0, 2.0  # the usual ratio of their FLOPs


@dataclass(frozen=True, slots=True)
class StepPasses:
    """How many images on average pass through the denoiser in an optimizer step; with guidance each counts twice.

    `with_gradient` are the trained ones, `num_sampled` the number of sampled images. `repeats_forward`: the backward
    pass computes the forward pass again (checkpointing).
    """

    without_gradient: float
    with_gradient: float
    num_sampled: float = 0.0
    repeats_forward: bool = False

    @property
    def cost(self) -> float:
        """The cost in forward passes of one image."""
        trained = _FORWARD + _BACKWARD + (_FORWARD if self.repeats_forward else 0.0)
        return _FORWARD * self.without_gradient + trained * self.with_gradient

    def times_denoising(self, num_images: int) -> float:
        """Return the number of plain training steps with `num_images` images each that take as long."""
        return self.cost / StepPasses(0.0, num_images, repeats_forward=self.repeats_forward).cost


def passes_of_step(
    batch_size: int,
    *,
    rollout: RolloutFacts | None,
    sampled_share: float,
    images_per_pass: int,
    num_references: int,
    steps_per_group: int,
    repeats_forward: bool,
) -> StepPasses:
    """Return the passes of an optimizer step whose accumulation group has `batch_size` samples in all.

    `sampled_share` is the share of steps that sample; in the others, `images_per_pass` images of each sample of the
    batch pass through the denoiser. Each trained pass is repeated without gradient by each of the reference models, and
    before a step by the model itself if a rollout has `predicts_before_training`. Several steps that train on one
    rollout share the passes that sampled it.
    """
    plain = float(batch_size * images_per_pass)
    if rollout is None:
        return StepPasses(plain * num_references, plain, repeats_forward=repeats_forward)
    doubled = 1 + rollout.is_guided
    num_images = batch_size * rollout.samples_per_prompt / steps_per_group
    if rollout.gradient_steps:  # one graph of the last denoising steps
        sampling = num_images * doubled * (0 if rollout.uses_own_images else rollout.steps - rollout.gradient_steps)
        trained = num_images * doubled * rollout.gradient_steps
    else:  # separate passes: each trained denoising step or timestep, or a loss on the finished images
        sampling = num_images * doubled * (rollout.sampling_passes or rollout.steps)
        per_prompt = rollout.trained_per_prompt or rollout.samples_per_prompt
        trained_alone = rollout.trained_steps * doubled + rollout.trained_timesteps
        passes = per_prompt * trained_alone if trained_alone else 1
        trained = float(batch_size * passes * rollout.images_per_pass)
    reference = trained * (num_references + rollout.predicts_before_training)
    return StepPasses(
        sampled_share * (sampling + reference),
        sampled_share * trained + (1 - sampled_share) * plain,
        0.0 if rollout.uses_own_images else sampled_share * num_images,
        repeats_forward,
    )
