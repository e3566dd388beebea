"""The metrics of every step: as events, and in TensorBoard."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from trainer.callbacks.tensorboard_log import TensorBoardLog
from trainer.events import Event, StepFinished
from trainer.step.callback import DryRunCheck, DryRunState, StepView

_SPEED_MEMORY = 0.9


class Metrics:
    """Emits `StepFinished` after every step and tracks the speed, from which the remaining time is estimated."""

    def __init__(
        self,
        *,
        emit: Callable[[Event], None],
        epochs: int,
        total_steps: int,
        log: TensorBoardLog | None,
        steps_per_group: int = 1,
    ) -> None:
        """`steps_per_group` steps train on one rollout, which only the first of them samples."""
        self._emit = emit
        self._epochs = epochs
        self._total_steps = total_steps
        self._log = log
        self._newest: deque[StepView] = deque(maxlen=steps_per_group)
        self._seconds_per_step: float | None = None
        self._images_per_second = 0.0
        self._is_measured = False  # over a whole group of steps

    def after_step(self, view: StepView) -> None:
        """Report the step."""
        self._measure(view)
        outcome, now = view.outcome, view.now
        assert self._seconds_per_step is not None
        self._emit(
            StepFinished(
                epoch=view.before.epoch + 1,
                epochs=self._epochs,
                epoch_step=view.before.epoch_step + 1,
                epoch_steps=view.epoch_steps,
                step=now.step,
                total_steps=self._total_steps,
                loss=outcome.loss,
                smoothed_loss=now.smoothed_loss,
                gradient_norm=outcome.gradient_norm,
                images_per_second=self._images_per_second,
                seconds_left=self._seconds_per_step * max(0, self._total_steps - now.step),
                learning_rates=outcome.learning_rates,
                training_parts=view.training_parts,
                num_skipped=now.num_skipped,
                metrics=outcome.metrics,
                gradient_norms=outcome.gradient_norms,
                effective_rates=outcome.effective_rates,
            )
        )
        if self._log is not None:
            self._write(self._log, view)

    def dry_run_checks(self, state: DryRunState) -> tuple[DryRunCheck, ...]:
        """Return no checks: the first step already covers this callback."""
        return ()

    def _measure(self, view: StepView) -> None:
        # As many steps as train on one rollout, so that they contain the time of sampling once.
        self._newest.append(view)
        seconds = math.fsum(v.seconds for v in self._newest)
        speed = sum(v.outcome.num_images for v in self._newest) / max(seconds, 1e-9)
        seconds /= len(self._newest)
        if self._seconds_per_step is None or not self._is_measured:
            self._seconds_per_step, self._images_per_second = seconds, speed
            self._is_measured = len(self._newest) == self._newest.maxlen
            return
        keep = _SPEED_MEMORY
        self._seconds_per_step = keep * self._seconds_per_step + (1 - keep) * seconds
        self._images_per_second = keep * self._images_per_second + (1 - keep) * speed

    def _write(self, log: TensorBoardLog, view: StepView) -> None:
        outcome = view.outcome
        whole = {
            "loss/train_step": outcome.loss,
            "smooth_loss/train_step": view.now.smoothed_loss,
            "gradient_norm": outcome.gradient_norm,
        }
        values = {tag: value for tag, value in whole.items() if value is not None}
        values |= {f"gradient_norm/{unit}": norm for unit, norm in outcome.gradient_norms.items()}
        values |= {f"lr/{part}": rate for part, rate in outcome.learning_rates.items()}
        values |= {f"effective_lr/{part}": rate for part, rate in outcome.effective_rates.items()}
        values |= {f"{name}/train_step": value for name, value in outcome.metrics.items()}
        log.scalars(values, view.now.step)
