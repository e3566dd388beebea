"""The newest rollout and its images as text. No Tk."""

from __future__ import annotations

import math

from modules.system.problem import count
from trainer.rollout_events import RolloutSampled, SampledImage
from ui.loop.metric_curves import short_number
from ui.loop.wording import loss, reward_label


def rollout_line(rollout: RolloutSampled) -> str:
    """Return a rollout as a line: its step, its number of images and prompts, and their mean reward."""
    rewards = [i.reward for i in rollout.images if i.reward is not None and math.isfinite(i.reward)]
    mean = f", mean reward {short_number(sum(rewards) / len(rewards))}" if rewards else ""
    prompts = count(len({image.prompt for image in rollout.images}), "prompt")
    return f"Step {rollout.step + 1:,}: {count(len(rollout.images), 'image')} of {prompts}{mean}"


def image_words(image: SampledImage) -> str:
    """Return an image of a rollout with its prompt, its reward and the score of each reward model."""
    mark = f", {image.mark} of its prompt" if image.mark else ""
    reward = f"Reward {loss(image.reward)}{mark}" if image.reward is not None else f"No score{mark}"
    scores = "   ".join(f"{reward_label(name)} {loss(value)}" for name, value in image.by_reward_model.items())
    return "\n".join(line for line in (" ".join(image.prompt.split()), reward, scores) if line)
