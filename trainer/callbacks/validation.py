"""Validation: the denoising loss on validation images, at fixed timesteps with fixed noise."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from modules.config.sections.evaluation import Validation
from modules.data.batch import Batch
from modules.memory.placement import Placement
from modules.system.problem import count
from trainer import phases
from trainer.callbacks.best import Best, Search
from trainer.callbacks.reconstruction import ReconstructionMeasure
from trainer.callbacks.tensorboard_log import TensorBoardLog
from trainer.commands import CommandDesk, ValidateNow
from trainer.data.loader import Loader
from trainer.events import Event, PhaseChanged, ValidationFinished
from trainer.step.callback import DryRunCheck, DryRunState, StepView
from trainer.step.counters import Counters
from trainer.step.evaluation import Evaluation
from trainer.step.fixed_losses import FixedLosses
from trainer.step.meeting import Meeting, meeting_of_one

Losses = dict[tuple[str, int], list[tuple[float, float]]]  # by concept and timestep: each plain and weighted
Metrics = dict[str, list[float]]  # by name

_TASK, _TRIAL = "validation", "a validation in the dry run"


class ValidationCallback:
    """Validates when it is due or requested. The same weights give the same loss, bit for bit; training is unaffected.

    It keeps the best validation. A validation before the first step is reported but cannot be the best: an untrained
    model is not a result.
    """

    def __init__(
        self,
        settings: Validation,
        *,
        loader: Loader,
        losses: FixedLosses,
        placement: Placement,
        evaluation: Evaluation,
        images: str,
        keep: Callable[[Counters], object],
        desk: CommandDesk,
        emit: Callable[[Event], None],
        log: TensorBoardLog | None,
        reconstruction: ReconstructionMeasure | None = None,
        meeting: Meeting | None = None,
    ) -> None:
        """`images` identifies the validation images; `keep` saves the model if it is the best and should be kept.

        `reconstruction` measures the images of a run of the VAE, in place of the denoising `losses`. The processes of
        a `meeting` share the batches.
        """
        self._settings = settings
        self._loader = loader
        self._losses = losses
        self._placement = placement
        self._evaluation = evaluation
        self._keep = keep
        self._desk = desk
        self._emit = emit
        self._log = log
        self._reconstruction = reconstruction
        self._meeting = meeting or meeting_of_one(desk)
        self._meeting.offer(_TASK, self._measure_share)
        self._meeting.offer(_TRIAL, self._try_out)
        self._metrics: Metrics = defaultdict(list)
        self.search = Search(
            f"{images} at {settings.num_timesteps}" if reconstruction is None else f"{images} reconstructed",
            early_stopping_patience=settings.early_stopping_patience,
            changed="The validation images or timesteps have changed since the backup, so earlier losses cannot be "
            "compared",
            emit=emit,
        )

    def at_start(self, counters: Counters) -> None:
        """Validate at the start of the training, if validation is on, or repeat a validation interrupted by a stop."""
        if self.search.is_owed or (counters.step == 0 and not self._settings.every.is_never):
            self._validate(counters, counts=True)

    def is_due(self, before: Counters, now: Counters) -> bool:
        """Return whether it is due or requested."""
        return self._desk.has(ValidateNow) or self._settings.every.is_due(before.moment, now.moment)

    def after_step(self, view: StepView) -> None:
        """Validate if it is due or requested."""
        is_due = self._settings.every.is_due(view.before.moment, view.now.moment)
        if self._desk.take(ValidateNow) or is_due:
            self._validate(view.now, counts=is_due)

    def _validate(self, counters: Counters, *, counts: bool) -> None:
        """Measure the loss on all validation images, report it, and keep the model if it is the best."""
        num_images = len(self._loader.dataset.examples)
        if not num_images:
            return
        self.search.is_owed = counts and counters.step > 0
        self._emit(PhaseChanged("validating", count(num_images, "image")))
        losses = self._measure_all()
        if not losses:
            return
        result = summarise(losses, counters.step, self.search.best, counts=counts)
        if self._reconstruction is not None:
            result = replace(
                result, by_timestep={}, metrics={n: _mean(values) for n, values in sorted(self._metrics.items())}
            )
        self._report(result)
        if counters.step > 0:
            if result.is_best and self._settings.keep_best:
                self._keep(counters)
            self.search.best = self.search.best.after(result.loss, counters.step, counts=counts)
        self.search.is_owed = False

    def _measure_all(self) -> Losses:
        """Measure all images, in all processes together."""
        losses: Losses = defaultdict(list)
        metrics: Metrics = defaultdict(list)
        for of_losses, of_metrics in self._meeting.share(_TASK):
            for where, pairs in of_losses.items():
                losses[where] += pairs
            for name, values in of_metrics.items():
                metrics[name] += values
        self._metrics = metrics
        return losses

    def _measure_share(self, _given: None) -> tuple[Losses, Metrics]:
        """Measure this process's share: whole batches, so that each loss is bit-equal to a single process's."""
        losses: Losses = defaultdict(list)
        self._metrics = defaultdict(list)
        with self._evaluation.active(), self._placement.phase(phases.VALIDATE):
            for batch in self._loader.batches(0, first_epoch_step=0, step=0, dealt_to=self._meeting.rank):
                self._meeting.check()
                if self._reconstruction is None:
                    self._measure(batch, losses)
                else:
                    self._reconstruct(self._reconstruction, batch, losses)
        return losses, self._metrics

    def _report(self, result: ValidationFinished) -> None:
        self._emit(result)
        if self._log is None:
            return
        self._log.scalar("loss/validation", result.loss, result.step)
        if result.weighted_loss is not None:
            self._log.scalar("loss/validation_weighted", result.weighted_loss, result.step)
        for concept, value in result.by_concept.items():
            self._log.scalar(f"loss/validation/{concept}", value, result.step)
        for name, value in result.metrics.items():
            self._log.scalar(f"{name}/validation", value, result.step)
        for timestep, value in result.by_timestep.items():
            self._log.scalar(f"loss/validation_at_timestep/{timestep}", value, result.step)

    def dry_run_checks(self, state: DryRunState) -> list[DryRunCheck]:
        """Return the check of one validation, if validation is on."""
        if self._settings.every.is_never or not self._loader.dataset.examples:
            return []
        advice = "Use a smaller batch or resolution, or switch validation off."
        return [DryRunCheck("validation", advice, self._try_out_in_all)]

    def _try_out_in_all(self) -> None:
        self._meeting.share(_TRIAL)

    def _try_out(self, _given: None) -> None:
        """Measure the batch with the most pixels at one timestep."""
        with self._evaluation.active(), self._placement.phase(phases.VALIDATE):
            batch = self._loader.heaviest_batch(0, step=0)
            if batch is not None and self._reconstruction is not None:
                self._reconstruct(self._reconstruction, batch, defaultdict(list))
            elif batch is not None:
                self._measure(batch, defaultdict(list), self._losses.timesteps[:1])

    def _reconstruct(self, reconstruction: ReconstructionMeasure, batch: Batch, losses: Losses) -> None:
        for concept, measured in zip(self._concepts_of(batch), reconstruction.measure(batch), strict=True):
            losses[concept, 0].append((measured.plain, measured.weighted))
            for name, value in measured.metrics.items():
                self._metrics[name].append(value)

    def _concepts_of(self, batch: Batch) -> list[str]:
        dataset = self._loader.dataset
        return [dataset.concepts[dataset.examples[s.example].concept].name for s in batch.sample_indices]

    def _measure(self, batch: Batch, losses: Losses, timesteps: Sequence[int] | None = None) -> None:
        concepts = self._concepts_of(batch)
        for at in self._losses.of(batch, timesteps):
            for concept, *both in zip(concepts, at.plain, at.weighted, strict=True):
                losses[concept, at.timestep].append((both[0], both[1]))


def summarise(losses: Losses, step: int, best: Best, *, counts: bool) -> ValidationFinished:
    """Return the mean losses (overall plain and weighted; by timestep and by concept plain) and the best so far."""
    by_timestep: dict[int, list[float]] = defaultdict(list)
    by_concept: dict[str, list[float]] = defaultdict(list)
    for (concept, timestep), values in losses.items():
        plain = [p for p, _ in values]
        by_timestep[timestep] += plain
        by_concept[concept] += plain
    loss = _mean([p for values in losses.values() for p, _ in values])
    after = best.after(loss, step, counts=counts) if step > 0 else best
    return ValidationFinished(
        step=step,
        loss=loss,
        by_timestep={str(t): _mean(by_timestep[t]) for t in sorted(by_timestep)},
        by_concept={name: _mean(by_concept[name]) for name in sorted(by_concept)},
        weighted_loss=_mean([w for values in losses.values() for _, w in values]),
        best_loss=after.loss,
        best_step=after.step,
    )


def _mean(values: Sequence[float]) -> float:
    """Return the mean, independent of the order of the values: batches may come in any order."""
    return math.fsum(values) / len(values)
