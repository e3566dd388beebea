"""The loader: turns the plan of an epoch into batches on the training device, prefetching a few."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from pathlib import Path

import torch

from modules.data.batch import Batch
from modules.data.captions.drawing import CaptionDropout, DrawnCaption
from modules.data.captions.seen import CaptionReader, ReadCaption, read_alone
from modules.data.conditioning import DeliveredConditioning, SizeConditioning
from modules.data.dataset import Dataset
from modules.data.example import Example
from modules.data.plans import EpochPlans, caption_of
from modules.data.references import num_pixels
from modules.data.samples import AccumulationGroup, MicroBatch, SampleIndex, Share, share_of
from modules.data.versions import ImageVersion, ImageVersions, RejectedVersions
from modules.system.devices import Device, move_async
from modules.system.errors import DarkroomError
from modules.system.file_errors import plain_reason
from modules.system.ranks import ONLY_RANK, Rank
from trainer.data.inputs import InputSource, PreparedInput
from trainer.data.masks import MaskSource
from trainer.data.sources import ConditioningSource, LatentSource, Prepared, PreparedTexts

_PREFETCH = 4  # micro-batches


@dataclass(frozen=True, slots=True)
class _Position:
    """The position of a micro-batch, or of a share of it: its step in the run, and its first image in the group."""

    share: Share
    step: int
    group_start: int
    group_samples: int
    is_last_micro_batch: bool


@dataclass(frozen=True, eq=False)
class RejectedImages:
    """The rejected images of pairs: their versions, and the source of their latents."""

    versions: RejectedVersions
    latents: LatentSource


@dataclass(frozen=True, slots=True)
class _Image:
    """A version of an image with the data that is read ahead of time.

    It is read on a loader thread: latents, mask, further inputs of the model in their order, rejected image and pixels.
    """

    version: ImageVersion
    latents: Prepared
    mask: torch.Tensor | None
    inputs: tuple[PreparedInput, ...]
    rejected: Prepared = None
    pixels: Prepared = None

    @property
    def is_same(self) -> bool:
        """Whether the rejected image is the same as the chosen one."""
        return self.latents is not None and self.rejected is not None and torch.equal(self.latents, self.rejected)


@dataclass(frozen=True, slots=True)
class _Texts:
    """The captions of a micro-batch, with the embeddings that are read ahead of time."""

    drawn: tuple[DrawnCaption, ...]
    read: tuple[ReadCaption, ...]
    prepared: PreparedTexts = None

    def of(self, share: Share) -> _Texts:
        """Return the captions of a process's share."""
        rows = slice(share.first_row, share.first_row + share.num_rows)
        return _Texts(self.drawn[rows], self.read[rows])

    @property
    def captions(self) -> tuple[str, ...]:
        """The captions of the images."""
        return tuple(d.text for d in self.drawn)

    @property
    def empty_for(self) -> tuple[frozenset[int], ...]:
        """The text encoders that get the empty prompt, for each image; empty if there are none."""
        return tuple(d.empty_for for d in self.drawn) if any(d.empty_for for d in self.drawn) else ()

    @property
    def encoded_captions(self) -> tuple[ReadCaption, ...]:
        """The captions whose embeddings the batch contains: with `empty_for`, also the empty one."""
        return (*self.read, "") if self.empty_for else self.read


@dataclass(frozen=True, slots=True)
class _PendingBatch:
    """A micro-batch as it is being prepared."""

    images: list[Future[_Image]]
    texts: Future[_Texts]


@dataclass(frozen=True, eq=False)
class Loader:
    """Delivers the batches of any epoch from any of its steps on; they follow from the seed.

    They are the same with any number of `threads`. Of several processes each delivers its share of every group.
    """

    dataset: Dataset
    versions: ImageVersions
    plans: EpochPlans
    latents: LatentSource
    conditioning: ConditioningSource
    device: Device
    caption_dropout: CaptionDropout
    draws_captions_anew: bool
    run_seed: int
    threads: int
    masks: MaskSource | None = None
    inputs: tuple[InputSource, ...] = ()
    rejected: RejectedImages | None = None
    pixels: LatentSource | None = None
    rank: Rank = ONLY_RANK
    reads_caption: CaptionReader = read_alone
    in_step: bool = False
    """Whether all processes deliver equally many batches of each group."""

    def batches(self, epoch: int, *, first_epoch_step: int, step: int, dealt_to: Rank = ONLY_RANK) -> Iterator[Batch]:
        """Yield the batches of an epoch, starting with the accumulation group of `first_epoch_step`.

        That step is number `step` of the run. Each batch carries the number of its group's first step. With `dealt_to`
        only the batches of one of several processes that take whole batches in turn, as a validation does.
        """
        positions = islice(self._positions(epoch, first_epoch_step, step), dealt_to.index, None, dealt_to.world_size)
        pool = ThreadPoolExecutor(self.threads, thread_name_prefix="darkroom-loader")
        try:
            pending = [(p, self._submit(pool, p)) for p in islice(positions, _PREFETCH)]
            while pending:
                batch = self._batch(epoch, *pending.pop(0))
                # Not before: the threads would compete with this one for the interpreter.
                pending += [(p, self._submit(pool, p)) for p in islice(positions, 1)]
                yield batch
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def heaviest_batch(self, epoch: int, *, step: int) -> Batch | None:
        """Return the batch of an epoch with the most pixels, as if it were all of step number `step` of the run.

        Of several processes that is the heaviest share of any of them, the same for all. Among equals, it is one with
        images of several kinds of concepts. None if the epoch has no images.
        """
        ranks = [replace(self.rank, index=index) for index in range(self.rank.world_size)]
        groups: Sequence[AccumulationGroup] = self.plans.accumulation_groups(epoch)
        if len({concept.kind for concept in self.dataset.concepts}) == 1:  # then only the shape of a group counts
            groups = self.plans.accumulation_groups(epoch).first_of_each_shape(self.plans.sizes)
        shares = [share for group in groups for rank in ranks for share in share_of(group, rank)]
        if not shares:
            return None
        heaviest = max(shares, key=lambda s: (self._num_pixels(s.sample_indices), self._num_kinds(s.sample_indices)))
        share = replace(heaviest, number=0)
        position = _Position(share, step, 0, share.num_rows, is_last_micro_batch=True)
        with ThreadPoolExecutor(self.threads, thread_name_prefix="darkroom-loader") as pool:
            return self._batch(epoch, position, self._submit(pool, position))

    def _num_pixels(self, sample_indices: MicroBatch) -> int:
        return sum(num_pixels(self.plans.sizes.size_of(sample)) for sample in sample_indices)

    def _num_kinds(self, sample_indices: MicroBatch) -> int:
        examples = self.dataset.examples
        return len({self.dataset.concepts[examples[s.example].concept].kind for s in sample_indices})

    def _positions(self, epoch: int, first_epoch_step: int, step: int) -> Iterator[_Position]:
        first_group, num_done = divmod(first_epoch_step, self.plans.steps_per_group)
        for index, group in enumerate(self.plans.accumulation_groups(epoch)[first_group:]):
            first_step = step - num_done + index * self.plans.steps_per_group
            *group_starts, group_samples = accumulate((len(m) for m in group), initial=0)
            shares = share_of(group, self.rank, in_step=self.in_step)
            for share in shares:
                start = group_starts[share.number] + share.first_row
                yield _Position(share, first_step, start, group_samples, is_last_micro_batch=share is shares[-1])

    def _submit(self, pool: ThreadPoolExecutor, position: _Position) -> _PendingBatch:
        images = [pool.submit(self._image, s) for s in position.share.sample_indices]
        return _PendingBatch(images, pool.submit(self._texts, position.share))

    def _image(self, sample_index: SampleIndex) -> _Image:
        """Read one use of an image; on a loader thread."""
        version = self.versions.of(sample_index)
        mask = self.masks.prepare(version) if self.masks is not None else None
        inputs = tuple(source.prepare(version, sample_index) for source in self.inputs)
        rejected = None
        if self.rejected is not None:
            rejected = self.rejected.latents.prepare(self.rejected.versions.of(version))
        pixels = self.pixels.prepare(version) if self.pixels is not None else None
        return _Image(version, self.latents.prepare(version), mask, inputs, rejected, pixels)

    def _result(self, future: Future[_Image]) -> _Image:
        try:
            return future.result()
        except (OSError, ValueError, SyntaxError) as error:
            raise DarkroomError(
                f"An image can no longer be read: {plain_reason(error, names_file=True)}.",
                advice="Remove or replace the image, or switch on the latent cache, which leaves such images out.",
            ) from error

    def _batch(self, epoch: int, position: _Position, pending: _PendingBatch) -> Batch:
        images, whole_texts = [self._result(image) for image in pending.images], pending.texts.result()
        share, samples = position.share, position.share.sample_indices
        versions = [image.version for image in images]
        examples = [self.dataset.examples[s.example] for s in samples]
        concepts = [self.dataset.concepts[e.concept] for e in examples]
        texts = whole_texts.of(share)
        latents_BCHW = self.latents.deliver(versions, [image.latents for image in images])
        masks = None
        if self.masks is not None:
            masks = self.masks.deliver(versions, [i.mask for i in images], samples)
        inputs = {
            source.name: value
            for number, source in enumerate(self.inputs)
            if (value := source.deliver([image.inputs[number] for image in images])) is not None
        }
        rejected_BCHW = None
        if self.rejected is not None:
            of_rejected = [self.rejected.versions.of(v) for v in versions]
            rejected_BCHW = self.rejected.latents.deliver(of_rejected, [image.rejected for image in images])
        pixels_B3PP = None
        if self.pixels is not None:
            pixels_B3PP = self.pixels.deliver(versions, [image.pixels for image in images])
        are_prior = tuple(c.kind == "prior_prediction" for c in concepts)
        return Batch(
            latents_BCHW=latents_BCHW,
            captions=texts.captions,
            conditioning=self._conditioning(whole_texts, share, has_empty=bool(texts.empty_for)),
            loss_weights_B=move_async(torch.tensor([c.loss_weight for c in concepts]), self.device),
            size_conditionings=[v.size_conditioning for v in versions],
            sample_indices=samples,
            epoch=epoch,
            step=position.step,
            micro_batch=share.number,
            group_start=position.group_start,
            group_samples=position.group_samples,
            is_last_micro_batch=position.is_last_micro_batch,
            empty_for=texts.empty_for,
            masks_B1HW=masks.masks_B1HW if masks else None,
            area_weights_B1HW=masks.area_weights_B1HW if masks else None,
            prior_weights_B1HW=masks.prior_weights_B1HW if masks else None,
            prior_samples=are_prior if any(are_prior) else (),
            inputs=inputs,
            rejected_latents_BCHW=rejected_BCHW,
            same_pairs=tuple(image.is_same for image in images) if self.rejected is not None else (),
            pair_files=tuple(map(_file_if_whole, examples, versions)) if self.rejected is not None else (),
            pixels_B3PP=pixels_B3PP,
            first_row=share.first_row,
            micro_batch_samples=0 if share.is_whole else len(share.whole),
            padded_like=() if share.is_whole else whole_texts.captions,
            counts=share.counts,
        )

    def _conditioning(self, texts: _Texts, share: Share, *, has_empty: bool) -> DeliveredConditioning:
        """Return the conditioning of a share, padded to the same length as its micro-batch.

        With `has_empty`, the empty prompt's conditioning is at its end.
        """
        delivered = self.conditioning.deliver(texts.encoded_captions, texts.prepared)
        if share.is_whole or delivered is None:
            return delivered
        empty = [len(texts.encoded_captions) - 1] if has_empty else []
        return delivered.select([*range(share.first_row, share.first_row + share.num_rows), *empty])

    def _texts(self, share: Share) -> _Texts:
        """Draw the captions of a micro-batch and read their embeddings; on a loader thread."""
        captions = tuple(self._caption(s) for s in share.whole)
        read = (self.reads_caption(c.text, self.versions.of(s)) for c, s in zip(captions, share.whole, strict=True))
        drawn = _Texts(captions, tuple(read))
        return replace(drawn, prepared=self.conditioning.prepare(drawn.encoded_captions))

    def _caption(self, sample_index: SampleIndex) -> DrawnCaption:
        """Return the caption of one use of an image."""
        return caption_of(
            self.dataset,
            self.plans,
            sample_index,
            run_seed=self.run_seed,
            dropout=self.caption_dropout,
            draws_anew=self.draws_captions_anew,
        )


def _file_if_whole(example: Example, version: ImageVersion) -> Path | None:
    """Return the file of an image that is neither resized nor cropped nor changed in its geometry; else None."""
    sizes = version.size_conditioning
    is_whole = sizes == SizeConditioning.whole(sizes.target) and version.recipe.geometry.is_plain
    return example.image.path if is_whole else None
