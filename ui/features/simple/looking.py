"""Finds out in the background what the page Train a LoRA shows: this computer, its presets, images, captions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any

from modules.config.schema import Config
from modules.data.concept import Concept
from ui.features.simple.here import Here, find_machine, find_needs, find_offers, needs_key
from ui.features.simple.images import CountedImages, count_images, in_all, samples_per_epoch
from ui.loop.background import Background, Job, JobCancelledError, Report, cancel
from ui.loop.signal import Signal

if TYPE_CHECKING:
    from trainer.preflight.presets_here import RunEstimate


class FirstLook:
    """The results so far; `changed` is emitted when there is more."""

    def __init__(self, background: Background) -> None:
        self.here: Here | None = None
        self.changed: Signal[[]] = Signal()
        self._background = background
        self._is_machine_wanted, self._are_offers_wanted = True, True
        self._needs_of: tuple[object, ...] = ()  # the settings whose needs are known, or being found
        self._concepts: tuple[Concept, ...] | None = None  # whose images and captions are counted
        self._others: tuple[Concept, ...] = ()
        self._is_count_old = False
        self._counting = Event()  # set to stop the count
        self._counts: tuple[CountedImages, ...] = ()
        self.steps_per_epoch = 0  # until the sizes of the images are known
        self._steps_of: tuple[object, ...] = ()
        self._measuring: Job | None = None

    @property
    def counted(self) -> CountedImages:
        """The counts of all concepts together: zeros until they are counted."""
        return in_all(self._counts)

    @property
    def samples_per_epoch(self) -> float:
        """How many samples an epoch of the images has."""
        return samples_per_epoch(self._concepts or (), self._counts)

    def concepts_where(self, applies: Callable[[CountedImages], bool]) -> tuple[Concept, ...]:
        """Return the concepts of whose images something is true."""
        counted = zip(self._concepts or (), self._counts, strict=False)
        return tuple(concept for concept, counts in counted if applies(counts))

    def find_machine(self) -> None:
        """Find out, once, what this computer has."""
        if self._is_machine_wanted:
            self._is_machine_wanted = False
            self._background.run(find_machine, lambda machine: self._keep(Here(machine)))

    def find_presets(self, config: Config) -> None:
        """Find the presets for this computer, once, and then what a config needs on it, if that has changed."""
        here = self.here
        if here is not None and self._are_offers_wanted:
            self._are_offers_wanted = False
            self._background.run_reporting(
                partial(find_offers, here.machine),
                lambda offers: self._change(offers=offers),
            )
        elif here is not None and here.offers is not None and needs_key(config) != self._needs_of:
            self._needs_of = key = needs_key(config)

            def keep(result: tuple[RunEstimate | None, bool]) -> None:
                if key == self._needs_of:
                    self._change(needs=result[0], fits=result[1])

            self._background.run(partial(find_needs, config, here.machine), keep)

    def count(self, concepts: tuple[Concept, ...], others: tuple[Concept, ...]) -> None:
        """Count the images and captions of concepts, unless these were counted; old numbers stay until then.

        `others` may have their images in the same folders.
        """
        if (concepts, others) == (self._concepts, self._others) and not self._is_count_old:
            return
        self._counts = self._counts if concepts == self._concepts else ()
        self._concepts, self._others, self._is_count_old = concepts, others, False
        self._counting.set()
        self._counting = stop = Event()

        def keep(counts: tuple[CountedImages, ...] | None) -> None:
            if counts is not None and not stop.is_set():
                self._counts = counts
                self.changed()

        self._background.run(partial(_count, concepts, others, stop), keep)

    def measure(self, config: Config) -> None:
        """Find out how many steps an epoch of a config has, unless that is known."""
        training = config.training
        key = (config.concepts, config.data, training.batch_size, training.accumulation_steps)
        if key == self._steps_of:
            return
        self._steps_of, self.steps_per_epoch = key, 0
        cancel(self._measuring)
        self._measuring = self._background.run_reporting(partial(_find_steps, config), self._keep_steps)

    def count_again(self) -> None:
        """Let the next count look at the folders again."""
        self._is_count_old, self._steps_of = True, ()

    def _keep_steps(self, steps: int) -> None:
        self.steps_per_epoch = steps
        self.changed()

    def _change(self, **changes: Any) -> None:
        if self.here is not None:
            self._keep(replace(self.here, **changes))

    def _keep(self, here: Here) -> None:
        self.here = here
        self.changed()


def _count(concepts: tuple[Concept, ...], others: tuple[Concept, ...], stop: Event) -> tuple[CountedImages, ...] | None:
    """Return the counts of concepts; None once `stop` is set: others are counted by then."""

    def check() -> None:
        if stop.is_set():
            raise JobCancelledError

    try:
        return tuple(count_images(concept, others, check=check) for concept in concepts)
    except JobCancelledError:
        return None


def _find_steps(config: Config, report: Report) -> int:
    from trainer.preflight.subject_length import find_amount

    amount = find_amount(config, partial(report, "scanning"))
    return amount.steps_per_epoch if amount is not None else 0
