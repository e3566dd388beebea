"""A sentence about the losses of a run: learning, flat, overfitting since a step, or diverging, with its reason.

The loss of a step varies with its timesteps far more than training changes it, so means of parts of the run are
compared, with the standard errors of both; a slow fall shows sooner in the line of least squares. A validation has the
same timesteps and noise each time, so its values are compared directly, and where there are enough of them they decide:
a training loss that falls does not show overfitting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Finding = Literal["unknown", "learning", "flat", "overfitting", "diverging"]

_NUM_PARTS, _LEAST_STEPS = 8, 48  # parts of a run, each of at least six steps: a mean of fewer is little but noise
_ERRORS, _LIKELY_ERRORS = 4.0, 2.5  # standard errors; a smaller difference is taken for chance, or reported as unsure
_MUCH = 0.25  # of the lowest mean: more than the share of hard images or a new part of the schedule changes
_LEAST_VALIDATIONS = 3  # after the lowest one, for a rise that lasts
_CLEAR = 0.1  # of the first validation: at the same timesteps and noise, even two of them show it
_NOTICED = 0.01  # of a validation loss: less than this is neither a gain nor a loss that a sample shows


@dataclass(frozen=True, slots=True)
class Verdict:
    """The finding, and the sentence for it; `since_step` is the step from which the losses rise, else None."""

    finding: Finding
    sentence: str
    since_step: int | None = None


def read_losses(points_N2: NDArray[np.float64], validations: Sequence[tuple[int, float]] = ()) -> Verdict:
    """Return the verdict on the losses of a run: of its steps (N, 2: step, loss), and of its validations (step, loss).

    All values must be finite. Only for losses that compare a prediction to a target: the loss of a policy gradient or
    of a preference does not.
    """
    of_steps = _read_steps(points_N2)
    if of_steps.finding == "diverging":
        return of_steps
    return _read_validations(validations) or of_steps


def _read_steps(points_N2: NDArray[np.float64]) -> Verdict:
    if len(points_N2) < _LEAST_STEPS:
        return Verdict("unknown", f"Too early to say: {len(points_N2):,} of {_LEAST_STEPS} steps.")
    parts = np.array_split(points_N2, _NUM_PARTS)
    means = np.array([part[:, 1].mean() for part in parts])
    errors = np.array([part[:, 1].std(ddof=1) / np.sqrt(len(part)) for part in parts])
    first, last, lowest = 0, _NUM_PARTS - 1, int(means.argmin())

    def is_sure(low: int, high: int, *, least: float = _ERRORS) -> bool:
        return bool(means[high] - means[low] > least * np.hypot(errors[low], errors[high]))

    if is_sure(lowest, last) and means[last] > (1 + _MUCH) * means[lowest]:
        step = int(parts[lowest][-1, 0])
        return Verdict(
            "diverging",
            f"Diverging: the training loss rose from {means[lowest]:.4f} to {means[last]:.4f} since step {step:,}. "
            "A lower learning rate may help.",
            step,
        )
    if is_sure(last, first):
        return Verdict(
            "learning",
            f"Learning: the training loss fell from {means[first]:.4f} to {means[last]:.4f}. "
            "Only a validation shows whether it overfits.",
        )
    is_lower = means[last] < means[first] and not is_sure(lowest, last, least=_LIKELY_ERRORS)
    if is_sure(last, first, least=_LIKELY_ERRORS) or (is_lower and _falls(points_N2[:, 1])):
        return Verdict(
            "unknown",
            f"Probably learning: over {len(points_N2):,} steps the training loss fell from {means[first]:.4f} to "
            f"{means[last]:.4f}, which may be chance. Look at the samples, or validate, to be sure.",
        )
    return Verdict(
        "flat",
        f"Flat: over {len(points_N2):,} steps the training loss changed by less than its own noise, "
        f"{means[first]:.4f} to {means[last]:.4f}. Look at the samples, or validate, to see whether it learns.",
    )


def _falls(losses_N: NDArray[np.float64]) -> bool:
    """Return whether the line of least squares through losses falls by more than chance lets it."""
    places_N = np.linspace(-1, 1, len(losses_N))
    squares = float(places_N @ places_N)
    slope = float(places_N @ losses_N) / squares
    rests_N = losses_N - losses_N.mean() - slope * places_N
    return -slope > _LIKELY_ERRORS * float(np.sqrt(rests_N @ rests_N / (len(losses_N) - 2) / squares))


def _read_validations(validations: Sequence[tuple[int, float]]) -> Verdict | None:
    """Return the verdict on validations; None if there are too few, unless they fell clearly."""
    if len(validations) < _LEAST_VALIDATIONS:
        if not validations or validations[-1][1] >= (1 - _CLEAR) * validations[0][1]:
            return None
        fell = f"{validations[0][1]:.4f} to {validations[-1][1]:.4f}"
        return Verdict("learning", f"Learning: the validation loss fell, {fell}.")
    lowest = min(range(len(validations)), key=lambda i: validations[i][1])
    (_, first), (step, least), (_, last) = validations[0], validations[lowest], validations[-1]
    after = [value for _, value in validations[lowest + 1 :]]
    noticed = (1 + _NOTICED) * least
    if lowest == 0 and min(value for _, value in validations[1:]) > (1 + _MUCH) * least:
        return Verdict(
            "diverging",
            f"Diverging: the validation loss rose from {least:.4f} at step {step:,} to {last:.4f} and was never as low "
            "again. A lower learning rate may help.",
            step,
        )
    if len(after) >= _LEAST_VALIDATIONS and min(after[-_LEAST_VALIDATIONS:]) > noticed:
        return Verdict(
            "overfitting",
            f"Overfitting since step {step:,}: the validation loss was lowest there, {least:.4f}, and the last "
            f"{_LEAST_VALIDATIONS} are higher, now {last:.4f}. The model of that step may be the better one.",
            step,
        )
    earlier = [value for _, value in validations[:-_LEAST_VALIDATIONS]] or [first]
    if min(value for _, value in validations[-_LEAST_VALIDATIONS:]) < (1 - _NOTICED) * min(earlier):
        if last > noticed:
            where = f"{first:.4f} to {least:.4f} at step {step:,}; the last one is higher, {last:.4f}"
            return Verdict("learning", f"Learning so far: the validation loss fell, {where}.")
        return Verdict("learning", f"Learning: the validation loss is still falling, {first:.4f} to {least:.4f}.")
    return Verdict(
        "flat",
        f"Flat: the last {_LEAST_VALIDATIONS} validations are neither clearly lower nor all higher than the lowest "
        f"loss before, {min(earlier):.4f}.",
    )
