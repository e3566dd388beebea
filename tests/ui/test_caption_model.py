"""The state of the caption editor, without a window: folders, images, captions, masks, and what is asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from PIL import Image

from modules.data.transforms.geometry import Box
from modules.system.errors import DarkroomError
from tests.ui.recorder import Recorder
from ui.features.captions.image_set import Source
from ui.features.captions.model import NO_IMAGES, CaptionModel
from ui.loop.background import Background, Job

T = TypeVar("T")


class AtOnce(Background):
    """Runs each job at once, on the caller's thread."""

    def run(
        self, work: Callable[[], T], done: Callable[[T], None], failed: Callable[[Exception], None] | None = None
    ) -> Job:
        try:
            result = work()
        except (OSError, DarkroomError) as error:
            (failed or pytest.fail)(error)  # type: ignore[operator]
        else:
            done(result)
        return Job(work, done, failed or pytest.fail)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "images"
    place.mkdir()
    for name in "abc":
        Image.new("RGB", (32, 24), "gray").save(place / f"{name}.png")
    (place / "a.txt").write_text("red cat")
    (place / "b.txt").write_text("blue sky")
    return place


@pytest.fixture
def asked() -> Recorder:
    return Recorder()


@pytest.fixture
def model(folder: Path, asked: Recorder) -> CaptionModel:
    model = CaptionModel({"images": Source(folder, "Images")}, "images", AtOnce(), asked)
    model.read()
    return model


def name_of(model: CaptionModel) -> str:
    assert model.session.current is not None
    return model.session.current.name


def test_a_folder_is_read_and_its_first_image_opened(model: CaptionModel) -> None:
    assert [image.name for image in model.session.images] == ["a.png", "b.png", "c.png"]
    assert (name_of(model), model.message, model.is_reading) == ("a.png", "", False)
    assert model.image is not None
    assert model.image.size == (32, 24)
    assert model.session.caption is not None
    assert model.session.caption.text == "red cat"


def test_the_next_image_saves_the_caption_of_the_last(model: CaptionModel, folder: Path) -> None:
    opened: list[str] = []
    model.image_opened.subscribe(lambda: opened.append(name_of(model)))
    model.edit_caption("red cat, sitting")
    assert model.session.is_edited
    model.step(1)
    assert (folder / "a.txt").read_text() == "red cat, sitting"
    model.step(-1)
    model.step(-1)  # there is none before the first
    model.go_to(2)
    model.go_to(9)
    assert opened == ["b.png", "a.png", "c.png"]


def test_a_search_lists_a_part_of_the_images_and_the_open_one_stays(model: CaptionModel) -> None:
    model.select("no_caption", "")
    assert [image.name for image in model.session.images] == ["c.png"]
    assert (name_of(model), model.session.index) == ("a.png", -1)
    model.step(1)
    assert name_of(model) == "c.png"
    model.select("all", "blue")
    assert [image.name for image in model.session.images] == ["b.png"]
    model.read_again()  # the search stays
    assert [image.name for image in model.session.images] == ["b.png"]


def test_a_reverted_caption_can_be_undone(model: CaptionModel) -> None:
    shown: list[bool] = []
    model.caption_changed.subscribe(shown.append)
    model.edit_caption("a dog")
    model.revert()
    assert model.session.caption is not None
    assert (model.session.caption.text, shown) == ("red cat", [True])


@pytest.mark.parametrize(
    ("answer", "text", "is_settled"),
    [("stay", "theirs", False), (None, "theirs", False), ("discard", "theirs", True), ("mine", "mine", True)],
)
def test_a_file_of_another_program_is_asked_about(
    answer: str | None, text: str, is_settled: bool, model: CaptionModel, asked: Recorder, folder: Path
) -> None:
    model.edit_caption("mine")
    (folder / "a.txt").write_text("theirs")
    model.look_at_files()
    assert "was changed by another program" in model.note
    asked.answers["choose"] = answer
    model.step(1)
    assert len(asked.asked("choose")) == 1
    assert (folder / "a.txt").read_text() == text
    assert name_of(model) == ("b.png" if is_settled else "a.png")


def test_a_file_that_another_program_wrote_is_shown(model: CaptionModel, folder: Path) -> None:
    (folder / "a.txt").write_text("a longer caption of another program")
    model.look_at_files()
    assert model.session.caption is not None
    assert model.session.caption.text == "a longer caption of another program"
    assert not model.note


def test_a_step_of_the_mask_is_undone_and_saved(model: CaptionModel, folder: Path) -> None:
    areas: list[Box | None] = []
    model.mask_changed.subscribe(areas.append)
    mask: Any = model.session.mask
    mask.set_all(0)
    assert model.session.is_edited
    model.undo_mask()
    model.redo_mask()
    assert len(areas) == 2
    assert all(areas)
    model.step(1)
    assert folder.joinpath("a-masklabel.png").is_file()
    assert folder / "a.png" in model.session.set.masked


def test_another_folder_is_opened_and_stays_in_the_choice(model: CaptionModel, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    model.edit_caption("red cat, sitting")
    model.open_folder(empty)
    assert (model.source_name, model.session.images, model.session.current) == (str(empty), (), None)
    assert (model.image, model.message) == (None, NO_IMAGES)
    model.open_concepts({"concept 0": Source(tmp_path / "images", "Cats")}, "concept 0")
    assert list(model.sources) == ["concept 0", "images", str(empty)]
    assert model.session.caption is not None
    assert model.session.caption.text == "red cat, sitting"


def test_a_folder_or_an_image_that_cannot_be_read_is_reported(
    model: CaptionModel, folder: Path, tmp_path: Path
) -> None:
    (folder / "b.png").write_bytes(b"no image")
    model.step(1)
    assert model.message.startswith("This image cannot be shown")
    model.open_folder(tmp_path / "missing")
    assert "cannot be read" in model.message


def test_what_cannot_be_saved_at_the_end_is_kept_as_a_draft(
    model: CaptionModel, asked: Recorder, folder: Path, tmp_path: Path
) -> None:
    model.edit_caption("mine")
    (folder / "a.txt").write_text("theirs")
    model.close(tmp_path / "drafts")
    assert (folder / "a.txt").read_text() == "theirs"
    assert (tmp_path / "drafts" / "a.txt").read_text() == "mine"
    assert not asked.calls
