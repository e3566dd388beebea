"""The examples of a dataset in a mapped file are those that were written, and are planned alike."""

from __future__ import annotations

import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from modules.data import shard_index
from modules.data.archives import open_file
from modules.data.buckets import BucketRules, ResizeCrop, Size
from modules.data.companions import Companion
from modules.data.concept import Concept
from modules.data.dataset import Dataset, build_dataset
from modules.data.datasets import DatasetSettings
from modules.data.example import Example
from modules.data.stored_examples import StoredExamples, map_examples, write_examples
from modules.data.transforms.geometry import Box
from tests.builders.images import draw_folder
from tests.builders.pairs import draw_pairs
from tests.builders.shards import draw_shard

RULES = BucketRules((64, 96), step_px=16, max_aspect_ratio=2.0, is_bucketing=True)


def stored(file: Path, dataset: Dataset) -> StoredExamples:
    """Return the examples of a dataset from a file that is gone, as for the processes of a run."""
    write_examples(file, {"nothing": (), "training": dataset.examples})
    examples = map_examples(file)
    file.unlink()
    assert list(examples["nothing"]) == []
    return examples["training"]


def odd_examples(example: Example) -> list[Example]:
    """Return an example with each fact that only some have."""
    image = example.image
    mask = Companion(image.folder / "mask.png", Size(5, 6), 7, 8, is_alpha=True)
    return [
        example,
        replace(example, mask=mask, mask_box=Box(1, 2, 3, 4), background=(1, 2, 3), input_files={"depth": mask}),
        replace(example, place="elsewhere"),
        *(
            replace(example, image=replace(image, captions=texts))
            for texts in [(), ("",), ("a\0b", "c"), ("ä", "\ud800")]
        ),
        replace(
            example,
            image=replace(image, num_frames=9, rejected=replace(image, num_frames=5, rejected=None)),
            resize_crops=(ResizeCrop(Size(64, 64, 5), Size(70, 64), 3, 0),) * 2,
        ),
        replace(example, image=replace(image, file_name="\udcff.png", caption_from=Path("x.txt"), is_transparent=True)),
    ]


def test_examples_in_a_file_are_those_that_were_written(tmp_path: Path) -> None:
    images = draw_folder(tmp_path / "images", sizes=[(64, 64), (96, 64), (80, 80)] * 2, captions=["a disc", "two"])
    pairs = draw_pairs(tmp_path / "pairs", sizes=[(64, 64)] * 2)
    concepts = [(Concept(path=str(images), repeats=1.5), images), (Concept(path=str(pairs), kind="pairs"), pairs)]
    for some in (concepts[:1], concepts[1:]):
        dataset = build_dataset(some, "training", RULES)
        examples = stored(tmp_path / "examples", dataset)
        assert tuple(examples) == dataset.examples
        assert examples[-1] == dataset.examples[-1]
        assert examples[1:4] == dataset.examples[1:4]
        assert dataset.with_stored(examples) == replace(dataset, examples=examples)
    odd = odd_examples(dataset.examples[0])
    assert list(stored(tmp_path / "examples", replace(dataset, examples=odd))) == odd


def test_examples_in_a_file_are_planned_alike(tmp_path: Path) -> None:
    folder = draw_folder(tmp_path / "images", sizes=[(64, 64), (96, 64), (80, 80)] * 3)
    concept = Concept(path=str(folder), repeats=1.5)
    settings = DatasetSettings((concept,), RULES, batch_size=2, accumulation_steps=2, run_seed=3)
    dataset = build_dataset([(concept, folder)], "training", RULES)
    mapped = dataset.with_stored(stored(tmp_path / "examples", dataset))
    for one, other in ((dataset, mapped), (dataset.without(frozenset({1, 8})), mapped.without(frozenset({1, 8})))):
        plans, of_mapped = settings.plans_of(one), settings.plans_of(other)
        assert one.concepts == other.concepts
        assert of_mapped.accumulation_groups(0) == plans.accumulation_groups(0)
        assert of_mapped.fingerprint == plans.fingerprint


def test_another_process_reads_shards_without_their_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        draw_shard(tmp_path / "shards" / f"{name}.tar", sizes=[(64, 64)] * 3)
    dataset = build_dataset([(Concept(), tmp_path / "shards")], "training", RULES)
    write_examples(tmp_path / "examples", {"training": dataset.examples})
    expected = [open_file(example.image.path).read() for example in dataset.examples]
    monkeypatch.setattr(shard_index, "_known", {})  # as in another process
    monkeypatch.setattr(tarfile, "open", None)
    examples = map_examples(tmp_path / "examples")["training"]
    assert tuple(examples) == dataset.examples
    assert [open_file(example.image.path).read() for example in examples] == expected
