"""A sentence about the rewards of a run: whether it learns what it should, or games its reward.

A model that is trained on a reward for too long finds what the reward model overlooks: the reward rises, but a held-out
reward falls, the images of a prompt become the same, or their colours glaring (Gao et al. 2022, arXiv 2210.10760; Black
et al. 2023, arXiv 2305.13301). Each measurement has the same prompts and seeds, so values are compared directly; how
much they vary from one to the next shows which differences are chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Finding = Literal["unknown", "learning", "flat", "falling", "gaming"]

MIN_MEASUREMENTS = 4
_ERRORS = 2.0  # standard errors; a smaller difference is taken for chance
_MIN_AFTER_BEST = 2  # measurements, for a fall that lasts
_MIN_DIVERSITY, _MAX_SATURATION = 0.5, 1.5  # shares of the value at the start
_SMALL_SATURATION = 0.05  # a rise that is not seen
_TINY = 1e-6


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measurement after a step: the reward, the held-out reward, the diversity of a prompt's images and their
    saturation; None for what was not measured.
    """

    step: int
    reward: float
    held_out: float | None = None
    diversity: float | None = None
    saturation: float | None = None


@dataclass(frozen=True, slots=True)
class RewardVerdict:
    """The finding, and the sentence for it; `since_step` is the step since which the held-out reward falls, or None."""

    finding: Finding
    sentence: str
    since_step: int | None = None

    @property
    def title(self) -> str:
        """The finding as a title."""
        return self.sentence.partition(":")[0]

    @property
    def reason(self) -> str:
        """The sentence after the title."""
        reason = self.sentence.partition(":")[2].strip()
        return reason[:1].upper() + reason[1:]


def read_rewards(measurements: Sequence[Measurement], kl: float | None = None) -> RewardVerdict:
    """Return the verdict on the measurements of a run, in the order of their steps; all values are finite.

    `kl` is the newest KL to the reference, which the sentence reports.
    """
    if len(measurements) < MIN_MEASUREMENTS:
        return RewardVerdict(
            "unknown", f"Too early to say: {len(measurements)} of {MIN_MEASUREMENTS} measurements of the reward."
        )
    first, last = measurements[0], measurements[-1]
    change = _direction([m.reward for m in measurements])
    course = f"{first.reward:.4g} to {last.reward:.4g}"
    distance = "" if kl is None else f" The KL to the reference is {kl:.3g}."
    if change < 0:
        return RewardVerdict(
            "falling", f"Not learning: the reward fell, {course}. A lower learning rate may help.{distance}"
        )
    if change == 0:
        return RewardVerdict(
            "flat",
            f"Flat: the reward changed by less than it varies between measurements, {course}. Train longer, or raise "
            f"the learning rate.{distance}",
        )
    signs, since = _signs_of_gaming(measurements)
    if signs:
        return RewardVerdict(
            "gaming",
            f"Gaming the reward: it rose, {course}, but {' and '.join(signs)}.{distance} Earlier models may be better; "
            "stop, or add a KL weight or another reward model.",
            since,
        )
    if last.held_out is None:
        return RewardVerdict(
            "learning", f"Learning: the reward rose, {course}. Only a held-out reward shows whether it games.{distance}"
        )
    return RewardVerdict(
        "learning",
        f"Learning: the reward rose, {course}, and the held-out reward did not fall, {first.held_out:.4g} to "
        f"{last.held_out:.4g}.{distance}",
    )


def _direction(values: Sequence[float]) -> int:
    """Return 1 if values rose from the first quarter to the last one, -1 if they fell, 0 if that may be chance."""
    count = max(1, len(values) // 4)
    difference = float(np.mean(values[-count:]) - np.mean(values[:count]))
    limit = max(_ERRORS * _noise(values) * np.sqrt(2 / count), _TINY * float(np.abs(values).max()))
    return int(np.sign(difference)) if abs(difference) > limit else 0


def _noise(values: Sequence[float]) -> float:
    """Return the standard deviation of a single value around a steady course, from the differences of neighbours."""
    return float(np.diff(values).std() / np.sqrt(2))


def _signs_of_gaming(measurements: Sequence[Measurement]) -> tuple[list[str], int | None]:
    """Return the signs of gaming, as parts of a sentence, and the step since which the held-out reward falls.

    A sign is a quantity that became worse while the training reward rose.
    """
    signs, since = [], _fell_since(measurements)
    if since is not None:
        now, best = measurements[-1].held_out, next(m.held_out for m in measurements if m.step == since)
        signs.append(f"the held-out reward fell since step {since:,}, {best:.4g} to {now:.4g}")
    start, now = _ends([m.diversity for m in measurements])
    if now < _MIN_DIVERSITY * start:
        signs.append(f"the diversity of a prompt's images fell from {start:.3g} to {now:.3g}")
    start, now = _ends([m.saturation for m in measurements])
    if now > max(_MAX_SATURATION * start, start + _SMALL_SATURATION):
        signs.append(f"the saturation of the colours rose from {start:.3g} to {now:.3g}")
    return signs, since


def _ends(values: Sequence[float | None]) -> tuple[float, float]:
    """Return the first and the last value of those that were measured; zeros without any."""
    known = [value for value in values if value is not None] or [0.0]
    return known[0], known[-1]


def _fell_since(measurements: Sequence[Measurement]) -> int | None:
    """Return the step of the highest held-out reward if it has clearly fallen since, in the last measurements."""
    known = [(m.step, m.held_out) for m in measurements if m.held_out is not None]
    if len(known) < MIN_MEASUREMENTS:
        return None
    values = [value for _, value in known]
    best = int(np.argmax(values))
    after = values[best + 1 :][-_MIN_AFTER_BEST:]
    limit = max(_ERRORS * _noise(values), _TINY * float(np.abs(values).max()))
    return known[best][0] if len(after) == _MIN_AFTER_BEST and max(after) < values[best] - limit else None
