"""How a run samples its timesteps: distribution, shift, range and strata, and the resulting probabilities.

A draw is one uniform number u per image, mapped to a timestep by the inverse of the cumulative probabilities. So the
same table gives the draws and the window's histogram, and strata within a batch are only a choice of the numbers u. For
a process with continuous timesteps the probability of timestep t is the probability of the interval from t to t + 1,
within which all numbers are equally likely.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from modules.diffusion.timesteps.distributions import DEFAULT_DISTRIBUTION, DISTRIBUTIONS

Strengths = tuple[float, float]
"""The lowest and the highest noising strength, as fractions of the schedule."""

Stratification = Literal["off", "stratified", "antithetic"]


@dataclass(frozen=True, slots=True)
class TimestepSampling:
    """The settings of the timesteps: a distribution by name with its weight and bias, over the range of `strengths`.

    `shift` moves all timesteps by `x' = shift x / (1 + (shift - 1) x)` (Esser et al. 2024, eq. 23), above 1 to more
    noise. With `is_dynamic` it is also multiplied by the process's factor for the size of an image
    (`ProcessSpec.size_shift`).
    """

    distribution: str = DEFAULT_DISTRIBUTION
    weight: float = 0.0
    bias: float = 0.0
    shift: float = 1.0
    is_dynamic: bool = False
    strengths: Strengths = (0.0, 1.0)
    stratification: Stratification = "off"

    @property
    def is_plain(self) -> bool:
        """Whether timesteps are independent and uniform in their range, for which no table is needed."""
        is_uniform = self.distribution == DEFAULT_DISTRIBUTION and self.shift == 1.0 and not self.is_dynamic
        return is_uniform and self.stratification == "off"

    @property
    def problem(self) -> str:
        """A sentence if the weight and the bias give no distribution, else empty."""
        return DISTRIBUTIONS[self.distribution].problem(self.weight, self.bias)

    def cumulative(self, *, num_timesteps: int, size_shift: float = 1.0) -> tuple[float, ...]:
        """Return the probabilities below each timestep of the range, and 1 at the end: one more than timesteps.

        `size_shift` is the factor of the dynamic shift. The distribution spans the whole range of the strengths, as in
        OneTrainer.
        """
        shift = self.shift * size_shift if self.is_dynamic else self.shift
        count = len(timesteps_between(self.strengths, num_timesteps=num_timesteps))
        return _cumulative(self.distribution, self.weight, self.bias, shift, count)

    def probabilities(self, *, num_timesteps: int, size_shift: float = 1.0) -> tuple[float, ...]:
        """Return the probability of each timestep of the schedule; 0 outside of the strengths, 1 in total."""
        among = timesteps_between(self.strengths, num_timesteps=num_timesteps)
        inside = pairwise(self.cumulative(num_timesteps=num_timesteps, size_shift=size_shift))
        after = num_timesteps - among.stop
        return (*[0.0] * among.start, *(high - low for low, high in inside), *[0.0] * after)

    def describe(self, *, num_bins: int, num_timesteps: int = 1000, size_shift: float = 1.0) -> tuple[float, ...]:
        """Return the probability of each of `num_bins` equal parts of the schedule, from the draws' table."""
        bins = [0.0] * num_bins
        for timestep, probability in enumerate(self.probabilities(num_timesteps=num_timesteps, size_shift=size_shift)):
            bins[timestep * num_bins // num_timesteps] += probability
        return tuple(bins)


def timesteps_between(strengths: Strengths, *, num_timesteps: int) -> range:
    """Return the timesteps from a lowest to a highest fraction of the schedule; at least one.

    They are [lowest * N, highest * N), as in OneTrainer: 0 and 1 are all of 0 .. N - 1.
    """
    start, stop = (round(strength * num_timesteps) for strength in strengths)
    start = min(start, num_timesteps - 1)
    return range(start, max(stop, start + 1))


@lru_cache(maxsize=64)  # one for each bucket's size with a dynamic shift
def _cumulative(distribution: str, weight: float, bias: float, shift: float, count: int) -> tuple[float, ...]:
    cdf = DISTRIBUTIONS[distribution].cdf
    edges = [0.0]
    for number in range(1, count):
        x = number / count
        unshifted = x / (shift - (shift - 1.0) * x)
        edges.append(min(1.0, max(edges[-1], cdf(unshifted, weight, bias))))
    return (*edges, 1.0)
