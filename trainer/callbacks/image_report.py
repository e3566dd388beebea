"""The loss of every image of a run, which shows the images that do not fit the others."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from operator import itemgetter
from pathlib import Path

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
from trainer.commands import CommandDesk, ReportNow
from trainer.data.loader import Loader
from trainer.events import Event, PhaseChanged, WarningRaised
from trainer.machine_events import ImagesReported
from trainer.run_folder.image_report import ImageLoss, compare_images, thumbnail_of, write_report
from trainer.step.callback import DryRunCheck, DryRunState, StepView
from trainer.step.counters import Counters
from trainer.step.evaluation import Evaluation
from trainer.step.fixed_losses import FixedLosses
from trainer.step.meeting import Meeting

_TASK = "image losses"
_REPORTED_EVERY_SECONDS = 5.0
_MAX_NAMED = 10
_MAX_DRAWS, _MAX_IMAGE_DRAWS = 4, 200  # of noise for each timestep: four for up to 50 images, one for many

Losses = tuple[float, ...]
# Whether it is a validation image, its example, its losses, those before training and without its caption, how its
# latents correlate with their neighbours, and the pixels of its file, None if it cannot be read any more.
Measured = tuple[bool, int, Losses, Losses, Losses, float, Measurement | None]


class ImageReportCallback:
    """Takes `ReportNow` after a step: measures all images at fixed timesteps, as they are in the first epoch.

    The report goes into the run's folder. Training is unaffected. `losses` is None for a run whose images have no
    denoising loss: its method learns from prompts, or it trains the VAE. Within `original()` the model is the one
    before training: without its trained adapters, or with copies of its weights; None if these are not in memory.
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
        meeting.offer(_TASK, self._measure_share)

    @property
    def has_losses(self) -> bool:
        """Whether the images have losses, without which there is no report."""
        return self._losses is not None

    def compare_to(self, original: Callable[[], AbstractContextManager[None]]) -> None:
        """Measure the images also within `original()`, in which the model is the one before training."""
        self._original = original

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
        self._emit(PhaseChanged("validating", f"the loss of {count(self._num_images, 'image')}"))
        measured = sorted((one for share in self._meeting.share(_TASK) for one in share), key=itemgetter(0, 1))
        images = [self._image(*one, epoch=counters.epoch) for *one, _ in measured]
        looks = {image.path: look for image, (*_, look) in zip(images, measured, strict=True) if look is not None}
        if broken := [Path(image.path).name for image in images if not _is_finite(image)]:
            message = f"The losses of {count(len(broken), 'image')} are not finite, so these are left out: "
            self._emit(WarningRaised(f"{message}{', '.join(broken[:_MAX_NAMED])}.", "Look at the precision first."))
            images = [image for image in images if _is_finite(image)]
        report = compare_images(counters.step, self._losses.timesteps, _with_looks(images, looks))
        path = ""
        with SideOutput("The report on the images", self._run_dir, self._emit).warn_on_failure():
            path = str(write_report(self._run_dir, report, _thumbnail))
        worst = {image.path: image.times for image in report.outliers}
        written = ImagesReported(counters.step, len(images), report.summary, path, worst)
        self._emit(written)
        return written

    def _image(
        self,
        is_validation: bool,
        number: int,
        losses: Losses,
        before: Losses,
        without_caption: Losses,
        correlation: float,
        *,
        epoch: int,
    ) -> ImageLoss:
        dataset = self._loaders[is_validation].dataset
        example = dataset.examples[number]
        concept = dataset.concepts[example.concept]
        return ImageLoss(
            str(example.image.path),
            concept.name,
            concept.kind,
            next(iter(example.image.captions), ""),
            0 if is_validation else self._uses_before(number, epoch),
            losses,
            correlation=correlation,
            before=before,
            without_caption=without_caption,
        )

    def _measure_share(self, _given: None) -> list[Measured]:
        """Measure this process's share: whole batches, so that each loss is bit-equal to a single process's."""
        measured: list[Measured] = []
        started = reported = self._clock()
        with self._evaluation.active(), self._placement.phase(phases.VALIDATE):
            for is_validation in self._loaders:
                for of_batch in self._measure(is_validation=is_validation):
                    measured += of_batch
                    if (now := self._clock()) - reported >= _REPORTED_EVERY_SECONDS:
                        reported = now
                        self._show_progress(len(measured) * self._meeting.rank.world_size, now - started)
        return measured

    def _show_progress(self, done: int, seconds: float) -> None:
        left = max(0, self._num_images - done) / done * seconds
        detail = f"the loss of {done:,} of {count(self._num_images, 'image')}, {timedelta(seconds=round(left))} left"
        self._emit(PhaseChanged("validating", detail))

    def _measure(self, *, is_validation: bool) -> Iterator[list[Measured]]:
        """Yield the images of each batch."""
        loader = self._loaders[is_validation]
        if not loader.dataset.examples:
            return
        for batch in loader.batches(0, first_epoch_step=0, step=0, dealt_to=self._meeting.rank):
            self._meeting.check()
            losses = self._losses_of(batch)
            before: Sequence[Losses] = [()] * batch.num_samples
            without_caption = before
            if self._original is not None:
                prompts = ("",) * batch.num_samples
                without = replace(
                    batch, captions=prompts, conditioning=loader.conditioning.deliver(prompts), empty_for=()
                )
                with self._original():
                    before, without_caption = self._losses_of(batch), self._losses_of(without)
            numbers = [sample.example for sample in batch.sample_indices]
            correlations = _neighbour_correlations(batch.latents_BCHW)
            looks = [_measure_file(loader.dataset.examples[number].image.path) for number in numbers]
            columns = zip(numbers, losses, before, without_caption, correlations, looks, strict=True)
            yield [(is_validation, *measured) for measured in columns]

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


def _with_looks(images: Sequence[ImageLoss], looks: Mapping[str, Measurement]) -> list[ImageLoss]:
    """Return the images with what their files show: whether they have one colour, and which others look the same.

    `looks` are the measurements of the files, by path.
    """
    structured = [path for path, look in looks.items() if look.spread >= MIN_SPREAD]
    same: dict[str, str] = {}
    for group, _distance in similar_groups([looks[path] for path in structured]):
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
