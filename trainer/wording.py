"""The words for the phases and the measurements of a run, and its numbers as text, wherever a run is shown."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from modules.rewards.registry import REWARDS

if TYPE_CHECKING:  # the window needs these classes when a run has begun
    from modules.objectives.reward_verdict import RewardVerdict
    from trainer.events import RewardMeasured, ValidationFinished

_UUID = re.compile(r"[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}")

PHASE_LABELS: Mapping[str, str] = {
    "": "Ready",
    "checking": "Checking",
    "starting": "Starting",
    "loading": "Loading the model",
    "estimating": "Estimating memory",
    "scanning": "Scanning images",
    "sending": "Sending files",
    "caching": "Caching",
    "dry_run": "Dry run",
    "training": "Training",
    "validating": "Validating",
    "sampling": "Sampling",
    "choosing": "Waiting for your choice",
    "saving": "Saving",
    "backing_up": "Backing up",
    "paused": "Paused",
    "stopping": "Stopping",
}

MIXED_16_BIT = (
    "This model cannot be computed in one 16-bit dtype with weights in the other on this device.",
    "Choose the same for the precision and for the weight dtype of each part, or float32 for one of them.",
)
"""The sentence and the advice for a model whose tensors autocast cannot join, before and during a run."""


def describe_validation(event: ValidationFinished) -> str:
    """Return a validation's loss and metrics, its step and the best one."""
    return f"{format_loss(event.loss)}{event.metric_words} at step {event.step:,}{_describe_best(event)}"


def _describe_best(event: ValidationFinished) -> str:
    if event.best_loss is None or event.best_step is None:
        return ""
    return ", best so far" if event.is_best else f"; best {format_loss(event.best_loss)} at step {event.best_step:,}"


def reward_line(event: RewardMeasured) -> str:
    """Return a reward measurement as a line: training reward, held-out reward, best step."""
    held_out = (
        f", held-out reward {format_loss(event.held_out)} ({reward_label(event.held_out_by)})"
        if event.held_out_by
        else ""
    )
    best = "" if event.best_step is None else f"; best at step {event.best_step:,}"
    end = ", best so far" if event.is_best else best
    return f"Reward {format_loss(event.followed)}{held_out} at step {event.step:,}{end}"


def reading_of(rewards: Sequence[RewardMeasured], kl: float | None = None) -> RewardVerdict | None:
    """Return the verdict on the measurements of a run, with its newest KL to the reference; None without a training
    reward: a run that only measures does not train on any.
    """
    from modules.objectives.reward_verdict import Measurement, read_rewards  # NumPy, which a window opens without

    measured = [
        Measurement(m.step, m.followed, m.held_out, m.diversity, m.saturation)
        for m in rewards
        if m.followed is not None
    ]
    return read_rewards(measured, kl) if measured else None


def reward_label(name: str) -> str:
    """Return the label of a reward model by the name that events use."""
    spec = REWARDS.get(name.rstrip("_0123456789"))
    return spec.label if spec else name


def part_label(name: str, labels: Mapping[str, str]) -> str:
    """Return the name of a training unit: the label of the family's part, or of an embedding by its placeholder."""
    kind, _, key = name.partition(":")
    return embedding_label(key) if kind == "embedding" and name not in labels else labels.get(name, name)


def embedding_label(key: str) -> str:
    """Return the name of an embedding: "embedding" and its placeholder; a UUID of another program is left out."""
    return "embedding" if _UUID.fullmatch(key) else f"embedding {key}"


def format_loss(value: float | None) -> str:
    """Return a loss in four digits; a dash for None."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:.4f}" if 0.001 <= abs(value) < 1000 else format_rate(value)


def format_rate(value: float) -> str:
    """Return a learning rate or another small number in three digits."""
    return f"{value:.3g}".replace("e-0", "e-")


def format_speed(images_per_second: float) -> str:
    """Return a speed in three digits: also below one image a second, and above a thousand."""
    return f"{images_per_second:.3g}" if images_per_second < 999.5 else f"{images_per_second:,.0f}"
