"""Validation: the plain denoising loss on pictures that are not learned, at fixed timesteps with fixed noise."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import torch

from modules.config.sections.watching import Validation
from modules.data.batch import Batch
from modules.diffusion.noise import fixed_timesteps, generator_for
from modules.families.protocol import ModelFamily
from modules.memory.placement import Placement
from modules.objectives.denoise import predicted_losses
from modules.system.devices import Device, move
from trainer import phases
from trainer.callbacks.protocol import StepView
from trainer.callbacks.rehearsal import Rehearsal, SmallRun
from trainer.commands import CommandDesk, ValidateNow
from trainer.evaluation import Evaluation
from trainer.events import Event, PhaseChanged, ValidationFinished
from trainer.loader import Loader
from trainer.precision import Precision
from trainer.state import Counters
from trainer.tensorboard_log import TensorBoardLog

Losses = dict[tuple[str, int], list[float]]  # by concept and timestep


class ValidationCallback:
    """Measures when it is due or asked for. Same weights, same number, bit for bit; training does not notice."""

    def __init__(
        self,
        settings: Validation,
        *,
        loader: Loader,
        family: ModelFamily,
        placement: Placement,
        evaluation: Evaluation,
        precision: Precision,
        device: Device,
        run_seed: int,
        desk: CommandDesk,
        emit: Callable[[Event], None],
        log: TensorBoardLog | None,
    ) -> None:
        self._settings = settings
        self._loader = loader
        self._family = family
        self._placement = placement
        self._evaluation = evaluation
        self._precision = precision
        self._device = device
        self._run_seed = run_seed
        self._desk = desk
        self._emit = emit
        self._log = log

    def at_start(self, counters: Counters) -> None:
        """Measure where the training begins, if validation is on."""
        if not self._settings.every.is_never:
            self.validate(counters.step)

    def after_step(self, view: StepView) -> None:
        """Measure if it is due or asked for."""
        is_due = self._settings.every.is_due(view.before.moment, view.now.moment)
        if self._desk.take(ValidateNow) or is_due:
            self.validate(view.now.step)

    def validate(self, step: int) -> None:
        """Measure the loss on all validation pictures and tell it."""
        if not self._loader.dataset.examples:
            return
        self._emit(PhaseChanged("validating", f"{len(self._loader.dataset.examples)} pictures"))
        losses: Losses = defaultdict(list)
        with self._evaluation.active(), self._placement.phase(phases.VALIDATE):
            for batch in self._loader.batches(0, first_epoch_step=0, step=0):
                self._desk.check()
                self._measure(batch, self._timesteps(), losses)
        result = summarise(losses, step)
        self._emit(result)
        if self._log is not None:
            self._log.scalar("loss/validation", result.loss, step)
            for concept, value in result.by_concept.items():
                self._log.scalar(f"loss/validation/{concept}", value, step)

    def rehearsals(self, small: SmallRun) -> list[Rehearsal]:
        """Return the trial of one measurement, if validation is on."""
        if self._settings.every.is_never or not self._loader.dataset.examples:
            return []
        advice = "Use a smaller batch or resolution, or switch validation off."
        return [Rehearsal("validation", advice, self._try_out)]

    def _try_out(self) -> None:
        """Measure the batch with the most pixels at one timestep."""
        with self._evaluation.active(), self._placement.phase(phases.VALIDATE):
            batch = self._loader.heaviest_batch(0, step=0)
            if batch is not None:
                self._measure(batch, self._timesteps()[:1], defaultdict(list))

    def _timesteps(self) -> Sequence[int]:
        return fixed_timesteps(self._settings.num_timesteps, num_timesteps=self._family.process.num_timesteps)

    def _measure(self, batch: Batch, timesteps: Sequence[int], losses: Losses) -> None:
        with self._precision.autocast():
            conditioning = batch.conditioning_for(self._family)
        dataset = self._loader.dataset
        concepts = [dataset.concepts[dataset.examples[s.example].concept].name for s in batch.showings]
        for timestep in timesteps:
            self._desk.check()
            timesteps_B = move(torch.full((batch.num_samples,), timestep), self._device)
            with self._precision.autocast():
                losses_B = predicted_losses(
                    self._family,
                    batch.latents_BCHW,
                    conditioning,
                    timesteps_B=timesteps_B,
                    noise_BCHW=self._noise(batch, timestep),
                )
            for concept, loss in zip(concepts, losses_B.tolist(), strict=True):
                losses[concept, timestep].append(loss)

    def _noise(self, batch: Batch, timestep: int) -> torch.Tensor:
        """Return each picture's own noise at a timestep: the same in every validation of the run."""
        shape = batch.latents_BCHW.shape[1:]
        noise = [
            torch.randn(shape, generator=generator_for(self._run_seed, "validation", s.example, timestep))
            for s in batch.showings
        ]
        return move(torch.stack(noise), self._device)


def summarise(losses: Mapping[tuple[str, int], list[float]], step: int) -> ValidationFinished:
    """Return the means: over everything, by timestep, by concept."""
    by_timestep: dict[str, list[float]] = defaultdict(list)
    by_concept: dict[str, list[float]] = defaultdict(list)
    for (concept, timestep), values in losses.items():
        by_timestep[str(timestep)] += values
        by_concept[concept] += values
    everything = [v for values in losses.values() for v in values]
    return ValidationFinished(
        step=step,
        loss=_mean(everything),
        by_timestep={k: _mean(v) for k, v in by_timestep.items()},
        by_concept={k: _mean(v) for k, v in by_concept.items()},
    )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
