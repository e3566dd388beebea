"""Captions and masks for a folder: existing files, damaged images, Stop, the child process and the verbs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from modules.annotators.protocol import CaptionSettings
from modules.annotators.registry import CAPTIONERS
from modules.data.companions import find_mask
from modules.settings.field import Section
from modules.system.errors import DarkroomError
from tests.builders.full_disk import FullDisk
from trainer.__main__ import main
from trainer.child.job import JobEnded, send_job
from trainer.commands import CommandDesk, Stop
from trainer.event_lines import job_event
from trainer.job import Job
from trainer.job_events import ImageAnnotated, JobEvent, JobFinished, JobProgress
from trainer.jobs.annotation import Originals, Summary, Work, carry_out, load_annotator
from trainer.jobs.caption import CaptionJob, caption_work
from trainer.jobs.mask import MaskJob, mask_work
from trainer.jobs.registry import JOBS
from trainer.jobs.spec import request_in, request_line


class Fixed:
    """A captioner and masker without a model."""

    def __init__(self) -> None:
        self.num_seen = 0

    def caption(self, image: Image.Image) -> str:
        self.num_seen += 1
        return f"seen {self.num_seen}, {image.width} px"

    def mask(self, image: Image.Image) -> Any:
        found = np.zeros((image.height, image.width), np.float32)
        found[:, : image.width // 2] = 1
        return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "images"
    (place / "deep").mkdir(parents=True)
    for name in ("a", "b", "c", "deep/d"):
        Image.new("RGB", (20, 10), (200, 30, 30)).save(place / f"{name}.png")
    (place / "a.txt").write_bytes(b"\xef\xbb\xbfmine\r\n")
    return place


def run(work: Work, originals: Originals, *, stops_after: int = 99) -> tuple[Summary, list[JobEvent]]:
    ticks, desk = iter(range(10_000)), CommandDesk()
    events: list[JobEvent] = []

    def emit(event: JobEvent) -> None:
        events.append(event)
        if isinstance(event, JobProgress) and event.done == stops_after:
            desk.put(Stop())

    return carry_out(work, Job(emit, desk), originals, clock=lambda: float(next(ticks))), events


def captioned(request: CaptionJob, tmp_path: Path, **options: Any) -> tuple[Summary, list[JobEvent]]:
    originals = Originals(request.folder, tmp_path / "kept")
    return run(caption_work(request, Fixed, originals), originals, **options)


def test_existing_captions_stay_unless_asked(folder: Path, tmp_path: Path) -> None:
    done, events = captioned(CaptionJob(folder=str(folder), model="blip_base", prefix="zog, ", suffix="!"), tmp_path)
    assert (done.outcome, done.num_written, done.num_left, done.kept_in) == ("finished", 2, 1, "")
    assert (folder / "a.txt").read_bytes() == b"\xef\xbb\xbfmine\r\n"
    assert (folder / "b.txt").read_text() == "zog, seen 1, 20 px!"
    assert not (folder / "deep" / "d.txt").exists()
    images = [e for e in events if isinstance(e, ImageAnnotated)]
    assert [(e.has_written, e.text) for e in images][1] == (True, "zog, seen 1, 20 px!")
    progress = [e for e in events if isinstance(e, JobProgress)]
    assert [(e.done, e.total) for e in progress] == [(1, 3), (2, 3), (3, 3)]
    assert [e.seconds_left for e in progress] == [None, None, 0]  # the first image waits for the model


def test_a_full_disk_ends_the_work_at_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The captions of thousands of images were made, and none could be written."""
    FullDisk(monkeypatch, folder, is_full=True)
    model = Fixed()
    originals = Originals(folder, tmp_path / "kept")
    work = caption_work(CaptionJob(folder=str(folder), model="blip_base"), lambda: model, originals)
    with pytest.raises(DarkroomError, match=r"The disk is full: .*b\.txt could not be written\. 0 captions written"):
        run(work, originals)
    assert model.num_seen == 1


@pytest.mark.parametrize(
    ("mode", "after"),
    [
        ("replace", b"seen 1, 20 px"),
        ("new_line", b"\xef\xbb\xbfmine\r\nseen 1, 20 px\r\n"),
        ("append", b"\xef\xbb\xbfmine, seen 1, 20 px\r\n"),
    ],
)
def test_a_changed_caption_is_kept_elsewhere(folder: Path, tmp_path: Path, mode: Any, after: bytes) -> None:
    done, _ = captioned(CaptionJob(folder=str(folder), model="blip_base", mode=mode, include_subfolders=True), tmp_path)
    assert done.num_written == 4
    assert (folder / "a.txt").read_bytes() == after
    kept = list(Path(done.kept_in).rglob("*.txt"))
    assert [k.read_bytes() for k in kept] == [b"\xef\xbb\xbfmine\r\n"]


def test_a_damaged_image_or_caption_does_not_end_the_work(folder: Path, tmp_path: Path) -> None:
    (folder / "b.png").write_bytes(b"no image")
    (folder / "c.txt").write_bytes(b"\xff\xfeodd")
    done, events = captioned(CaptionJob(folder=str(folder), model="blip_base", mode="append"), tmp_path)
    assert (done.num_written, done.num_failed) == (1, 2)
    problems = {Path(e.path).name: e.problem for e in events if isinstance(e, ImageAnnotated) and e.problem}
    assert problems["c.png"] == "its caption file is not valid text"
    assert "image" in problems["b.png"]
    assert (folder / "c.txt").read_bytes() == b"\xff\xfeodd"


def test_stop_ends_before_the_next_image(folder: Path, tmp_path: Path) -> None:
    request = CaptionJob(folder=str(folder), model="blip_base", mode="replace")
    done, events = captioned(request, tmp_path, stops_after=1)
    assert done.outcome == "stopped"
    assert sum(isinstance(e, ImageAnnotated) for e in events) == 1
    assert not (folder / "b.txt").exists()


def test_masks_are_combined_with_existing_ones(folder: Path, tmp_path: Path) -> None:
    Image.new("L", (10, 5), 255).save(folder / "a-masklabel.png")
    before = (folder / "a-masklabel.png").read_bytes()
    originals = Originals(folder, tmp_path / "kept")
    request = MaskJob(folder=str(folder), model="colour", mode="subtract", expand_px=0, smooth_px=0)
    done, _ = run(mask_work(request, Fixed, originals), originals)
    assert done.num_written == 3
    with Image.open(folder / "a-masklabel.png") as mask:
        assert (mask.mode, mask.size) == ("L", (20, 10))
        assert (mask.getpixel((2, 5)), mask.getpixel((17, 5))) == (0, 255)
    assert next(Path(done.kept_in).rglob("*.png")).read_bytes() == before
    again = MaskJob(folder=str(folder), model="colour", masks_folder=str(tmp_path / "masks"), include_subfolders=True)
    done, _ = run(mask_work(again, Fixed, originals), originals)
    assert done.num_written == 4
    assert (tmp_path / "masks" / "deep" / "d.png").is_file()
    assert run(mask_work(again, Fixed, originals), originals)[0].num_left == 4


def test_a_mask_with_the_suffix_of_its_image_stays(folder: Path, tmp_path: Path) -> None:
    masks = tmp_path / "masks"
    masks.mkdir()
    Image.new("RGB", (20, 10)).save(folder / "e.jpg")
    Image.new("L", (20, 10), 255).save(masks / "e.jpg")
    originals = Originals(folder, tmp_path / "kept")
    request = MaskJob(folder=str(folder), model="colour", masks_folder=str(masks), include_subfolders=False)
    done, _ = run(mask_work(request, Fixed, originals), originals)
    assert (done.num_written, done.num_left) == (3, 1)
    assert not (masks / "e.png").exists()
    subtract = request.model_copy(update={"mode": "subtract", "expand_px": 0, "smooth_px": 0})
    run(mask_work(subtract, Fixed, originals), originals)
    with Image.open(masks / "e.png") as mask:
        assert (mask.getpixel((2, 5)), mask.getpixel((17, 5))) == (0, 255)


def test_an_image_is_never_its_own_mask(folder: Path, tmp_path: Path) -> None:
    before = (folder / "a.png").read_bytes()
    (tmp_path / "link").symlink_to(folder)
    request = MaskJob(folder=str(folder), model="colour", masks_folder=str(tmp_path / "link"), mode="replace")
    originals = Originals(folder, tmp_path / "kept")
    done, _ = run(mask_work(request, Fixed, originals), originals)
    assert done.num_written == 3
    assert (folder / "a.png").read_bytes() == before
    assert find_mask(folder / "a.png", folder=folder, masks_folder=folder) is not None
    assert (folder / "a-masklabel.png").is_file()


def test_a_folder_without_images_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DarkroomError, match="no image files"):
        captioned(CaptionJob(folder=str(tmp_path), model="blip_base"), tmp_path)
    with pytest.raises(DarkroomError, match="There is no folder"):
        captioned(CaptionJob(folder=str(tmp_path / "missing"), model="blip_base"), tmp_path)


def test_nothing_is_downloaded_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.jobs.annotation.find_place", lambda *_, **__: None)
    with pytest.raises(DarkroomError) as error:
        load_annotator(
            CAPTIONERS["blip_base"], CaptionSettings(), device="cpu", may_download=False,
            job=Job(lambda _event: None),
        )  # fmt: skip
    assert "Salesforce/blip-image-captioning-base" in error.value.message
    assert "990" in error.value.message or "1.0 GB" in error.value.message
    assert "--download" in error.value.advice


def test_the_outcome_is_a_message() -> None:
    message = Summary("finished", "caption", 1, 2, 1, "kept").message
    assert message == (
        "1 caption written, 2 images left as they are, 1 image could not be done. The files before are kept in kept."
    )
    assert Summary("stopped", "mask", 2, 0, 0).message == "Stopped. 2 masks written."


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        (
            "caption",
            CaptionJob(
                folder="/images", model="blip_large", mode="new_line", include_subfolders=True, extension=".caption",
                prefix="-a, ", suffix=" --b", device="cpu", threshold=0.2, character_threshold=0.4,
                exclude_tags="c d, e", keep_underscores=True, initial="a photo of", detail="long", download=True,
            ),
        ),
        (
            "mask",
            MaskJob(
                folder="/images", model="clipseg", mode="blend", include_subfolders=True, masks_folder="/masks",
                expand_px=-3, smooth_px=2, share=0.5, invert=True, device="cpu", prompts="a face, -x",
                colour="#ffffff", tolerance=7, threshold=0.6,
            ),
        ),
    ],
)  # fmt: skip
def test_a_request_is_a_line_and_back(name: str, settings: Section) -> None:
    assert request_in(request_line(JOBS[name], settings), JOBS) == (JOBS[name], settings)


def test_a_child_does_the_work_with_the_settings_of_the_window(folder: Path) -> None:
    settings = MaskJob(folder=str(folder), model="colour", colour="#c81e1e", expand_px=10)
    child = send_job(request_line(JOBS["mask"], settings))
    child.thread.join(60)
    *_, finished, ended = child.waiting()
    assert finished == JobFinished("3 masks written.")
    assert ended == JobEnded(0, "")
    with Image.open(folder / "a-masklabel.png") as mask:
        assert mask.getextrema() == (0, 0)


def test_the_verbs_report_what_they_did(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.cli.console._read_commands", lambda *_: None)
    assert main(["mask", str(folder), "--model", "colour", "--colour", "white", "--include-subfolders"]) == 0
    assert "4 masks written." in capsys.readouterr().err
    assert main(["mask", str(folder), "--model", "colour", "--colour", "whitish", "--mode", "replace"]) == 2
    assert "not a colour" in capsys.readouterr().err
    (folder / "b.png").write_bytes(b"no image")
    assert main(["mask", str(folder), "--model", "colour", "--mode", "add", "--json-lines"]) == 1
    lines = [job_event(line) for line in capsys.readouterr().out.splitlines()]
    assert isinstance(lines[-1], JobFinished)
    assert "1 image could not be done" in lines[-1].message
