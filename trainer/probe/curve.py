"""The range test of learning rates (Smith 2017, "Cyclical Learning Rates for Training Neural Networks", section 3.3).

The loss while the rate rises, and the rate at which it falls most steeply. A diffusion loss depends far
more on the drawn timestep and noise than on the weights. A run's draws follow from counters, so the same steps are
computed a second time with untrained weights, and the difference of the two losses is what the rate did.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]

_WINDOW_SHARE = 1 / 6  # of all points: the width of the moving average
_QUIET_SHARE = 1 / 4  # of the points, at rates that change nothing yet: their spread is the noise
_CLEAR = 2.0  # times the noise of a mean, that a fall must exceed
_RISEN = 0.25  # of the untrained loss, above which the run counts as diverging


@dataclass(frozen=True, slots=True)
class RatePoint:
    """A step of the sweep: its learning rate, its loss, and the loss of the same step with untrained weights."""

    rate: float
    loss: float
    untrained_loss: float

    @property
    def change(self) -> float:
        """The change of the loss of this step by training."""
        return self.loss - self.untrained_loss


@dataclass(frozen=True, slots=True)
class RateResult:
    """The sweep with its smoothed changes; `suggested` is None without a clear fall, `diverges_at` if it never rose."""

    points: tuple[RatePoint, ...]
    smoothed: tuple[float, ...]
    suggested: float | None
    diverges_at: float | None

    def __str__(self) -> str:
        last = f"{self.points[-1].rate:.2g}" if self.points else "the largest rate"
        end = f" It diverges from about {self.diverges_at:.2g}." if self.diverges_at else f" It is stable up to {last}."
        if self.suggested is None:
            text = "The loss does not fall clearly anywhere: no learning rate stands out."
            return f"{text}{end} Try more steps, or a wider range."
        steepest = f"The loss falls most steeply at a learning rate of about {self.suggested:.1e}."
        return f"{steepest} Long runs usually take between a tenth and all of it.{end}"


def swept_rate(index: int, num_steps: int, lowest: float, highest: float) -> float:
    """Return the rate of a step: it grows by the same factor each step."""
    return lowest * math.pow(highest / lowest, index / max(1, num_steps - 1))


def sweep_expression(num_steps: int, lowest: float, highest: float) -> str:
    """Return the sweep as the formula of an "expression" schedule, relative to the highest rate."""
    return f"exp({math.log(lowest / highest):.9f} * (1 - min(1, step / {max(1, num_steps - 1)})))"


def has_diverged(loss: float, untrained_loss: float) -> bool:
    """Return whether a step is so bad that the sweep can end."""
    return not math.isfinite(loss) or loss > 4 * untrained_loss + 1


def evaluate_sweep(points: Sequence[RatePoint]) -> RateResult:
    """Return the result of a sweep; steps with a loss that is not finite end it."""
    end = next((i for i, p in enumerate(points) if not math.isfinite(p.change)), len(points))
    kept = tuple(points[:end])
    broken = points[end].rate if end < len(points) else None
    if len(kept) < 4:
        return RateResult(kept, tuple(p.change for p in kept), None, broken)
    changes = np.array([p.change for p in kept])
    window = max(3, round(len(kept) * _WINDOW_SHARE))
    smoothed = _moving_average(_moving_average(changes, window), window)  # twice, so that no single step makes a slope
    untrained = float(np.mean([p.untrained_loss for p in kept]))
    risen = np.flatnonzero(smoothed > _RISEN * untrained)
    diverges = kept[int(risen[0])].rate if len(risen) else broken
    last = int(risen[0]) + 1 if len(risen) else len(kept)
    return RateResult(kept, tuple(smoothed.tolist()), _steepest(kept, changes, smoothed, last), diverges)


def _steepest(points: Sequence[RatePoint], changes: Values, smoothed: Values, last: int) -> float | None:
    """Return the rate of the steepest fall before the lowest point; None if the fall is within the noise."""
    lowest = int(np.argmin(smoothed[:last]))
    quiet = changes[: max(3, round(len(changes) * _QUIET_SHARE))]
    window = max(3, round(len(changes) * _WINDOW_SHARE))
    noise = float(np.std(quiet)) / math.sqrt(window)
    if lowest < 2 or float(smoothed[:2].mean() - smoothed[lowest]) <= max(_CLEAR * noise, 1e-9):
        return None
    slopes = np.gradient(smoothed[: lowest + 1], np.log10([p.rate for p in points[: lowest + 1]]))
    return points[int(np.argmin(slopes))].rate


def _moving_average(values: Values, window: int) -> Values:
    """Return the mean around each value; the window is narrower at the ends."""
    half = window // 2
    return np.array([values[max(0, i - half) : i + half + 1].mean() for i in range(len(values))])
