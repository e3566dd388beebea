"""How many of a chain's last steps carry a gradient: one draw for a whole rollout. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Truncation:
    """The last `lowest` to `highest` steps of a chain carry the gradient; equal where the number is fixed.

    One draw per rollout, as in the authors' later code of AlignProp (Prabhudesai et al. 2023, section 4, draws K
    uniformly): an independent draw per step would keep steps that have ones without gradient behind them.
    Raises ValueError where no step would carry any, or the bounds are the wrong way round.
    """

    lowest: int
    highest: int

    def __post_init__(self) -> None:
        if not 1 <= self.lowest <= self.highest:
            raise ValueError(f"The last {self.lowest} to {self.highest} steps is no range that begins at 1 or more.")

    def draw(self, seed: int) -> int:
        """Return how many of the last steps carry the gradient, uniform with both ends; a function of the seed alone.

        Give it a seed of `derive_seed`, whose bits are as good as random.
        """
        return self.lowest + seed % (self.highest - self.lowest + 1)


def truncation_of(truncate: str, *, backprop_steps: int, backprop_steps_min: int) -> Truncation:
    """Return the truncation that a config's choice means: "fixed" at `backprop_steps`, or "uniform" up to it."""
    return Truncation(backprop_steps if truncate == "fixed" else backprop_steps_min, backprop_steps)
