"""Gradient truncation: the random number of last denoising steps with a gradient, one per rollout. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Truncation:
    """The last `lowest` to `highest` denoising steps have a gradient; the bounds are equal for a fixed number.

    One random number per rollout, as in the authors' later code of AlignProp (Prabhudesai et al. 2023, section 4:
    uniform K): independent decisions per step would keep steps whose gradient a later step blocks.
    Raises ValueError where `lowest` is below 1 or above `highest`.
    """

    lowest: int
    highest: int

    def __post_init__(self) -> None:
        if not 1 <= self.lowest <= self.highest:
            raise ValueError(f"The bounds {self.lowest} to {self.highest} are not a range that starts at 1 or more.")

    def draw(self, seed: int) -> int:
        """Return how many of the last steps have a gradient, uniform including both bounds; depends only on the seed.

        The seed must come from `derive_seed`, whose bits are uniform.
        """
        return self.lowest + seed % (self.highest - self.lowest + 1)


def truncation_of(truncate: str, *, backprop_steps: int, backprop_steps_min: int) -> Truncation:
    """Return the truncation for a config's choice: "fixed" at `backprop_steps`, or "uniform" up to it."""
    return Truncation(backprop_steps if truncate == "fixed" else backprop_steps_min, backprop_steps)
