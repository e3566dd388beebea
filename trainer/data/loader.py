"""The loader: from the plan of an epoch to batches on the training device, prepared a little ahead."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

import torch

from modules.data.batch import Batch
from modules.data.captions import choose_caption
from modules.data.dataset import Dataset, EpochPlans
from modules.data.order import MicroBatch
from modules.system.devices import Device, move
from modules.system.errors import DarkroomError
from trainer.data.sources import ConditioningSource, LatentSource, Prepared

_AHEAD = 4  # micro-batches


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a micro-batch stands: which step of the run and the epoch, which of its window's micro-batches."""

    showings: MicroBatch
    step: int
    micro_batch: int
    window_samples: int
    ends_window: bool


@dataclass(frozen=True, eq=False)
class Loader:
    """Gives the batches of any epoch from any of its steps on: both follow from the seed."""

    dataset: Dataset
    plans: EpochPlans
    latents: LatentSource
    conditioning: ConditioningSource | None
    device: Device
    caption_dropout: float
    run_seed: int
    threads: int

    def batches(self, epoch: int, *, first_epoch_step: int, step: int) -> Iterator[Batch]:
        """Yield the batches of an epoch, beginning with one of its steps, which is step number `step` of the run."""
        places = self._places(epoch, first_epoch_step, step)
        pool = ThreadPoolExecutor(self.threads, thread_name_prefix="darkroom-loader")
        try:
            waiting = [(p, self._submit(pool, p)) for p in islice(places, _AHEAD)]
            while waiting:
                place, futures = waiting.pop(0)
                waiting += [(p, self._submit(pool, p)) for p in islice(places, 1)]
                yield self._batch(epoch, place, [self._result(f) for f in futures])
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def heaviest_batch(self, epoch: int, *, step: int) -> Batch | None:
        """Return the batch of an epoch with the most pixels, as if it alone were step number `step` of the run.

        None where the epoch shows no picture.
        """
        batches = [m for window in self.plans.windows(epoch) for m in window]
        if not batches:
            return None
        heaviest = max(batches, key=self._num_pixels)
        place = _Place(heaviest, step, 0, len(heaviest), ends_window=True)
        with ThreadPoolExecutor(self.threads, thread_name_prefix="darkroom-loader") as pool:
            return self._batch(epoch, place, [self._result(f) for f in self._submit(pool, place)])

    def _num_pixels(self, showings: MicroBatch) -> int:
        buckets = [self.dataset.buckets[s.example][s.resolution] for s in showings]
        return sum(b.width_px * b.height_px for b in buckets)

    def _places(self, epoch: int, first_epoch_step: int, step: int) -> Iterator[_Place]:
        for index, window in enumerate(self.plans.windows(epoch)[first_epoch_step:]):
            window_samples = sum(len(m) for m in window)
            for number, showings in enumerate(window):
                yield _Place(showings, step + index, number, window_samples, number == len(window) - 1)

    def _submit(self, pool: ThreadPoolExecutor, place: _Place) -> list[Future[Prepared]]:
        return [pool.submit(self.latents.prepare, s) for s in place.showings]

    def _result(self, future: Future[Prepared]) -> Prepared:
        try:
            return future.result()
        except (OSError, ValueError, SyntaxError) as error:
            raise DarkroomError(
                f"A picture can no longer be read: {error}.",
                advice="Remove or replace it, or switch the picture cache on, which leaves such pictures out.",
            ) from error

    def _batch(self, epoch: int, place: _Place, prepared: list[Prepared]) -> Batch:
        examples = [self.dataset.examples[s.example] for s in place.showings]
        captions = tuple(
            choose_caption(
                example.picture.captions,
                dropout=self.caption_dropout,
                run_seed=self.run_seed,
                epoch=epoch,
                example=s.example,
                repeat=s.repeat,
            )
            for s, example in zip(place.showings, examples, strict=True)
        )
        concepts = [self.dataset.concepts[e.concept] for e in examples]
        return Batch(
            latents_BCHW=self.latents.deliver(place.showings, prepared),
            captions=captions,
            conditioning=None if self.conditioning is None else self.conditioning.deliver(captions),
            loss_weights_B=move(torch.tensor([c.loss_weight for c in concepts]), self.device),
            frames=[e.frame(s.resolution) for s, e in zip(place.showings, examples, strict=True)],
            showings=place.showings,
            epoch=epoch,
            step=place.step,
            micro_batch=place.micro_batch,
            window_samples=place.window_samples,
            ends_window=place.ends_window,
        )
