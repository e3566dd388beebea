"""The models of the Concepts page and its editor, without a window."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from modules.config.schema import Config
from modules.data.buckets import Size
from modules.data.concept import Concept
from modules.data.scan import image_index
from modules.data.statistics import FileCounts, Statistics
from modules.objectives.spec import LearnsFrom
from modules.system.paths import as_config_path
from ui.features.concepts.cards import CardFilter, card_of, summary_of
from ui.features.concepts.model import clone, make_concepts
from ui.features.concepts.preview import PreviewModel, describe_changes, describe_use
from ui.features.concepts.scanning import STOPPED, ScanFacts, Scans, _scan
from ui.features.concepts.statistics_tab import (
    bucket_bars,
    describe_tags,
    describe_token_lengths,
    rows_of,
    search_tags,
    size_points,
    token_bars,
)
from ui.features.concepts.task import Task
from ui.forms import items
from ui.forms.model import FormModel
from ui.loop.background import Background, JobCancelledError
from ui.widgets.grid_layout import card_layout
from ui.widgets.thumbnails import ThumbnailCache, collage

FACTS = ScanFacts(num_images=4, num_captioned=3, num_skipped=0, num_wrongly_encoded=0, first=(Path("a.png"),))


def drained(background: Background, condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        background.drain(time.perf_counter() + 0.05)
        assert time.monotonic() < deadline


def card(**changes: Any) -> Any:
    return card_of(0, Concept(path="/sets/cats", **changes), "", FACTS, kind_label="Training")


def test_a_card_shows_images_captions_and_problems() -> None:
    found = card()
    assert (found.name, found.figures, found.captions) == ("cats", "4 images", "3 of 4 captioned")
    assert found.share_captioned == 0.75
    assert [problem.text for problem in found.problems] == ["1 without a caption"]
    assert "3 of 4 captioned" in found.tip
    assert "• 1 without a caption: write them" in found.tip


@pytest.mark.parametrize(
    ("concept", "result", "facts", "problems"),
    [
        (Concept(path="/x"), None, None, []),
        (Concept(path="/x"), STOPPED, None, []),
        (Concept(path="hf://datasets/a/b"), "on the Hugging Face hub", None, []),
        (Concept(path="/x"), "not found", None, ["folder not found"]),
        (Concept(), "no folder chosen", None, ["no folder chosen"]),
        (Concept(path="/x"), "", ScanFacts(0, 0, 2, 0, ()), ["no images found", "2 files skipped"]),
        (
            Concept(path="/x", repeats=0),
            "",
            ScanFacts(1, 1, 0, 1, ()),
            ["not used: repeats is 0", "1 caption not UTF-8"],
        ),
        (Concept(path="/x", kind="prompts"), "", ScanFacts(3, 0, 0, 0, ()), []),
    ],
)
def test_what_is_wrong_with_a_concept(
    concept: Concept, result: str | None, facts: ScanFacts | None, problems: list[str]
) -> None:
    found = card_of(0, concept, result, facts, kind_label="Training")
    assert [p.text for p in found.problems] == problems


def test_cards_are_searched_and_filtered() -> None:
    cats = card()
    dogs = card_of(1, Concept(path="/sets/dogs", enabled=False, kind="validation"), "", None, kind_label="Validation")
    fine = card_of(2, Concept(name="fine", path="/x"), "", ScanFacts(1, 1, 0, 0, ()), kind_label="Training")
    shown = lambda **wanted: [c.name for c in (cats, dogs, fine) if CardFilter(**wanted).shows(c)]  # noqa: E731
    assert CardFilter().is_open
    assert shown() == ["cats", "dogs", "fine"]
    assert shown(text="SETS ca") == ["cats"]
    assert shown(text="validation") == ["dogs"]
    assert shown(kind="training") == ["cats", "fine"]
    assert shown(state="disabled") == ["dogs"]
    assert shown(state="enabled", text="f") == ["fine"]
    assert shown(state="problems") == ["cats", "dogs"]
    assert summary_of((cats, dogs, fine), (FACTS, None, FACTS)) == "3 concepts, 8 images in use"


def test_a_clone_has_another_augmentation_seed() -> None:
    form = FormModel(Config(concepts=(Concept(path="a"), Concept(path="b", seed=7))))
    assert clone(form, [0, 1]) == [1, 3]
    concepts = form.config.concepts
    assert [c.path for c in concepts] == ["a", "a", "b", "b"]
    seeds = [concepts[1].seed, concepts[3].seed]
    assert None not in seeds
    assert len({*seeds, 7, form.config.general.seed}) == 4
    form.undo()
    assert len(form.config.concepts) == 2


@pytest.mark.parametrize(
    ("moved", "before", "order", "places"),
    [([0], 2, "bacd", [1]), ([3], 0, "dabc", [0]), ([0, 2], 4, "bdac", [2, 3]), ([1], 1, "abcd", [1])],
)
def test_entries_are_moved_before_another(moved: list[int], before: int, order: str, places: list[int]) -> None:
    form = FormModel(Config(concepts=tuple(Concept(path=p) for p in "abcd")))
    assert items.move_before(form, "concepts", moved, before) == places
    assert "".join(c.path for c in form.config.concepts) == order


def test_an_edit_leaves_the_other_concepts_as_they_are() -> None:
    form = FormModel(Config(concepts=tuple(Concept(path=str(n)) for n in range(3))))
    before = form.config.concepts
    form.edit("concepts.1.image.flip", "random")
    items.change(form, "concepts", [2], enabled=False)
    after = form.config.concepts
    assert after[0] is before[0]
    assert (after[1].image.flip, after[2].enabled) == ("random", False)


def test_a_list_with_an_invalid_entry_is_rejected() -> None:
    form = FormModel(Config(concepts=(Concept(path="a"),)))
    assert form.edit("concepts", (form.config.concepts[0].model_copy(update={"repeats": -1.0}),)) is not None
    assert form.config.concepts[0].repeats == 1.0


def test_the_places_of_a_grid() -> None:
    shape = {"min_px": 196, "most_px": 340, "gap_px": 12, "text_px": 90, "image_share": 0.5}
    grid = card_layout(10, 640, 500, **shape)  # type: ignore[arg-type]
    assert (grid.num_columns, grid.cell_width, grid.cell_height) == (3, 200, 190)
    assert grid.height == 4 * 202
    assert list(grid.visible(0, 300)) == list(range(6))
    assert list(grid.visible(250, 100)) == [3, 4, 5]
    x, y = grid.corner(4)
    assert (grid.at(x + 5, y + 5), grid.at(x - 3, y + 5), grid.at(x, 4 * 202)) == (4, None, None)
    assert [grid.gap_at(x, 10) for x in (0, 120, 230, 640)] == [0, 1, 1, 3]
    assert grid.gap_at(630, 3 * 202 + 5) == 10
    keys = {"Right": 5, "Left": 3, "Up": 1, "Down": 7, "Home": 0, "End": 9, "Prior": 1, "Next": 7}
    assert {key: grid.go(4, key, 210) for key in keys} == keys
    few = card_layout(3, 1600, 900, **shape)  # type: ignore[arg-type]
    assert (few.num_columns, few.cell_width) == (5, 304)  # larger, where all are seen
    assert card_layout(14, 1600, 720, **shape).num_columns == 6  # type: ignore[arg-type]
    assert (grid.go(0, "Left", 200), grid.go(9, "Right", 200), grid.go(8, "Down", 200)) == (0, 9, 9)


@pytest.fixture
def sets(tmp_path: Path) -> list[Concept]:
    for name in "abc":
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / name / "one.png")
    return [Concept(path=str(tmp_path / name)) for name in "abc"]


class ByHand(Background):
    """Runs each job only when it is called by hand."""

    def _submit(self, job: Any) -> Any:
        jobs.append(job)
        return job


jobs: list[Any] = []


def do(job: Any) -> None:
    result = job.work()
    if not job.is_cancelled:
        job.done(result)


def test_scans_run_one_at_a_time_visible_ones_first_and_can_be_stopped(sets: list[Concept]) -> None:
    jobs.clear()
    scans, done = Scans(ByHand()), []
    for concept in sets:
        scans.want(concept, lambda c=concept: done.append(c))  # type: ignore[misc]
    assert len(jobs) == 1
    scans.prefer([sets[2]])
    do(jobs.pop())
    assert done == [sets[0]]
    do(jobs.pop())
    assert done == [sets[0], sets[2]]
    running = jobs.pop()
    scans.stop()
    assert running.is_cancelled
    assert scans.of(sets[1]) == STOPPED
    assert scans.is_stopped
    assert scans.progress is None
    scans.forget()
    scans.want(sets[1], lambda: done.append(sets[1]))
    do(jobs.pop())
    facts = scans.facts_of(sets[1])
    assert facts is not None
    assert (facts.num_images, facts.num_captioned) == (1, 0)
    assert not scans.is_stopped


def test_a_folder_is_scanned_again_only_if_it_has_changed(sets: list[Concept]) -> None:
    jobs.clear()
    scans, concept = Scans(ByHand()), sets[0]
    scans.want(concept, lambda: None)
    do(jobs.pop())
    first = scans.of(concept)
    scans.forget()
    assert scans.of(concept) is first
    scans.want(concept, lambda: None)
    do(jobs.pop())
    assert scans.of(concept) is first
    (Path(concept.path) / "one.txt").write_text("a caption", encoding="utf-8")
    scans.forget()
    scans.want(concept, lambda: None)
    do(jobs.pop())
    facts = scans.facts_of(concept)
    assert facts is not None
    assert facts.num_captioned == 1


def test_the_scan_of_a_path_that_is_gone_is_cancelled(sets: list[Concept]) -> None:
    jobs.clear()
    scans = Scans(ByHand())
    for concept in sets[:2]:
        scans.want(concept, lambda: None)
    typed = jobs.pop()
    scans.keep_only([sets[1]])
    assert typed.is_cancelled
    do(jobs.pop())
    assert scans.facts_of(sets[1]) is not None
    assert not jobs


@pytest.mark.parametrize("number", [4, 14])
def test_a_scan_stops_while_it_lists_folders(tmp_path: Path, number: int) -> None:
    """Of a path that is typed, each part is a folder: the whole disk was listed, and the scan of the rest waited."""
    for name in range(8):
        (tmp_path / f"{name}").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "0" / "image.png")
    num_reports = 0

    def report(_what: str, _done: int, _total: int) -> None:
        nonlocal num_reports
        num_reports += 1
        if num_reports == number:  # in the listing for the comparison, and in that of the scan itself
            raise JobCancelledError

    with pytest.raises(JobCancelledError):
        _scan(Concept(path=str(tmp_path), include_subfolders=True), image_index(None), None, report)
    assert num_reports == number


def test_a_reporting_job_stops_at_its_next_report_once_cancelled() -> None:
    background, reports, results = Background(), [], []
    task: Task[str] = Task(background)
    task.changed.subscribe(lambda: reports.append(task.status))

    def work(report: Any) -> str:
        for number in range(10**9):
            report("counting", number, 10**9)
        return "never"

    task.start(work)
    drained(background, lambda: any(reports))
    assert reports[-1].startswith("Counting: ")
    task.start(lambda report: "short")
    drained(background, lambda: task.result)
    assert task.result == "short"
    assert not task.is_running
    assert results == []


def test_thumbnails_are_kept_on_disk_and_follow_their_image(tmp_path: Path) -> None:
    image, folder = tmp_path / "a.png", tmp_path / "thumbnails"
    Image.effect_noise((400, 300), 80).convert("RGB").save(image)
    cache = ThumbnailCache(folder)
    assert cache.cover(image, 60, 40).size == (60, 40)
    (kept,) = folder.glob("*/*.jpg")
    assert not list(folder.glob("*/.*"))
    Image.new("RGB", (60, 40), (1, 200, 3)).save(kept)
    assert cache.cover(image, 60, 40).getpixel((5, 5))[1] > 150  # read from the disk
    kept.write_bytes(b"damaged")
    assert cache.cover(image, 60, 40).size == (60, 40)
    Image.effect_noise((300, 400), 70).convert("RGB").save(image)
    cache.cover(image, 60, 40)
    assert len(list(folder.glob("*/*.jpg"))) == 2
    assert cache.fit(image, 40, 40).size == (30, 40)


def test_the_thumbnail_cache_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ui.widgets.thumbnails._WRITES_BETWEEN_LOOKS", 1)
    image = tmp_path / "a.png"
    Image.effect_noise((300, 300), 80).convert("RGB").save(image)
    cache = ThumbnailCache(tmp_path / "thumbnails", max_bytes=20_000)
    for side in range(60, 90):
        cache.cover(image, side, side)
    sizes = [p.stat().st_size for p in (tmp_path / "thumbnails").glob("*/*.jpg")]
    assert 0 < sum(sizes) <= 20_000


def test_a_collage_leaves_out_what_cannot_be_read(tmp_path: Path) -> None:
    paths = []
    for n in range(4):
        paths.append(tmp_path / f"{n}.png")
        Image.new("RGB", (32, 32), (60 * n, 0, 0)).save(paths[-1])
    paths[0].write_bytes(b"broken")
    cache = ThumbnailCache(tmp_path / "thumbnails")
    assert collage(paths, 90, 60, gap_colour="#000000", cache=cache).getpixel((10, 10)) == (60, 0, 0)
    assert collage(paths[1:2], 90, 60, gap_colour="#000000", cache=cache).size == (90, 60)
    with pytest.raises(OSError):
        collage(paths[:1], 90, 60, gap_colour="#000000", cache=cache)


def statistics(**changes: Any) -> Statistics:
    usual: dict[str, Any] = {
        "num_images": 3, "size_bytes": 1500, "files": FileCounts(1, 2, 1), "pixels": None,
        "sizes": {Size(64, 64): 2, Size(64, 32): 1}, "buckets": {Size(64, 64): 2, Size(96, 48): 1}, "aspects": {1.0: 3},
        "num_captioned": 2, "num_captions": 2, "characters": None, "tokens": None, "token_lengths": (3, 90),
        "num_long": 1, "chunk_tokens": 75, "tags": (("a cat", 3), ("blue", 2), ("catnip", 1)),
    }  # fmt: skip
    return Statistics(**{**usual, **changes})


def test_statistics_in_words_and_bars() -> None:
    found = statistics()
    assert ("Masks", "2, 1 without an image") in rows_of(found)
    assert [(b.label, b.is_marked) for b in bucket_bars(found)] == [("64x64", False), ("96x48", True)]
    assert [p.words for p in size_points(found)] == ["64x32: 1 image", "64x64: 2 images"]
    bars = token_bars(found)
    assert sum(b.value for b in bars) == 2
    assert [b.is_marked for b in bars if b.value] == [False, True]
    assert "1 caption of 2 exceed 75 tokens" in describe_token_lengths(found)
    assert "none is truncated" in describe_token_lengths(statistics(num_long=0))
    assert search_tags(found, "CAT") == [("a cat", 3), ("catnip", 1)]
    assert describe_tags(found, search_tags(found, "blue")) == "1 of 3 tags, 1 in a single image"


def test_the_preview_steps_through_images_and_uses(tmp_path: Path, sets: list[Concept]) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a" / "two.png")
    config = Config(concepts=(sets[0].model_copy(update={"image_variations": 2}),))
    config = FormModel(config).config
    form = FormModel(config)
    form.edit("concepts.0.image.flip", "random")
    background = Background()
    model = PreviewModel(background, Scans(background), ThumbnailCache(tmp_path / "thumbnails"))
    model.follow(form.config, 0)
    drained(background, lambda: model.content)
    assert model.content is not None
    assert (model.num_images, model.content.seen.path.name) == (2, "one.png")
    assert "variation 1 of 2" in describe_changes(model.content, is_augmented=True)
    model.step_use(1)
    drained(background, lambda: model.content and model.content.seen.sample_index.epoch == 1)
    assert describe_use(model.content, model.use) == "use 2 of 200: epoch 2"
    model.step_image(-1)
    drained(background, lambda: model.content and model.content.seen.path.name == "two.png")
    assert model.use == 0
    form.edit("concepts.0.repeats", 0.0)
    model.follow(form.config, 0)
    drained(background, lambda: model.message)
    assert "repeats are 0" in model.message


def test_concepts_that_are_added_are_made_some_at_a_time(tmp_path: Path) -> None:
    folders = [tmp_path / f"{n}" for n in range(120)]
    for folder in folders:
        folder.mkdir()
    (beside := tmp_path / "0" / "a.png").touch()
    made: list[int] = []
    added: list[Concept] = []
    task = make_concepts([*folders, beside], made=lambda n, _c: made.append(n), add=added.extend)
    assert sum(1 for _ in task) == 2
    assert made == list(range(120))
    assert [concept.path for concept in added] == [as_config_path(folder) for folder in folders]
    assert {concept.kind for concept in added} == {"training"}


def test_what_is_added_has_the_type_that_the_method_learns_from(tmp_path: Path) -> None:
    prompts, pairs, plain = tmp_path / "prompts.txt", tmp_path / "pairs", tmp_path / "plain"
    prompts.write_text("a disc\n", encoding="utf-8")
    for folder in (pairs / "chosen", pairs / "rejected", plain):
        folder.mkdir(parents=True)
    (image := plain / "a.png").touch()
    (caption := plain / "a.txt").touch()

    def added(learns_from: LearnsFrom, *paths: Path) -> list[tuple[str, str]]:
        found: list[Concept] = []
        for _ in make_concepts(paths, made=lambda n, c: None, add=found.extend, learns_from=learns_from):
            pass
        return [(Path(concept.path).name, concept.kind) for concept in found]

    assert added("prompts", prompts) == [("prompts.txt", "prompts")]
    assert added("prompts", image, caption) == [("plain", "training")], "captions next to their images"
    assert added("images", prompts) == [(tmp_path.name, "training")]
    assert added("pairs", pairs, plain) == [("pairs", "pairs"), ("plain", "training")]
    assert added("images", pairs) == [("pairs", "training")]
