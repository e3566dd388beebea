"""The images that an epoch drops because they fill no batch: as events, and all of them in a file."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from modules.data.dataset import Dataset
from modules.data.plans import EpochPlans
from modules.system.atomic import write_text
from trainer.events import Event, ImagesDropped
from trainer.step.callback import DryRunCheck, DryRunState, StepView

DROPPED_FILE = "dropped.csv"
_HEADER = ["epoch", "image", "bucket", "samples"]
_MAX_NAMED = 20


class DroppedImages:
    """Emits `ImagesDropped` in each epoch that drops samples, after its first step.

    Merged batches drop samples in the last epoch only. The file has the rows of all epochs so far, also of those before
    the run was resumed.
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

    def dry_run_checks(self, state: DryRunState) -> tuple[DryRunCheck, ...]:
        """Return no checks: nothing here needs the model or much memory."""
        return ()

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
