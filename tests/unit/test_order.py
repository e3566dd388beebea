"""The order of an epoch: every expected sample, none twice, none dropped, determined by seed and epoch alone."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.data.buckets import Size
from modules.data.order import (
    ConceptRepeats,
    groups_of_epoch,
    period_of_epochs,
    sample_indices_of_epoch,
    sizes_of_epoch,
)
from modules.data.samples import AccumulationGroup, SampleIndex, share_of, shares_of_step
from modules.system.errors import DarkroomError
from modules.system.ranks import ONLY_RANK, Rank, current_rank, meeting_place

SIZES = [Size(64, 64), Size(96, 64), Size(64, 96)]
repeats_of = st.integers(0, 4).map(float) | st.sampled_from([0.1, 0.25, 0.3, 0.5, 0.7, 1.5, 2.2, 0.333, 1e-300, 0.0001])


def shown(copies: list[ConceptRepeats], epochs: int, *, num_resolutions: int = 1) -> list[SampleIndex]:
    return [s for e in range(epochs) for s in sample_indices_of_epoch(copies, num_resolutions=num_resolutions, epoch=e)]


def accumulation_groups(
    sample_indices: list[SampleIndex],
    *,
    batch_size: int = 2,
    accumulation_steps: int = 2,
    run_seed: int = 1,
    epoch: int = 0,
) -> tuple[AccumulationGroup, ...]:
    buckets = [[SIZES[i % 3], SIZES[(i + 1) % 3]] for i in range(100)]
    return groups_of_epoch(
        sample_indices,
        buckets,
        batch_size=batch_size,
        accumulation_steps=accumulation_steps,
        run_seed=run_seed,
        epoch=epoch,
    )


# -- how often


@given(count=st.integers(1, 12), repeats=repeats_of, epochs=st.integers(1, 40))
def test_every_image_comes_as_often_as_promised(count: int, repeats: float, epochs: int) -> None:
    """Half a repeat of one image used to be none for ever: a half was rounded down each epoch anew."""
    times = Counter(s.example for s in shown([ConceptRepeats(0, count, repeats)], epochs))
    promised = Fraction(repeats).limit_denominator(10_000) * epochs
    for example in range(count):
        assert abs(times[example] - promised) < 1
    assert abs(sum(times.values()) - promised * count) < 1


@given(count=st.integers(1, 12), repeats=repeats_of, epoch=st.integers(0, 1000))
def test_no_epoch_has_an_image_more_often_than_another_but_once(count: int, repeats: float, epoch: int) -> None:
    times = Counter(
        s.example for s in sample_indices_of_epoch([ConceptRepeats(0, count, repeats)], num_resolutions=1, epoch=epoch)
    )
    counts = [times[i] for i in range(count)]
    assert max(counts) - min(counts) <= 1
    assert int(repeats) <= min(counts)


def test_half_of_them_then_the_other_half() -> None:
    half = [ConceptRepeats(0, 6, 0.5)]
    epochs = [sample_indices_of_epoch(half, num_resolutions=1, epoch=epoch) for epoch in range(3)]
    first, second, third = ([s.example for s in epoch] for epoch in epochs)
    assert first == [0, 1, 2]
    assert second == [3, 4, 5]
    assert third == first


def test_a_tenth_is_a_tenth() -> None:
    """As a binary number 0.1 is a little more, and 0.7 a little less."""
    for repeats in (0.1, 0.7, 0.3, 2.9):
        counts = Counter(s.example for s in shown([ConceptRepeats(0, 7, repeats)], 1000))
        assert set(counts.values()) == {round(repeats * 1000)}


def test_no_repeats_no_samples() -> None:
    assert shown([ConceptRepeats(0, 5, 0.0), ConceptRepeats(5, 0, 3.0)], 5) == []


def test_concepts_do_not_disturb_each_other() -> None:
    alone = [s for s in shown([ConceptRepeats(3, 4, 1.3)], 9, num_resolutions=2)]
    together = shown(
        [ConceptRepeats(0, 3, 2.0), ConceptRepeats(3, 4, 1.3), ConceptRepeats(7, 2, 0.5)], 9, num_resolutions=2
    )
    assert [s for s in together if 3 <= s.example < 7] == alone


@given(count=st.integers(1, 6), repeats=st.integers(0, 5))
def test_sample_indices_of_an_epoch_are_all_different(count: int, repeats: int) -> None:
    sample_indices = sample_indices_of_epoch([ConceptRepeats(0, count, float(repeats))], num_resolutions=1, epoch=3)
    assert len(set(sample_indices)) == len(sample_indices) == count * repeats
    assert {s.repeat for s in sample_indices} == set(range(repeats))


@given(count=st.integers(1, 6), repeats=repeats_of, num_resolutions=st.integers(1, 4), epochs=st.integers(1, 30))
def test_an_image_s_resolutions_take_turns(count: int, repeats: float, num_resolutions: int, epochs: int) -> None:
    """With half a repeat at two sizes, half of the images used to be trained at one size only."""
    times = Counter(
        (s.example, s.resolution)
        for s in shown([ConceptRepeats(0, count, repeats)], epochs, num_resolutions=num_resolutions)
    )
    for example in range(count):
        counts = [times[example, r] for r in range(num_resolutions)]
        assert max(counts) - min(counts) <= 1


@given(
    copies=st.lists(
        st.tuples(
            st.integers(0, 5), repeats_of.filter(lambda r: Fraction(r).limit_denominator(10_000).denominator <= 10)
        ),
        max_size=3,
    ),
    num_resolutions=st.integers(1, 3),
    epoch=st.integers(0, 100),
)
def test_epochs_recur_after_their_period(copies: list[tuple[int, float]], num_resolutions: int, epoch: int) -> None:
    concepts, first = [], 0
    for count, repeats in copies:
        concepts.append(ConceptRepeats(first, count, repeats))
        first += count
    period = period_of_epochs(concepts, num_resolutions=num_resolutions)
    now, later = (Counter((s.example, s.resolution) for s in sample_indices_of_epoch(concepts, num_resolutions=num_resolutions, epoch=e))  # noqa: E501
                  for e in (epoch, epoch + period))  # fmt: skip
    assert now == later


@given(
    copies=st.lists(st.tuples(st.integers(0, 5), repeats_of), max_size=3),
    num_resolutions=st.integers(1, 3),
    epoch=st.integers(0, 100),
)
def test_sizes_are_counted_without_creating_the_sample_indices(
    copies: list[tuple[int, float]], num_resolutions: int, epoch: int
) -> None:
    concepts, first = [], 0
    for count, repeats in copies:
        concepts.append(ConceptRepeats(first, count, repeats))
        first += count
    buckets = [[Size(8 * (1 + (e + r) % 3), 8) for r in range(num_resolutions)] for e in range(first)]
    made = Counter(
        buckets[s.example][s.resolution]
        for s in sample_indices_of_epoch(concepts, num_resolutions=num_resolutions, epoch=epoch)
    )
    assert sizes_of_epoch(concepts, buckets, num_resolutions=num_resolutions, epoch=epoch) == made


# -- in which order


@given(
    count=st.integers(0, 20), repeats=st.integers(1, 3), batch_size=st.integers(1, 5), accumulation=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1), epoch=st.integers(0, 1000),
)  # fmt: skip
def test_none_is_dropped_and_batches_are_of_one_size(
    count: int, repeats: int, batch_size: int, accumulation: int, seed: int, epoch: int
) -> None:
    sample_indices = sample_indices_of_epoch([ConceptRepeats(0, count, float(repeats))], num_resolutions=2, epoch=epoch)
    plan = accumulation_groups(
        sample_indices, batch_size=batch_size, accumulation_steps=accumulation, run_seed=seed, epoch=epoch
    )
    batches = [batch for group in plan for batch in group]
    assert sorted(s for batch in batches for s in batch) == sorted(sample_indices)
    for batch in batches:
        assert 1 <= len(batch) <= batch_size
        assert len({SIZES[(s.example + s.resolution) % 3] for s in batch}) == 1
    assert all(len(group) == accumulation for group in plan[:-1])
    assert all(1 <= len(group) <= accumulation for group in plan)
    sizes = Counter(SIZES[(s.example + s.resolution) % 3] for s in sample_indices)
    assert len(batches) == sum(-(-n // batch_size) for n in sizes.values())


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    sample_indices = sample_indices_of_epoch([ConceptRepeats(0, 30, 1.0)], num_resolutions=1, epoch=0)
    again = accumulation_groups(sample_indices, run_seed=5, epoch=3)
    assert accumulation_groups(sample_indices, run_seed=5, epoch=3) == again
    assert accumulation_groups(sample_indices, run_seed=6, epoch=3) != again
    assert accumulation_groups(sample_indices, run_seed=5, epoch=4) != again


def test_images_meet_others_from_epoch_to_epoch() -> None:
    """Not only the batches are shuffled, but also who is in them."""
    sample_indices = sample_indices_of_epoch([ConceptRepeats(0, 30, 1.0)], num_resolutions=1, epoch=0)
    partners = {
        frozenset(s.example for s in batch)
        for epoch in range(10)
        for group in accumulation_groups(sample_indices, epoch=epoch)
        for batch in group
    }
    assert len(partners) > 60


@given(
    count=st.integers(0, 30), batch_size=st.integers(1, 4), accumulation=st.integers(1, 6),
    world_size=st.integers(1, 5), epoch=st.integers(0, 1000),
)  # fmt: skip
def test_the_shares_of_all_ranks_are_disjoint_and_complete(
    count: int, batch_size: int, accumulation: int, world_size: int, epoch: int
) -> None:
    sample_indices = sample_indices_of_epoch([ConceptRepeats(0, count, 1.0)], num_resolutions=2, epoch=epoch)
    plan = accumulation_groups(sample_indices, batch_size=batch_size, accumulation_steps=accumulation, epoch=epoch)
    for group in plan:
        shares = [share_of(group, Rank(index, world_size)) for index in range(world_size)]
        counted = [share for of_rank in shares for share in of_rank if share.counts]
        placed = [(s.number, row) for s in counted for row in range(s.first_row, s.first_row + s.num_rows)]
        assert sorted(placed) == [(n, row) for n, m in enumerate(group) for row in range(len(m))]
        assert all(s.sample_indices and s.whole == group[s.number] for of_rank in shares for s in of_rank)
        assert all(shares), "a process without a batch would not take part in the step"
        in_step = [share_of(group, Rank(index, world_size), in_step=True) for index in range(world_size)]
        assert len({len(of_rank) for of_rank in in_step}) == 1, "each forward pass is computed by all together"
        assert [[s for s in of_rank if s.counts] for of_rank in in_step] == [
            [s for s in of_rank if s.counts] for of_rank in shares
        ]
        most, num_shares = shares_of_step(batch_size, len(group), world_size)
        assert max(s.num_rows for of_rank in shares for s in of_rank) <= most
        assert len(in_step[0]) == num_shares
        sizes = [sum(s.num_rows for s in of_rank if s.counts) for of_rank in shares]
        assert max(sizes) - min(sizes) <= (len(group) // world_size) * (batch_size - 1) + len(group) % world_size
    assert all([s.whole for s in share_of(group, ONLY_RANK) if s.is_whole] == list(group) for group in plan)


def test_the_rank_is_that_of_torchrun_or_of_slurm() -> None:
    torchrun = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1"}
    step = {
        "SLURM_PROCID": "3",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_LOCALID": "1",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
        "SLURM_NODEID": "1",
    }
    assert current_rank(torchrun) == current_rank(step) == Rank(3, 4, 1, 2, machine=1)
    assert current_rank({}) is current_rank({"RANK": "0", "WORLD_SIZE": "1"}) is ONLY_RANK
    assert current_rank({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}) is ONLY_RANK  # without srun
    assert meeting_place({**step, "SLURM_JOB_ID": "7", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1"}) == ("10.0.0.1", 20_007)
    ports = {meeting_place({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": str(number)})[1] for number in range(3)}
    assert len(ports) == 3, "runs in the steps of a job do not meet each other"
    for wrong in ({"RANK": "4"}, {"RANK": "-1"}, {"RANK": "one"}):
        with pytest.raises(DarkroomError, match="no valid process"):
            current_rank({**torchrun, **wrong})


def test_the_order_stays_what_it_is() -> None:
    """A run is resumed by a later version of the program, too."""
    sample_indices = sample_indices_of_epoch([ConceptRepeats(0, 8, 1.0)], num_resolutions=1, epoch=2)
    plan = accumulation_groups(sample_indices, run_seed=42, epoch=2)
    order = [[[s.example for s in batch] for batch in group] for group in plan]
    assert order == [
        [[4, 1], [7]],
        [[5, 2], [3, 0]],
        [[6]],
    ]


@pytest.mark.parametrize("epoch", [0, 1, 10**6])
def test_an_epoch_without_samples_has_no_accumulation_groups(epoch: int) -> None:
    assert accumulation_groups([], epoch=epoch) == ()


@pytest.mark.parametrize("repeats", [0.1, 0.5, 1.0, 1.5, 3.0])
@pytest.mark.parametrize("seed", [None, 4])
def test_uses_before_an_epoch_are_counted_for_every_example(repeats: float, seed: int | None) -> None:
    """Also for those that are not used in it, which a merged batch may bring into it."""
    concepts = [ConceptRepeats(0, 3, 1.0), ConceptRepeats(3, 7, repeats, seed=seed)]
    concept_of = [0] * 3 + [1] * 7
    used = Counter(dict.fromkeys(range(10), 0))
    for epoch in range(12):
        assert {e: concepts[c].uses_before(e, epoch) for e, c in enumerate(concept_of)} == used
        used.update(s.example for s in sample_indices_of_epoch(concepts, num_resolutions=2, epoch=epoch))
