"""The loss of every image of a run, which shows the images that do not fit the others."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import torch

from modules.data.batch import Batch
from modules.data.captions.drawing import CaptionDropout
from modules.data.decode import flatten
from modules.data.doctor.dataset_checks import similar_groups
from modules.data.doctor.measure import Measurement, measure
from modules.data.doctor.pixel_checks import MIN_SPREAD
from modules.data.images import BrokenImageError, open_image, upright
from modules.data.plans import EpochPlans
from modules.memory.placement import Placement
from modules.system.problem import count
from modules.system.ranks import ONLY_RANK
from trainer import phases
from trainer.callbacks.side_output import SideOutput
from trainer.commands import CommandDesk, ReportNow, StopRequested
from trainer.data.loader import Loader
from trainer.events import Event, PhaseChanged, WarningRaised
from trainer.machine_events import ImagesReported
from trainer.run_folder.image_report import ImageLoss, compare_images, thumbnail_of, write_report
from trainer.step.callback import DryRunCheck, DryRunState, StepView
from trainer.step.counters import Counters
from trainer.step.evaluation import Evaluation
from trainer.step.fixed_losses import FixedLosses
from trainer.step.meeting import Meeting

_TASK, _START_TASK = "image losses", "image losses before training"
_REPORTED_EVERY_SECONDS = 5.0
_MAX_NAMED = 10
_MAX_DRAWS, _MAX_IMAGE_DRAWS = 4, 200  # of noise for each timestep: four for up to 50 images, one for many

_T = TypeVar("_T")
Losses = tuple[float, ...]
# Whether it is a validation image, and its example.
Key = tuple[bool, int]
# Losses with the caption and without it: none, if they are not measured.
Start = tuple[Losses, Losses]
_UNKNOWN: Start = ((), ())


@dataclass(frozen=True, slots=True)
class Measured:
    """An image: its losses, those before training, how its latents correlate with their neighbours, and its pixels.

    `look` is None if its file cannot be read any more.
    """

    losses: Losses
    before: Start
    correlation: float
    look: Measurement | None


class ImageReportCallback:
    """Takes `ReportNow` after a step: measures all images at fixed timesteps, as they are in the first epoch.

    The report goes into the run's folder. Training is unaffected. `losses` is None for a run whose images have no
    denoising loss: its method learns from prompts, or it trains the VAE. Within `original()` the model is the one
    before training, without its trained adapters; None if it trains other weights. These are compared to their start
    only after `measure_start`.
    """

    def __init__(
        self,
        losses: FixedLosses | None,
        *,
        original: Callable[[], AbstractContextManager[None]] | None,
        training: Loader,
        validation: Loader,
        plans_once: EpochPlans,
        placement: Placement,
        evaluation: Evaluation,
        run_dir: Path,
        clock: Callable[[], float],
        desk: CommandDesk,
        emit: Callable[[Event], None],
        meeting: Meeting,
    ) -> None:
        """`plans_once` uses each training image once. The processes of the `meeting` share the batches."""
        self._losses = losses
        self._original = original
        once = replace(training, plans=plans_once, caption_dropout=CaptionDropout(), rank=ONLY_RANK, in_step=False)
        self._loaders = {False: once, True: validation}
        self._num_images = len(training.dataset.examples) + len(validation.dataset.examples)
        self._num_draws = max(1, min(_MAX_DRAWS, _MAX_IMAGE_DRAWS // max(1, self._num_images)))
        self._uses_before = training.plans.uses_before
        self._placement = placement
        self._evaluation = evaluation
        self._run_dir = run_dir
        self._clock = clock
        self._desk = desk
        self._emit = emit
        self._meeting = meeting
        self._start: dict[Key, Start] = {}
        meeting.offer(_TASK, lambda _given: self._measure_share(self._measure, ""))
        meeting.offer(_START_TASK, lambda _given: self._measure_share(self._losses_of_start, " before training"))

    def measure_start(self) -> None:
        """Measure the present model as the one before training, for a report on other weights.

        A report on a fine-tune has one set of weights after the other in memory, and so fits where its run did. All
        processes must call it together. Raises StopRequested in all of them.
        """
        if self._losses is None or self._original is not None:
            return
        if self._meeting.rank.is_main:
            with suppress(StopRequested):  # all stop below
                self._start = self._measure_all(_START_TASK)
        self._meeting.hold(ends_early=False)

    def is_due(self, before: Counters, now: Counters) -> bool:
        """Return whether it is requested."""
        return self._desk.has(ReportNow)

    def after_step(self, view: StepView) -> None:
        """Report if it is requested."""
        if self._desk.take(ReportNow):
            self.report(view.now)

    def report(self, counters: Counters) -> ImagesReported | None:
        """Measure all images and write the report; return None, with a warning, where images have no loss."""
        if self._losses is None:
            message = "This run has no denoising losses of images, so there is nothing to report on them."
            self._emit(WarningRaised(message, "Only runs that learn from images have them."))
            return None
        measured: dict[Key, Measured] = self._measure_all(_TASK)
        images = [self._image(*key, of_image, epoch=counters.epoch) for key, of_image in measured.items()]
        looks = {i.path: of.look for i, of in zip(images, measured.values(), strict=True) if of.look is not None}
        if broken := [Path(image.path).name for image in images if not _is_finite(image)]:
            message = f"The losses of {count(len(broken), 'image')} are not finite, so these are left out: "
            self._emit(WarningRaised(f"{message}{', '.join(broken[:_MAX_NAMED])}.", "Look at the precision first."))
            images = [image for image in images if _is_finite(image)]
        report = compare_images(counters.step, self._losses.timesteps, _with_looks(images, looks, self._meeting.check))
        path = ""
        with SideOutput("The report on the images", self._run_dir, self._emit).warn_on_failure():
            path = str(write_report(self._run_dir, report, _thumbnail))
        worst = {image.path: image.times for image in report.outliers}
        written = ImagesReported(counters.step, len(images), f"{report.summary} {report.advice}".strip(), path, worst)
        self._emit(written)
        return written

    def _image(self, is_validation: bool, number: int, measured: Measured, *, epoch: int) -> ImageLoss:
        dataset = self._loaders[is_validation].dataset
        example = dataset.examples[number]
        concept = dataset.concepts[example.concept]
        before, without_caption = self._start.get((is_validation, number), measured.before)
        return ImageLoss(
            str(example.image.path),
            concept.name,
            concept.kind,
            next(iter(example.image.captions), ""),
            0 if is_validation else self._uses_before(number, epoch),
            measured.losses,
            correlation=measured.correlation,
            before=before,
            without_caption=without_caption,
        )

    def _measure_all(self, task: str) -> dict[Key, Any]:
        """Measure all images, in all processes together; called by the main process alone."""
        shares = self._meeting.share(task)
        return dict(sorted((one for share in shares for one in share.items()), key=itemgetter(0)))

    def _measure_share(self, measure: Callable[[Loader, Batch], Sequence[_T]], when: str) -> dict[Key, _T]:
        """Measure this process's share: whole batches, so that each loss is bit-equal to a single process's."""
        measured: dict[Key, _T] = {}
        self._show(f"the loss of {count(self._num_images, 'image')}{when}")
        started = reported = self._clock()
        with self._evaluation.active(), self._placement.phase(phases.VALIDATE):
            for is_validation, batch in self._batches():
                self._meeting.check()
                keys = [(is_validation, sample.example) for sample in batch.sample_indices]
                measured |= zip(keys, measure(self._loaders[is_validation], batch), strict=True)
                if (now := self._clock()) - reported >= _REPORTED_EVERY_SECONDS:
                    reported = now
                    done = len(measured) * self._meeting.rank.world_size
                    left = timedelta(seconds=round(max(0, self._num_images - done) / done * (now - started)))
                    self._show(f"the loss of {done:,} of {count(self._num_images, 'image')}{when}, {left} left")
        return measured

    def _batches(self) -> Iterator[tuple[bool, Batch]]:
        """Yield the batches of this process, and whether they are of validation images."""
        for is_validation, loader in self._loaders.items():
            if loader.dataset.examples:
                for batch in loader.batches(0, first_epoch_step=0, step=0, dealt_to=self._meeting.rank):
                    yield is_validation, batch

    def _show(self, detail: str) -> None:
        self._emit(PhaseChanged("validating", detail))

    def _measure(self, loader: Loader, batch: Batch) -> list[Measured]:
        losses = self._losses_of(batch)
        before: Sequence[Start] = [_UNKNOWN] * batch.num_samples
        if self._original is not None:
            with self._original():
                before = self._losses_of_start(loader, batch)
        correlations = _neighbour_correlations(batch.latents_BCHW)
        looks = [_measure_file(loader.dataset.examples[s.example].image.path) for s in batch.sample_indices]
        return list(map(Measured, losses, before, correlations, looks))

    def _losses_of_start(self, loader: Loader, batch: Batch) -> list[Start]:
        """Return the losses of each image with its caption and without one."""
        prompts = ("",) * batch.num_samples
        without = replace(batch, captions=prompts, conditioning=loader.conditioning.deliver(prompts), empty_for=())
        return list(zip(self._losses_of(batch), self._losses_of(without), strict=True))

    def _losses_of(self, batch: Batch) -> Sequence[Losses]:
        """Return the losses of each image by timestep: means of several draws of noise."""
        assert self._losses is not None
        drawn: defaultdict[int, list[list[float]]] = defaultdict(list)
        for at in self._losses.of(batch, num_draws=self._num_draws):
            drawn[at.timestep].append(at.plain)
        means = [[math.fsum(draws) / len(draws) for draws in zip(*drawn[t], strict=True)] for t in drawn]
        return list(zip(*means, strict=True))

    def dry_run_checks(self, state: DryRunState) -> Sequence[DryRunCheck]:
        """Return no check: it is only done on request, and as a validation is."""
        return ()


def _is_finite(image: ImageLoss) -> bool:
    return all(map(math.isfinite, (*image.losses, *image.before, *image.without_caption)))


def _measure_file(path: Path) -> Measurement | None:
    try:
        return measure(path)
    except BrokenImageError:
        return None


def _with_looks(
    images: Sequence[ImageLoss], looks: Mapping[str, Measurement], check: Callable[[], None] = lambda: None
) -> list[ImageLoss]:
    """Return the images with what their files show: whether they have one colour, and which others look the same.

    `looks` are the measurements of the files, by path; `check` may raise to stop.
    """
    structured = [path for path, look in looks.items() if look.spread >= MIN_SPREAD]
    same: dict[str, str] = {}
    for group, _distance in similar_groups([looks[path] for path in structured], check):
        first, *others = (structured[number] for number in group)
        same |= {first: others[0], **dict.fromkeys(others, first)}
    plain = looks.keys() - set(structured)
    return [replace(image, is_plain=image.path in plain, same_as=same.get(image.path, "")) for image in images]


def _neighbour_correlations(latents_BCHW: torch.Tensor) -> list[float]:
    """Return the correlation of each image's latents with their neighbours: about 0 for noise; 1 for a plain image."""
    centred_BCHW = latents_BCHW.float() - latents_BCHW.float().mean(dim=(-2, -1), keepdim=True)
    below_BN = (centred_BCHW[..., 1:, :] * centred_BCHW[..., :-1, :]).flatten(1)
    right_BN = (centred_BCHW[..., 1:] * centred_BCHW[..., :-1]).flatten(1)
    means_B = torch.cat([below_BN, right_BN], dim=1).mean(dim=1)
    # 0 / 0 of a plain image, and the mean of no neighbours.
    return (means_B / centred_BCHW.square().flatten(1).mean(dim=1)).nan_to_num(nan=1.0).tolist()


def _thumbnail(path: str) -> bytes:
    """Return a small JPEG of an image file; empty if it cannot be read any more."""
    try:
        with open_image(Path(path)) as image:
            image.draft("RGB", (224, 224))
            return thumbnail_of(flatten(upright(image)))
    except BrokenImageError:
        return b""
