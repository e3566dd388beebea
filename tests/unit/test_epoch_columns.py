"""The order of an epoch from columns of numbers is the order that it had as a list of Python objects."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from modules.data.buckets import Size
from modules.data.order import (
    ConceptRepeats,
    PartialBatches,
    generator_of_epoch,
    groups_of_epoch,
    sample_indices_of_epoch,
    sizes_of_epoch,
)
from modules.data.samples import SampleIndex, Samples, SizeTable

# Resuming depends on the order: these are the functions of the versions before, one object a sample.


def former_uses(concepts: Sequence[ConceptRepeats], epoch: int) -> Iterator[tuple[int, int, int]]:
    for concept in concepts:
        count, turns = concept.num_examples, concept.turns()
        whole, broken = divmod(concept.exact_repeats, 1)
        first_extra, end_extra = math.ceil(epoch * broken * count), math.ceil((epoch + 1) * broken * count)
        used = range(count) if whole else sorted(turn % count for turn in range(first_extra, end_extra))
        for turn in used:
            before, after = ((n - turn + count - 1) // count for n in (first_extra, end_extra))
            yield concept.first_example + turns[turn], whole * epoch + before, whole + after - before


def former_samples(concepts: Sequence[ConceptRepeats], num_resolutions: int, epoch: int) -> list[SampleIndex]:
    return [
        SampleIndex(example, repeat, (example + before + repeat) % num_resolutions, epoch)
        for example, before, count in former_uses(concepts, epoch)
        for repeat in range(count)
    ]


def former_groups(
    samples: list[SampleIndex],
    buckets: list[list[Size]],
    batch_size: int,
    accumulation_steps: int,
    seed: int,
    epoch: int,
    partial_batches: PartialBatches,
    carried: dict[Size, list[SampleIndex]],
) -> tuple[tuple[tuple[SampleIndex, ...], ...], ...]:
    draw: random.Random = generator_of_epoch(seed, epoch)
    by_size: dict[Size, list[SampleIndex]] = defaultdict(list)
    for sample in samples:
        by_size[buckets[sample.example][sample.resolution]].append(sample)
    for size in sorted(by_size):
        draw.shuffle(by_size[size])
    batches: list[tuple[SampleIndex, ...]] = []
    for size in sorted({*by_size, *carried}):
        group = [*carried.get(size, ()), *by_size.get(size, ())]
        end = len(group) if partial_batches == "keep" else len(group) // batch_size * batch_size
        batches += [tuple(group[i : i + batch_size]) for i in range(0, end, batch_size)]
    draw.shuffle(batches)
    return tuple(tuple(batches[i : i + accumulation_steps]) for i in range(0, len(batches), accumulation_steps))


concepts_of = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.sampled_from([0.0, 0.1, 0.3, 0.5, 1.0, 1.5, 2.2, 3.0, 1e-300, 0.0001]),
        st.none() | st.integers(0, 30),
        st.none() | st.integers(0, 5),
    ),
    max_size=4,
)


@given(
    rows=concepts_of,
    num_resolutions=st.integers(1, 3),
    epoch=st.integers(0, 1000),
    batch_size=st.integers(1, 4),
    accumulation_steps=st.integers(1, 3),
    partial_batches=st.sampled_from(["keep", "merge", "drop"]),
    num_carried=st.integers(0, 3),
)
def test_every_epoch_is_as_before(
    rows: list[tuple[int, float, int | None, int | None]],
    num_resolutions: int,
    epoch: int,
    batch_size: int,
    accumulation_steps: int,
    partial_batches: PartialBatches,
    num_carried: int,
) -> None:
    concepts, first = [], 0
    for count, repeats, num_samples, seed in rows:
        samples_of = Fraction(num_samples) if num_samples is not None and count else None
        concepts.append(ConceptRepeats(first, count, repeats, samples_of, seed))
        first += count
    buckets = [[Size(64 * (1 + (e * 7 + r) % 3), 64) for r in range(num_resolutions)] for e in range(first)]
    former = former_samples(concepts, num_resolutions, epoch)
    samples = sample_indices_of_epoch(concepts, num_resolutions=num_resolutions, epoch=epoch)
    assert list(samples) == former
    assert [samples[place] for place in range(len(samples))] == former
    sizes = Counter(buckets[s.example][s.resolution] for s in former)
    assert sizes_of_epoch(concepts, buckets, num_resolutions=num_resolutions, epoch=epoch) == sizes
    carried = {Size(64, 64): [SampleIndex(n, 0, 0, 9) for n in range(num_carried)]} if num_carried else {}
    arguments = batch_size, accumulation_steps, 5, epoch, partial_batches, carried
    expected = former_groups(former, buckets, *arguments)
    groups = groups_of_epoch(
        samples,
        SizeTable(buckets),
        batch_size=batch_size,
        accumulation_steps=accumulation_steps,
        run_seed=5,
        epoch=epoch,
        partial_batches=partial_batches,
        carried=carried,
    )
    assert tuple(groups) == expected
    assert groups == expected
    assert tuple(groups[len(expected) // 2 :]) == expected[len(expected) // 2 :]
    assert groups.num_samples == sum(len(batch) for group in expected for batch in group)


@given(counts=st.lists(st.integers(1, 12), min_size=1, max_size=3), accumulation_steps=st.integers(1, 3))
def test_the_first_groups_of_each_shape(counts: list[int], accumulation_steps: int) -> None:
    buckets = [[Size(64 * (1 + number), 64)] for number, count in enumerate(counts) for _ in range(count)]
    table = SizeTable(buckets)
    samples = sample_indices_of_epoch([ConceptRepeats(0, len(buckets), 1.0)], num_resolutions=1, epoch=0)
    groups = groups_of_epoch(samples, table, batch_size=4, accumulation_steps=accumulation_steps, run_seed=1, epoch=0)
    first: dict[object, object] = {}
    for group in groups:
        first.setdefault(tuple((buckets[batch[0].example][0], len(batch)) for batch in group), group)
    assert groups.first_of_each_shape(table) == list(first.values())


def test_samples_and_lists_are_the_same() -> None:
    listed = [SampleIndex(3, 1, 0, 7), SampleIndex(0, 0, 1, 7)]
    samples = Samples.of(listed)
    assert list(samples) == listed
    assert samples[-1] == listed[-1]
    assert list(samples[1:]) == listed[1:]
    assert list(Samples.of([])) == []
