"""How a method samples images during training; most methods, and the window at its start, sample none."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RolloutFacts:
    """How a method samples: its denoising steps, its guidance scale, and the maximum number of last steps that its loss
    backpropagates through (0: it samples without gradient).

    `samples_per_prompt` is the number of images sampled for each prompt, `trained_steps` the number of denoising steps
    of each of them that are trained one by one, in separate passes (0: none are), `trained_timesteps` the number of
    random timesteps at which each finished image is trained in a pass of its own, without guidance. `images_per_pass`
    is how many images of a prompt such a pass, or a pass of a loss on finished images, contains: 2 for a pair.
    `predicts_before_training`: the model itself makes each trained pass once without gradient before the step.
    `trained_per_prompt` is how many of the images of a prompt are trained (0: all). `size` is the width and height of
    the images in pixels; None for the images of the batch. `sampling_passes` is how many predictions sample an image
    (0: one for each step). `sampler` is the name of its sampler; empty for the steps of DDIM that it trains on.
    `uses_own_images`: the images of the data are noised in place of sampled ones; only measurements sample.
    """

    steps: int
    guidance: float
    gradient_steps: int = 0
    samples_per_prompt: int = 1
    trained_steps: int = 0
    trained_timesteps: int = 0
    predicts_before_training: bool = False
    images_per_pass: int = 1
    trained_per_prompt: int = 0
    size: tuple[int, int] | None = None
    sampling_passes: int = 0
    sampler: str = ""
    uses_own_images: bool = False

    @property
    def is_guided(self) -> bool:
        """Whether sampling doubles the batch for guidance."""
        return self.guidance > 1

    @property
    def trains_guided(self) -> bool:
        """Whether the passes that are trained are denoising steps with guidance, and not passes of another loss."""
        return self.is_guided and (self.gradient_steps > 0 or self.trained_steps > 0)
