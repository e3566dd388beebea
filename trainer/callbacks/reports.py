"""Reports after a step: its metrics, the images that an epoch drops because they fill no batch, and compiled blocks."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from modules.data.dataset import Dataset
from modules.data.plans import EpochPlans
from modules.memory.compiled_blocks import Compilation, CompileCounts
from modules.system.atomic import write_text
from trainer.callbacks.tensorboard_log import TensorBoardLog
from trainer.events import Event, ImagesDropped, StepFinished, WarningRaised
from trainer.machine_events import BlocksCompiled
from trainer.step.callback import DryRunCheck, DryRunState, StepView
from trainer.step.counters import Counters

_SPEED_MEMORY = 0.9
DROPPED_FILE = "dropped.csv"
_HEADER = ["epoch", "image", "bucket", "samples"]
_MAX_NAMED = 20


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
        names: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`steps_per_group` steps train on one rollout, which only the first of them samples.

        `names` are the names of some training units for people: backups call embeddings by their UUIDs.
        """
        self._emit = emit
        self._epochs = epochs
        self._total_steps = total_steps
        self._log = log
        self._newest: deque[StepView] = deque(maxlen=steps_per_group)
        self._seconds_per_step = self._images_per_step = 0.0
        self._num_steps = 0
        self._names = names

    def after_step(self, view: StepView) -> None:
        """Report the step."""
        view = self._with_names(view)
        self._measure(view)
        outcome, now = view.outcome, view.now
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
                images_per_second=self._images_per_step / max(self._seconds_per_step, 1e-9),
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

    def _with_names(self, view: StepView) -> StepView:
        if not self._names:
            return view

        def named(values: Mapping[str, float]) -> dict[str, float]:
            return {self._names.get(unit, unit): value for unit, value in values.items()}

        outcome = replace(
            view.outcome,
            learning_rates=named(view.outcome.learning_rates),
            gradient_norms=named(view.outcome.gradient_norms),
            effective_rates=named(view.outcome.effective_rates),
        )
        parts = tuple(self._names.get(unit, unit) for unit in view.training_parts)
        return replace(view, outcome=outcome, training_parts=parts)

    def _measure(self, view: StepView) -> None:
        # As many steps as train on one rollout, so that they contain the time of sampling once.
        self._newest.append(view)
        self._num_steps += 1
        seconds = math.fsum(v.seconds for v in self._newest) / len(self._newest)
        images = sum(v.outcome.num_images for v in self._newest) / len(self._newest)
        # The first step also starts everything up, and compiles: it counts only while nothing else is known.
        keep = _SPEED_MEMORY if self._num_steps > len(self._newest) + 1 else 0.0
        self._seconds_per_step = keep * self._seconds_per_step + (1 - keep) * seconds
        # Not a mean of speeds, in which fast steps would count more than the time that they take.
        self._images_per_step = keep * self._images_per_step + (1 - keep) * images

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


class CompileReport:
    """Reports the compiled blocks of the denoiser, and turns compiling off once it has failed."""

    def __init__(self, compilation: Compilation, emit: Callable[[Event], None]) -> None:
        self._compilation = compilation
        self._emit = emit
        self._reported = CompileCounts()
        self._num_first_graphs: int | None = None

    def is_due(self, before: Counters, now: Counters) -> bool:
        """Return whether the step compiled blocks, or failed to."""
        compilation = self._compilation
        is_new = compilation.counts.num_graphs != self._reported.num_graphs
        return compilation.is_on and (bool(compilation.failure) or is_new)

    def after_step(self, view: StepView) -> None:
        """Report the blocks that the step compiled."""
        self._report()

    def dry_run_checks(self, state: DryRunState) -> tuple[DryRunCheck, ...]:
        """Return the report of the blocks that the dry run's training step compiled; it never fails."""
        return (DryRunCheck("compiled blocks", "Switch off compiling the model.", self._report),)

    def _report(self) -> None:
        compilation, reported = self._compilation, self._reported
        if compilation.failure and compilation.is_on:
            compilation.turn_off()
            self._emit(
                WarningRaised(
                    f"The denoiser could not be compiled, because {compilation.failure}. The run continues without "
                    "compiling; its results are the same.",
                    "Switch off Compile the model, or install what is missing.",
                )
            )
        now = compilation.counts
        if not compilation.is_on or now.num_graphs == reported.num_graphs:
            return
        if self._num_first_graphs is None:
            self._num_first_graphs = now.num_graphs
        self._reported = now
        self._emit(
            BlocksCompiled(
                now.num_blocks,
                now.num_graphs - reported.num_graphs,
                now.seconds - reported.seconds,
                now.num_graphs - self._num_first_graphs,
            )
        )


class DroppedImages:
    """Emits `ImagesDropped` in each epoch that drops samples, after its first step.

    Merged batches drop samples in the last epoch only. The file has the rows of all epochs so far, also from before the
    run was resumed.
    """

    def __init__(
        self, dataset: Dataset, plans: EpochPlans, *, epochs: int, run_dir: Path, emit: Callable[[Event], None]
    ) -> None:
        self._dataset = dataset
        self._plans = plans
        self._epochs = epochs
        self._file = run_dir / DROPPED_FILE
        self._emit = emit

    def after_step(self, view: StepView) -> None:
        """Report the images that are dropped in the epoch of the step, if it is the epoch's first."""
        epoch = view.before.epoch
        if view.before.epoch_step == 0 and self._plans.is_dropping(epoch, epochs=self._epochs):
            self._report(epoch)

    def _report(self, epoch: int) -> None:
        buckets, examples = self._dataset.buckets, self._dataset.examples
        counts = Counter((s.example, buckets[s.example][s.resolution]) for s in self._plans.left_out(epoch))
        if not counts:
            return
        rows = [
            [str(epoch + 1), str(examples[example].image.path), str(bucket), str(count)]
            for (example, bucket), count in sorted(counts.items())
        ]
        path = ""
        with suppress(OSError, ValueError):  # a full disk, a name that is not valid UTF-8: the run continues
            self._write([*self._earlier_rows(epoch), *rows])
            path = str(self._file)
        images = [examples[n].image.path.name for n in sorted({example for example, _ in counts})]
        self._emit(ImagesDropped(epoch + 1, len(images), tuple(images[:_MAX_NAMED]), path))

    def _earlier_rows(self, epoch: int) -> Iterator[list[str]]:
        """Yield the rows of earlier epochs; a run resumed from an older backup has some of later ones."""
        if not self._file.is_file():
            return
        with self._file.open(encoding="utf-8", newline="") as file:
            yield from (row for row in csv.reader(file) if row and row[0].isdecimal() and int(row[0]) <= epoch)

    def _write(self, rows: list[list[str]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([_HEADER, *rows])
        write_text(self._file, text.getvalue())
