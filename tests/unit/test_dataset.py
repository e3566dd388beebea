"""The dataset of a run: concepts in, examples with their resize and crop out, and a plan with correct numbers."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.data.buckets import BucketRules, Size, bucket_sizes, resize_crop_for
from modules.data.concept import Concept
from modules.data.dataset import ConceptFacts, Dataset, build_dataset, concept_repeats_of
from modules.data.example import Example
from modules.data.image_settings import ImageChanges
from modules.data.order import PartialBatches, sample_indices_of_epoch
from modules.data.plans import EpochPlans
from modules.data.samples import SampleIndex
from modules.data.scan import name_within
from modules.data.source_image import SourceImage
from tests.builders.images import draw_folder
from trainer.export.metadata import dataset_facts

RULES = BucketRules((64,), step_px=16, max_aspect_ratio=2.0, is_bucketing=True)
Kind = Literal["training", "validation"]


def build(concepts: list[tuple[Concept, Path]], kind: Kind = "training", rules: BucketRules = RULES) -> Dataset:
    return build_dataset(concepts, kind, rules)


# -- from folders


def test_a_concept_s_images_with_their_resize_crops(images: Path) -> None:
    dataset = build([(Concept(name="cat", repeats=2.0, loss_weight=0.5), images)])
    assert [e.image.path.name for e in dataset.examples] == [f"{i:03d}.png" for i in range(5)]
    assert dataset.concepts == (ConceptFacts("cat", 2.0, 0.5, 0, 5),)
    sizes = bucket_sizes(64, step_px=16, max_aspect_ratio=2.0, is_bucketing=True)
    assert [e.resize_crops for e in dataset.examples] == [
        (resize_crop_for(e.image.width_px, e.image.height_px, sizes),) for e in dataset.examples
    ]
    assert dataset.buckets == tuple((e.resize_crops[0].bucket,) for e in dataset.examples)
    assert dataset.num_resolutions == 1


def test_names_are_paths_within_the_source(tmp_path: Path) -> None:
    for folder in (tmp_path / "all", tmp_path / "all" / "deep" / "er"):
        draw_folder(folder, sizes=[(64, 64)])
    found = build([(Concept(include_subfolders=True), tmp_path / "all")]).examples
    assert [e.name for e in found] == ["000.png", "deep/er/000.png"]
    single = tmp_path / "all" / "000.png"
    assert [e.name for e in build([(Concept(), single)]).examples] == ["."], "augmentations are drawn from it"
    assert found[0].image.path_text == str(single)


@pytest.mark.parametrize(
    ("fixed", "bucket"), [(Size(96, 64), Size(96, 64)), (Size(100, 60), Size(96, 48)), (Size(8, 70), Size(16, 64))]
)
@pytest.mark.parametrize("is_bucketing", [True, False])
def test_a_fixed_size_is_the_only_one(images: Path, fixed: Size, bucket: Size, is_bucketing: bool) -> None:
    rules = BucketRules((64, 96), step_px=16, max_aspect_ratio=2.0, is_bucketing=is_bucketing, fixed=fixed)
    dataset = build([(Concept(), images)], rules=rules)
    assert dataset.num_resolutions == 1
    assert dataset.bucket_counts == {bucket: 5}


def test_excluded_images_are_left_out_and_counted(images: Path, tmp_path: Path) -> None:
    concept = Concept(excluded="001.png\n\n 003.png \nnot there.png\n", include_subfolders=True)
    dataset = build([(concept, images)])
    assert [e.image.file_name for e in dataset.examples] == ["000.png", "002.png", "004.png"]
    assert [(s.path, s.reason, s.is_normal) for s in dataset.skipped] == [
        (images, "2 images are excluded by the concept", True)
    ]
    assert sorted(p.name for p in images.glob("*.png")) == [f"{i:03d}.png" for i in range(5)], "the files stay"
    shutil.copytree(images, tmp_path / "all" / "below")
    assert len(build([(concept, tmp_path / "all")]).examples) == 5, "of another folder"
    concept = concept.model_copy(update={"excluded": "below/001.png"})
    assert len(build([(concept, tmp_path / "all")]).examples) == 4
    single = tmp_path / "all" / "below" / "002.png"
    assert not build([(Concept(excluded="002.png"), single)]).examples
    assert name_within(tmp_path / "elsewhere", single) == single.as_posix()


def test_captions_of_one_file(images: Path, tmp_path: Path) -> None:
    (tmp_path / "all.txt").write_text("a disc")
    concept = Concept(caption_source="one_file", captions_file=str(tmp_path / "all.txt"))
    assert {e.image.captions for e in build([(concept, images)]).examples} == {("a disc",)}


def test_only_enabled_concepts_of_the_kind_take_part(images: Path, tmp_path: Path) -> None:
    concepts = [
        (Concept(kind="validation"), images),
        (Concept(enabled=False), tmp_path / "not there"),
        (Concept(name="second"), images),
    ]
    assert [c.name for c in build(concepts).concepts] == ["second"]
    validation = build(concepts, "validation")
    assert [c.name for c in validation.concepts] == [images.name]  # the folder's name, where it has none
    assert len(validation.examples) == 5
    assert build([]).examples == ()


def test_concepts_stand_one_after_the_other(images: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    more = draw_folder(tmp_path / "more", sizes=[(64, 64)] * 3)
    dataset = build([(Concept(name=n), f) for n, f in (("a", images), ("none", empty), ("b", more))])
    facts = [(c.name, c.first_example, c.num_examples) for c in dataset.concepts]
    assert facts == [("a", 0, 5), ("none", 5, 0), ("b", 5, 3)]
    assert [e.concept for e in dataset.examples] == [0] * 5 + [2] * 3


def test_each_concept_has_its_own_captions_and_sub_folders(tmp_path: Path) -> None:
    draw_folder(tmp_path / "a", sizes=[(64, 64)])
    draw_folder(tmp_path / "a" / "deep", sizes=[(64, 64)])
    dataset = build(
        [(Concept(include_subfolders=True), tmp_path / "a"), (Concept(caption_source="file_name"), tmp_path / "a")]
    )
    assert [c.num_examples for c in dataset.concepts] == [2, 1]
    assert dataset.examples[2].image.captions == ("000",)
    assert dataset.examples[0].image.captions == ("picture number 0",)


def test_skipped_files_are_reported(tmp_path: Path, images: Path) -> None:
    folder = draw_folder(tmp_path / "a", sizes=[(64, 64)])
    (folder / "empty.png").write_bytes(b"")
    dataset = build([(Concept(), folder), (Concept(), images)])
    assert [s.path.name for s in dataset.skipped] == ["empty.png"]
    assert dataset.without(frozenset({0})).skipped == dataset.skipped


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        build([(Concept(), tmp_path / "nowhere")])


def test_several_resolutions_and_no_buckets(images: Path) -> None:
    rules = BucketRules((64, 128), step_px=32, max_aspect_ratio=2.0, is_bucketing=False)
    dataset = build([(Concept(), images)], rules=rules)
    assert dataset.num_resolutions == 2
    assert {e.resize_crops[0].bucket for e in dataset.examples} == {Size(64, 64)}
    assert {e.resize_crops[1].bucket for e in dataset.examples} == {Size(128, 128)}
    assert dataset.bucket_counts == {Size(64, 64): 5, Size(128, 128): 5}


def test_an_image_counts_once_at_a_size_of_several_resolutions(images: Path) -> None:
    """A concept with one resolution beside one with three used to have three times its images."""
    rules = BucketRules((64, 96, 128), step_px=32, max_aspect_ratio=2.0, is_bucketing=False)
    one = Concept(image=ImageChanges(resolution_px=(160,)))
    dataset = build([(Concept(), images), (one, images)], rules=rules)
    assert dataset.bucket_counts == {Size(side, side): 5 for side in (64, 96, 128, 160)}


def test_the_fullest_buckets_first(images: Path) -> None:
    assert list(build([(Concept(), images)]).bucket_counts.values()) == [3, 2]


def test_without_damaged_ones_the_others_are_renumbered(images: Path, tmp_path: Path) -> None:
    more = draw_folder(tmp_path / "more", sizes=[(64, 64)] * 3)
    dataset = build([(Concept(name="a", repeats=2.0), images), (Concept(name="b"), more)])
    rest = dataset.without(frozenset({0, 2, 7}))
    assert [e.image.path.name for e in rest.examples] == ["001.png", "003.png", "004.png", "000.png", "001.png"]
    assert [(c.name, c.repeats, c.first_example, c.num_examples) for c in rest.concepts] == [
        ("a", 2.0, 0, 3),
        ("b", 1.0, 3, 2),
    ]
    assert rest.buckets == tuple(tuple(p.bucket for p in e.resize_crops) for e in rest.examples)
    assert dataset.without(frozenset()) == dataset
    nothing = dataset.without(frozenset(range(8)))
    assert nothing.examples == ()
    assert plans(nothing).accumulation_groups(0) == ()


# -- the plan


def plans(dataset: Dataset, *, batch_size: int = 2, accumulation_steps: int = 2, run_seed: int = 1) -> EpochPlans:
    return EpochPlans(dataset, batch_size=batch_size, accumulation_steps=accumulation_steps, run_seed=run_seed)


@st.composite
def datasets(draw: st.DrawFn) -> Dataset:
    """Data sets of any shapes, with no file behind them."""
    resolutions = draw(st.sampled_from([(64,), (64, 96), (64, 96, 128)]))
    sizes = BucketRules(resolutions, step_px=32, max_aspect_ratio=2.0, is_bucketing=True).sizes()
    examples: list[Example] = []
    facts: list[ConceptFacts] = []
    for concept in range(draw(st.integers(1, 3))):
        shapes = draw(st.lists(st.sampled_from([(64, 64), (96, 64), (64, 96), (200, 100)]), max_size=6))
        facts.append(
            ConceptFacts(
                str(concept),
                draw(st.sampled_from([0.0, 0.5, 0.1, 1.0, 1.5, 2.0, 3.0])),
                1.0,
                len(examples),
                len(shapes),
                kind=draw(st.sampled_from(["training", "training", "regularization"])),
                samples_per_epoch=draw(st.sampled_from([None, None, 0, 1, 3, 7, 20])),
                seed=draw(st.sampled_from([None, 1])),
            )
        )
        for width, height in shapes:
            image = SourceImage(Path(), f"{len(examples)}.png", width, height, 1, 1, ())
            examples.append(Example(image, concept, tuple(resize_crop_for(width, height, s) for s in sizes)))
    buckets = tuple(tuple(p.bucket for p in e.resize_crops) for e in examples)
    return Dataset(tuple(examples), tuple(facts), len(resolutions), (), buckets)


shapes_of_runs = st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(0, 2**32 - 1))


@given(dataset=datasets(), shape=shapes_of_runs, epochs=st.integers(0, 30))
def test_the_numbers_of_steps_are_those_that_happen(dataset: Dataset, shape: tuple[int, int, int], epochs: int) -> None:
    plan = plans(dataset, batch_size=shape[0], accumulation_steps=shape[1], run_seed=shape[2])
    steps = [len(plan.accumulation_groups(e)) for e in range(epochs)]
    assert [plan.num_steps(e) for e in range(epochs)] == steps
    assert plan.total_steps(epochs) == sum(steps)
    assert plan.has_empty_epoch(epochs) == (0 in steps)


@given(dataset=datasets(), shape=shapes_of_runs, epochs=st.integers(1, 20))
def test_over_a_run_every_image_comes_as_often_as_promised(
    dataset: Dataset, shape: tuple[int, int, int], epochs: int
) -> None:
    plan = plans(dataset, batch_size=shape[0], accumulation_steps=shape[1], run_seed=shape[2])
    times: Counter[int] = Counter()
    for epoch in range(epochs):
        for group in plan.accumulation_groups(epoch):
            assert 1 <= len(group) <= shape[1]
            for batch in group:
                assert 1 <= len(batch) <= shape[0]
                assert len({dataset.buckets[s.example][s.resolution] for s in batch}) == 1
                times.update(s.example for s in batch)
    repeats = concept_repeats_of(dataset.concepts, run_seed=shape[2])
    for number, example in enumerate(dataset.examples):
        assert abs(times[number] - repeats[example.concept].exact_repeats * epochs) < 1


@given(dataset=datasets(), epochs=st.permutations(range(5)))
def test_an_epoch_is_planned_alike_whenever_it_is_asked_for(dataset: Dataset, epochs: list[int]) -> None:
    """A resumed run begins in the middle."""
    straight = plans(dataset)
    expected = [straight.accumulation_groups(e) for e in range(5)]
    jumping = plans(dataset)
    assert {e: jumping.accumulation_groups(e) for e in epochs} == dict(enumerate(expected))


def test_a_million_epochs_are_counted_without_planning_them(images: Path) -> None:
    """Fractional repeats used to make the check of a long run plan every epoch of it."""
    dataset = build([(Concept(repeats=1.5), images)], rules=BucketRules((64, 96), 32, 2.0, True))
    plan = plans(dataset, batch_size=1, accumulation_steps=1)
    assert plan.total_steps(1_000_000) == 7_500_000


def test_epochs_without_an_image_are_noticed(images: Path) -> None:
    dataset = build([(Concept(repeats=0.1), images)])
    plan = plans(dataset)
    assert [len(plan.accumulation_groups(e)) for e in range(4)] == [1, 0, 1, 0]
    assert plan.has_empty_epoch(2)
    assert not plan.has_empty_epoch(1)


def test_the_fingerprint_before_a_move_has_the_earlier_paths_also_at_the_root_of_a_disk(tmp_path: Path) -> None:
    """From and to a memory stick the separator behind the root was doubled or left out, and the run refused."""
    images = draw_folder(tmp_path / "a", sizes=[(64, 64)] * 2)
    plan = plans(build([(Concept(), images)]))
    root = images.anchor
    single = {str(image): f"{root}{image.name}" for image in images.glob("*.png")}
    assert plan.fingerprint_before({str(images): root}) == plan.fingerprint_before(single)
    before = str(Path(root) / "old" / images.relative_to(root))
    assert plan.fingerprint_before({root: str(Path(root) / "old")}) == plan.fingerprint_before({str(images): before})
    assert plan.fingerprint_before({f"{images}b": before}) == plan.fingerprint


# -- balancing by samples, and regularization


def used(plan: EpochPlans, epochs: range) -> Counter[int]:
    return Counter(s.example for e in epochs for g in plan.accumulation_groups(e) for b in g for s in b)


def test_samples_per_epoch_give_every_image_its_share(tmp_path: Path) -> None:
    images = draw_folder(tmp_path / "a", sizes=[(64, 64)] * 7)
    dataset = build([(Concept(balancing="samples", samples_per_epoch=3, repeats=50), images)])
    plan = plans(dataset)
    for epochs in range(1, 30):
        times = used(plan, range(epochs))
        assert sum(times.values()) == 3 * epochs
        assert max(times[i] for i in range(7)) - min(times[i] for i in range(7)) <= 1
    assert set(used(plan, range(7)).values()) == {3}
    assert plan.total_steps(700) == 700 * plan.num_steps(0)


def test_samples_per_epoch_may_exceed_the_images(tmp_path: Path) -> None:
    images = draw_folder(tmp_path / "a", sizes=[(64, 64)] * 2)
    plan = plans(build([(Concept(balancing="samples", samples_per_epoch=5), images)]))
    assert sum(used(plan, range(1)).values()) == 5
    assert set(used(plan, range(2)).values()) == {5}


def test_samples_take_turns_in_an_order_of_the_seed(tmp_path: Path) -> None:
    """In the order of their names, the first epochs would show the first folders only."""
    images = draw_folder(tmp_path / "a", sizes=[(64, 64)] * 12)
    concept = Concept(balancing="samples", samples_per_epoch=4)

    def first_ones(concept: Concept, run_seed: int) -> list[int]:
        return sorted(used(plans(build([(concept, images)]), run_seed=run_seed), range(1)))

    assert first_ones(concept, 1) == first_ones(concept, 1) != first_ones(concept, 2)
    seeded = concept.model_copy(update={"seed": 5})
    assert first_ones(seeded, 1) == first_ones(seeded, 2)
    orders = {tuple(first_ones(concept.model_copy(update={"seed": s}), 1)) for s in range(5)}
    assert len(orders) > 1


def test_as_many_regularization_images_as_training_images(tmp_path: Path) -> None:
    sks = draw_folder(tmp_path / "sks", sizes=[(64, 64)] * 4)
    dogs = draw_folder(tmp_path / "dogs", sizes=[(64, 64)] * 10)
    cats = draw_folder(tmp_path / "cats", sizes=[(64, 64)] * 2)
    dataset = build(
        [
            (Concept(kind="regularization", loss_weight=0.5), dogs),
            (Concept(repeats=3.0), sks),
            (Concept(kind="regularization", repeats=5.0), cats),
            (Concept(kind="regularization", balancing="samples", samples_per_epoch=1), cats),
        ]
    )
    plan = plans(dataset)
    times = used(plan, range(10))
    assert [times[i] for i in range(10, 14)] == [30] * 4
    assert sum(times[i] for i in range(10)) == 60  # 10 images and 2 times 5 repeats: half of the 120 for each
    assert set(times[i] for i in range(10)) == {6}
    assert [times[14], times[15]] == [30, 30]
    assert times[16] + times[17] == 10
    assert [c.loss_weight for c in dataset.concepts] == [0.5, 1.0, 1.0, 1.0]


def test_metadata_have_the_samples_that_an_epoch_takes(tmp_path: Path) -> None:
    """They had a concept's repeats also where the number of its samples is set or follows the training images."""
    many = draw_folder(tmp_path / "many", sizes=[(64, 64)] * 4)
    few = draw_folder(tmp_path / "few", sizes=[(64, 64)] * 2)
    concepts = [
        (Concept(balancing="samples", samples_per_epoch=6, repeats=50), many),
        (Concept(kind="regularization", repeats=5.0), few),
    ]
    facts = dataset_facts(build(concepts), "counts", run_seed=1)
    assert facts is not None
    assert [concept.repeats for concept in facts.concepts] == [1.5, 3.0]
    assert dict(facts.buckets) == {(64, 64): 12}


def test_regularization_without_training_images_or_images_is_no_error(tmp_path: Path) -> None:
    dogs = draw_folder(tmp_path / "dogs", sizes=[(64, 64)] * 2)
    (tmp_path / "empty").mkdir()
    alone = build([(Concept(kind="regularization"), dogs)])
    assert plans(alone).total_steps(3) == 0
    empty = [
        (Concept(), dogs),
        (Concept(kind="regularization"), tmp_path / "empty"),
        (Concept(balancing="samples"), tmp_path / "empty"),
    ]
    assert sum(used(plans(build(empty)), range(1)).values()) == 2


# -- partial batches


@given(dataset=datasets(), shape=shapes_of_runs, epochs=st.integers(1, 12), partial=st.sampled_from(["merge", "drop"]))
def test_partial_batches_are_merged_or_dropped(
    dataset: Dataset, shape: tuple[int, int, int], epochs: int, partial: PartialBatches
) -> None:
    """All batches are full. Merged, nothing is lost but what the last epochs leave over: less than a batch per size."""
    batch_size, accumulation_steps, run_seed = shape
    plan, every = (
        EpochPlans(
            dataset,
            batch_size=batch_size,
            accumulation_steps=accumulation_steps,
            run_seed=run_seed,
            partial_batches=p,
        )
        for p in (partial, "keep")
    )
    trained: Counter[SampleIndex] = Counter()
    listed: Counter[SampleIndex] = Counter()
    for epoch in range(epochs):
        groups = plan.accumulation_groups(epoch)
        assert len(groups) == plan.num_steps(epoch)
        assert all(len(batch) == batch_size for group in groups for batch in group)
        for batch in (b for group in groups for b in group):
            assert len({dataset.buckets[s.example][s.resolution] for s in batch}) == 1
            trained.update(batch)
        listed.update(s for group in every.accumulation_groups(epoch) for b in group for s in b)
        of_each = [s for n in range(len(dataset.examples)) for s in every.samples_of(n, epoch)]
        assert Counter(of_each) == Counter(s for group in every.accumulation_groups(epoch) for b in group for s in b)
    assert sum(plan.num_steps(e) for e in range(epochs)) == plan.total_steps(epochs)
    assert set(listed.values()) <= {1}
    assert trained <= listed  # each with its own epoch
    left = Counter(dataset.buckets[s.example][s.resolution] for s in (listed - trained).elements())
    limit = batch_size if partial == "merge" else batch_size * epochs
    assert all(count < limit or batch_size == 1 for count in left.values())


def test_an_epoch_with_merged_batches_does_not_depend_on_the_ones_computed_before() -> None:
    rules = BucketRules((64,), step_px=16, max_aspect_ratio=2.0, is_bucketing=True)
    images = [SourceImage(Path(), f"{i}.png", 64 + 32 * (i % 2), 64, 1, 1, ()) for i in range(7)]
    crops = [rules.resize_crops(Size(i.width_px, 64), rules.sizes()) for i in images]
    examples = tuple(Example(image, 0, crop) for image, crop in zip(images, crops, strict=True))
    dataset = Dataset(examples, (ConceptFacts("a", 1.5, 1.0, 0, 7),), 1, (), tuple((c[0].bucket,) for c in crops))

    def plan() -> EpochPlans:
        return EpochPlans(dataset, batch_size=3, accumulation_steps=1, run_seed=4, partial_batches="merge")

    in_order = plan()
    groups = [in_order.accumulation_groups(e) for e in range(9)]
    assert groups[7] == plan().accumulation_groups(7)
    assert in_order.left_out(0)


# -- buckets and resolutions of a concept


def test_concepts_with_resolutions_of_their_own(images: Path) -> None:
    rules = BucketRules((64, 96), step_px=16, max_aspect_ratio=1.0, is_bucketing=True)
    own = Concept(image=ImageChanges(resolution_px=("48x80", 32, 64)))
    dataset = build([(Concept(), images), (own, images)], rules=rules)
    assert dataset.num_resolutions == 6
    first, second = (
        [str(p.bucket) for p in dataset.examples[dataset.concepts[c].first_example].resize_crops] for c in (0, 1)
    )
    assert first == ["64x64", "96x96"] * 3
    assert second == ["48x80", "32x32", "64x64"] * 2
    uses = Counter(
        (s.example, str(dataset.buckets[s.example][s.resolution]))
        for epoch in range(6)
        for s in sample_indices_of_epoch(
            concept_repeats_of(dataset.concepts, run_seed=0), num_resolutions=6, epoch=epoch
        )
    )
    assert set(uses.values()) == {2, 3}  # of six epochs: each of three sizes twice, each of two three times


def test_images_below_the_minimum_are_skipped_with_the_reason(tmp_path: Path) -> None:
    folder = draw_folder(tmp_path / "some", sizes=[(64, 64), (40, 90)])
    rules = BucketRules((64,), step_px=16, max_aspect_ratio=2.0, is_bucketing=True, min_side_px=41)
    dataset = build([(Concept(), folder)], rules=rules)
    assert len(dataset.examples) == 1
    assert [(s.path.name, s.reason) for s in dataset.skipped] == [
        ("001.png", "smaller than the minimum of 41 px (40x90)")
    ]
