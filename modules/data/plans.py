"""The optimizer steps of every epoch of a run, computed on demand: a function of the seed and the epoch."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from json.encoder import encode_basestring_ascii

from modules.data import order
from modules.data.buckets import Size
from modules.data.captions.drawing import CaptionDropout, CaptionUse, DrawnCaption, draw_caption
from modules.data.dataset import Dataset, concept_repeats_of
from modules.data.samples import AccumulationGroups, SampleIndex, Samples, SizeTable


class EpochPlans:
    """The optimizer steps of every epoch of a run, computed on demand.

    Each accumulation group becomes `steps_per_group` steps: one, unless the method runs inner epochs over it. The rest
    of a bucket that does not fill a batch becomes a smaller batch ("keep"), comes first in its bucket in the next epoch
    ("merge"), or is left out of the epoch ("drop").
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        batch_size: int,
        accumulation_steps: int,
        run_seed: int,
        steps_per_group: int = 1,
        partial_batches: order.PartialBatches = "keep",
    ) -> None:
        self.steps_per_group = steps_per_group
        self._dataset = dataset
        self._concept_repeats = concept_repeats_of(dataset.concepts, run_seed=run_seed)
        self._batch_size = batch_size
        self._accumulation_steps = accumulation_steps
        self._run_seed = run_seed
        self._partial_batches = partial_batches
        self._newest: tuple[int, AccumulationGroups | None] = (-1, None)
        self._known_steps: list[int] = []
        self._samples_before: list[Counter[Size]] = [Counter()]

    def accumulation_groups(self, epoch: int) -> AccumulationGroups:
        """Return the accumulation groups of an epoch (counted from 0)."""
        number, groups = self._newest
        if groups is None or number != epoch:
            groups = order.groups_of_epoch(
                self._sample_indices(epoch),
                self.sizes,
                batch_size=self._batch_size,
                accumulation_steps=self._accumulation_steps,
                run_seed=self._run_seed,
                epoch=epoch,
                partial_batches=self._partial_batches,
                carried=self._carried_into(epoch),
            )
            self._newest = epoch, groups
        return groups

    @cached_property
    def sizes(self) -> SizeTable:
        """The sizes of the examples by resolution, with the sizes of their reference images."""
        return SizeTable(self._dataset.batch_shapes)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the images, their sizes and captions, on which the order of an epoch depends."""
        return self.fingerprint_before({})

    def fingerprint_before(self, moved: Mapping[str, str]) -> str:
        """Return the fingerprint before folders were moved: their earlier absolute paths, by the present ones."""
        digest = hashlib.blake2b(b"[", digest_size=12)
        texts = _texts_of(self._dataset, moved)
        for number, text in enumerate(texts):
            digest.update((", " if number else "").encode() + text.encode())
        digest.update(b"]")
        return digest.hexdigest()

    def uses_before(self, example: int, epoch: int) -> int:
        """Return how often an example is used before an epoch."""
        return self._concept_repeats[self._dataset.examples[example].concept].uses_before(example, epoch)

    def samples_of(self, example: int, epoch: int) -> list[SampleIndex]:
        """Return only the samples of one example among `sample_indices_of_epoch` of an epoch."""
        before, after = self.uses_before(example, epoch), self.uses_before(example, epoch + 1)
        num_resolutions = self._dataset.num_resolutions
        return [
            SampleIndex(example, use - before, (example + use) % num_resolutions, epoch) for use in range(before, after)
        ]

    def num_steps(self, epoch: int) -> int:
        """Return how many optimizer steps an epoch has, without computing its order."""
        batch_size = self._batch_size
        match self._partial_batches:
            case "keep":
                num_batches = sum(math.ceil(n / batch_size) for n in self._samples(epoch).values())
            case "drop":
                num_batches = sum(n // batch_size for n in self._samples(epoch).values())
            case "merge":
                before, after = self._before(epoch), self._before(epoch + 1)
                num_batches = sum(n // batch_size - before[size] // batch_size for size, n in after.items())
        return math.ceil(num_batches / self._accumulation_steps) * self.steps_per_group

    def total_steps(self, epochs: int) -> int:
        """Return how many optimizer steps that many epochs have."""
        steps = self._steps_until_they_recur(epochs)
        rounds, rest = divmod(epochs, len(steps) or 1)
        return rounds * sum(steps) + sum(steps[:rest])

    def has_empty_epoch(self, epochs: int) -> bool:
        """Return whether one of the first `epochs` epochs has no step: few images with repeats far below 1."""
        return 0 in self._steps_until_they_recur(epochs)

    def left_out(self, epoch: int) -> tuple[SampleIndex, ...]:
        """Return the samples of partial batches that an epoch does not train: dropped, or merged into a later one."""
        match self._partial_batches:
            case "keep":
                return ()
            case "merge":
                return tuple(s for samples in self._carried_into(epoch + 1).values() for s in samples)
            case "drop":
                return tuple(self._dropped_in(epoch))

    def is_dropping(self, epoch: int, *, epochs: int) -> bool:
        """Return whether what an epoch leaves out is not trained later in a run of `epochs` epochs."""
        return self._partial_batches == "drop" or (self._partial_batches == "merge" and epoch == epochs - 1)

    def dropped_samples(self, epochs: int) -> Iterator[SampleIndex]:
        """Yield every sample that a run of `epochs` epochs never trains."""
        for epoch in range(epochs):
            if self.is_dropping(epoch, epochs=epochs):
                yield from self.left_out(epoch)

    def _steps_until_they_recur(self, epochs: int) -> list[int]:
        period = self._period() * (self._batch_size if self._partial_batches == "merge" else 1)
        self._known_steps += [self.num_steps(e) for e in range(len(self._known_steps), min(epochs, period))]
        return self._known_steps[: min(epochs, period)]

    def _dropped_in(self, epoch: int) -> Iterator[SampleIndex]:
        if any(count % self._batch_size for count in self._samples(epoch).values()):
            for samples in self._shuffle(epoch).values():
                yield from samples[len(samples) // self._batch_size * self._batch_size :]

    def _shuffle(self, epoch: int) -> dict[Size, Samples]:
        """Return the samples of an epoch by size in their order, as `groups_of_epoch` divides them into batches."""
        draw = order.generator_of_epoch(self._run_seed, epoch)
        return order.shuffle_by_size(self._sample_indices(epoch), self.sizes, draw)

    def _carried_into(self, epoch: int) -> dict[Size, list[SampleIndex]]:
        """Return the samples of each size that are left over from the epochs before, in their order."""
        if self._partial_batches != "merge":
            return {}
        missing = {size: n % self._batch_size for size, n in self._before(epoch).items() if n % self._batch_size}
        carried: dict[Size, list[SampleIndex]] = {size: [] for size in missing}
        for earlier in range(epoch - 1, -1, -1):
            if not missing:
                break
            by_size = self._shuffle(earlier)
            for size in list(missing):
                rest = list(by_size[size][-missing[size] :]) if size in by_size else []
                carried[size] = rest + carried[size]
                missing[size] -= len(rest)
                if not missing[size]:
                    del missing[size]
        return carried

    def _before(self, epoch: int) -> Counter[Size]:
        """Return how many samples of each size all epochs before this one have together."""
        known = self._samples_before
        while len(known) <= epoch:
            known.append(known[-1] + self._samples((len(known) - 1) % self._period()))
        return known[epoch]

    def _samples(self, epoch: int) -> Counter[Size]:
        return order.sizes_of_epoch(
            self._concept_repeats, self.sizes, num_resolutions=self._dataset.num_resolutions, epoch=epoch
        )

    def _period(self) -> int:
        return order.period_of_epochs(self._concept_repeats, num_resolutions=self._dataset.num_resolutions)

    def _sample_indices(self, epoch: int) -> Samples:
        return order.sample_indices_of_epoch(
            self._concept_repeats, num_resolutions=self._dataset.num_resolutions, epoch=epoch
        )


def _texts_of(dataset: Dataset, moved: Mapping[str, str]) -> Iterator[str]:
    """Yield for each example, as JSON, its path, bytes, captions and sizes, and the same of its rejected image.

    Paths in folders that were `moved` are the earlier ones.
    """
    encode = encode_basestring_ascii  # of `json.dumps`, without what it does for other values
    innermost_first = sorted(moved.items(), key=lambda places: -len(places[0]))

    def as_text(path: str) -> str:
        for now, before in innermost_first:
            if path == now:
                return encode(before)
            within = now.rstrip(os.sep) + os.sep  # the root of a disk ends with one
            if path.startswith(within):
                return encode(before.rstrip(os.sep) + os.sep + path[len(within) :])
        return encode(path)

    of_sizes: dict[int, str] = {}  # the text of each tuple of sizes, which many examples share
    for example, sizes in zip(dataset.examples, dataset.batch_shapes, strict=True):
        image, rejected = example.image, example.image.rejected
        if id(sizes) not in of_sizes:
            of_sizes[id(sizes)] = json.dumps([str(size) for size in sizes])
        path, captions = as_text(image.path_text), ", ".join(map(encode, image.captions))
        of_rejected = "" if rejected is None else f", {as_text(rejected.path_text)}, {rejected.size_bytes}"
        yield f"[{path}, {image.size_bytes}, [{captions}], {of_sizes[id(sizes)]}{of_rejected}]"


# The caption of each use of an image in a run: drawn from the counters of its sample.


def caption_of(
    dataset: Dataset,
    plans: EpochPlans,
    sample_index: SampleIndex,
    *,
    run_seed: int,
    dropout: CaptionDropout,
    draws_anew: bool,
) -> DrawnCaption:
    """Return the caption with which a sample is trained. `draws_anew` is passed to `draw_caption`."""
    number, repeat, epoch = sample_index.example, sample_index.repeat, sample_index.epoch
    image = dataset.examples[number].image
    rules = dataset.concepts[dataset.examples[number].concept].captions
    has_lines_in_turn = rules.choice == "in_turn" and len(image.captions) > 1
    is_counted = has_lines_in_turn or (rules.variations > 1 and not draws_anew)
    num_used = plans.uses_before(number, epoch) + repeat if is_counted else 0
    use = CaptionUse(run_seed, epoch, number, repeat, image.file_name, num_used)
    return draw_caption(image.captions, rules, use, dropout=dropout, draws_anew=draws_anew)
