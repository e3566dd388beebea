"""The progress of a run: the counters that, with the run's seed, determine all random numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from modules.settings.every import Moment

_SMOOTHING = 0.98


@dataclass(frozen=True, slots=True)
class Counters:
    """Full steps done, full epochs done, steps done in the current epoch, and running totals."""

    step: int = 0
    epoch: int = 0
    epoch_step: int = 0
    images_seen: int = 0
    training_seconds: float = 0.0
    num_skipped: int = 0
    num_skipped_in_a_row: int = 0
    num_losses: int = 0
    smoothed_loss: float | None = None

    @property
    def moment(self) -> Moment:
        """The current point in the run, to check whether something is due."""
        return Moment(self.step, self.epoch, self.training_seconds)

    def after_step(self, *, epoch_steps: int, num_images: int, seconds: float) -> Self:
        """Return the counters after one more optimizer step; the last step of an epoch starts the next one.

        `with_outcome` adds its loss.
        """
        ends_epoch = self.epoch_step + 1 >= epoch_steps
        return replace(
            self,
            step=self.step + 1,
            epoch=self.epoch + ends_epoch,
            epoch_step=0 if ends_epoch else self.epoch_step + 1,
            images_seen=self.images_seen + num_images,
            training_seconds=self.training_seconds + seconds,
        )

    def with_outcome(self, *, loss: float | None, was_skipped: bool) -> Self:
        """Return the counters with the loss of the newest step, or with a skipped step."""
        return replace(
            self,
            num_skipped=self.num_skipped + was_skipped,
            num_skipped_in_a_row=self.num_skipped_in_a_row + 1 if was_skipped else 0,
            num_losses=self.num_losses + (loss is not None),
            smoothed_loss=self._smooth(loss),
        )

    def after_empty_epoch(self) -> Self:
        """Return the counters at the next epoch; for an epoch without images (repeats below one)."""
        return replace(self, epoch=self.epoch + 1, epoch_step=0)

    def with_epoch_step(self, epoch_step: int) -> Self:
        """Return the counters at another step of the current epoch."""
        return replace(self, epoch_step=epoch_step)

    def _smooth(self, loss: float | None) -> float | None:
        """Return the running mean of losses: a plain mean of the first ones, then an exponential moving average."""
        if loss is None:
            return self.smoothed_loss
        if self.smoothed_loss is None:
            return loss
        keep = min(_SMOOTHING, self.num_losses / (self.num_losses + 1))
        return keep * self.smoothed_loss + (1.0 - keep) * loss

    def to_json(self) -> dict[str, Any]:
        """Return the counters as JSON-safe data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Return the counters of a backup."""
        return cls(**data)
