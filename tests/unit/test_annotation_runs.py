"""Captions and masks for a folder: existing files, damaged images, Stop, the child process and the verbs."""

from __future__ import annotations

import argparse
import queue
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from modules.annotators.protocol import CaptionSettings, MaskSettings
from modules.annotators.registry import CAPTIONERS
from modules.system.errors import DarkroomError
from trainer.__main__ import main
from trainer.annotation.arguments import (
    add_caption_arguments,
    add_mask_arguments,
    caption_arguments,
    caption_request,
    mask_arguments,
    mask_request,
)
from trainer.annotation.captions import CaptionRequest, caption_work
from trainer.annotation.child import AnnotationProcess, command_of
from trainer.annotation.events import AnnotationEvent, Failed, Finished, ImageDone, Loading, from_line, to_line
from trainer.annotation.masks import MaskRequest, mask_work
from trainer.annotation.models import load_annotator
from trainer.annotation.originals import Originals
from trainer.annotation.work import Work, carry_out


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


def run(
    work: Work, originals: Originals, should_stop: Callable[[], bool] = lambda: False
) -> tuple[Finished, list[AnnotationEvent]]:
    ticks = iter(range(10_000))
    events: list[AnnotationEvent] = []
    done = carry_out(work, events.append, originals, should_stop=should_stop, clock=lambda: float(next(ticks)))
    assert events[-1] == done
    return done, events


def captioned(request: CaptionRequest, tmp_path: Path, **options: Any) -> tuple[Finished, list[AnnotationEvent]]:
    originals = Originals(request.folder, tmp_path / "kept")
    return run(caption_work(request, Fixed, originals), originals, **options)


def test_existing_captions_stay_unless_asked(folder: Path, tmp_path: Path) -> None:
    done, events = captioned(CaptionRequest(folder, "x", prefix="zog, ", suffix="!"), tmp_path)
    assert (done.outcome, done.num_written, done.num_left, done.kept_in) == ("finished", 2, 1, "")
    assert (folder / "a.txt").read_bytes() == b"\xef\xbb\xbfmine\r\n"
    assert (folder / "b.txt").read_text() == "zog, seen 1, 20 px!"
    assert not (folder / "deep" / "d.txt").exists()
    images = [e for e in events if isinstance(e, ImageDone)]
    assert [(e.done, e.has_written, e.text) for e in images][1] == (2, True, "zog, seen 1, 20 px!")
    assert [e.seconds_left for e in images] == [None, None, 0]  # the first image waits for the model


@pytest.mark.parametrize(
    ("mode", "after"),
    [
        ("replace", b"seen 1, 20 px"),
        ("new_line", b"\xef\xbb\xbfmine\r\nseen 1, 20 px\r\n"),
        ("append", b"\xef\xbb\xbfmine, seen 1, 20 px\r\n"),
    ],
)
def test_a_changed_caption_is_kept_elsewhere(folder: Path, tmp_path: Path, mode: Any, after: bytes) -> None:
    done, _ = captioned(CaptionRequest(folder, "x", mode=mode, include_subfolders=True), tmp_path)
    assert done.num_written == 4
    assert (folder / "a.txt").read_bytes() == after
    kept = list(Path(done.kept_in).rglob("*.txt"))
    assert [k.read_bytes() for k in kept] == [b"\xef\xbb\xbfmine\r\n"]


def test_a_damaged_image_or_caption_does_not_end_the_work(folder: Path, tmp_path: Path) -> None:
    (folder / "b.png").write_bytes(b"no image")
    (folder / "c.txt").write_bytes(b"\xff\xfeodd")
    done, events = captioned(CaptionRequest(folder, "x", mode="append"), tmp_path)
    assert (done.num_written, done.num_failed) == (1, 2)
    problems = {Path(e.path).name: e.problem for e in events if isinstance(e, ImageDone) and e.problem}
    assert problems["c.png"] == "its caption file is not valid text"
    assert "image" in problems["b.png"]
    assert (folder / "c.txt").read_bytes() == b"\xff\xfeodd"


def test_stop_ends_before_the_next_image(folder: Path, tmp_path: Path) -> None:
    answers = iter([False, True])
    request = CaptionRequest(folder, "x", mode="replace")
    done, events = captioned(request, tmp_path, should_stop=lambda: next(answers))
    assert done.outcome == "stopped"
    assert sum(isinstance(e, ImageDone) for e in events) == 1
    assert not (folder / "b.txt").exists()


def test_masks_are_combined_with_existing_ones(folder: Path, tmp_path: Path) -> None:
    Image.new("L", (10, 5), 255).save(folder / "a-masklabel.png")
    before = (folder / "a-masklabel.png").read_bytes()
    originals = Originals(folder, tmp_path / "kept")
    request = MaskRequest(folder, "x", mode="subtract", expand_px=0, smooth_px=0)
    done, _ = run(mask_work(request, Fixed, originals), originals)
    assert done.num_written == 3
    with Image.open(folder / "a-masklabel.png") as mask:
        assert (mask.mode, mask.size) == ("L", (20, 10))
        assert (mask.getpixel((2, 5)), mask.getpixel((17, 5))) == (0, 255)
    assert next(Path(done.kept_in).rglob("*.png")).read_bytes() == before
    again = MaskRequest(folder, "x", masks_folder=tmp_path / "masks", include_subfolders=True)
    done, _ = run(mask_work(again, Fixed, originals), originals)
    assert done.num_written == 4
    assert (tmp_path / "masks" / "deep" / "d.png").is_file()
    assert run(mask_work(again, Fixed, originals), originals)[0].num_left == 4


def test_a_folder_without_images_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DarkroomError, match="no image files"):
        captioned(CaptionRequest(tmp_path, "x"), tmp_path)
    with pytest.raises(DarkroomError, match="cannot be read"):
        captioned(CaptionRequest(tmp_path / "missing", "x"), tmp_path)


def test_nothing_is_downloaded_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modules.annotators.files.found_place", lambda *_, **__: None)
    monkeypatch.setattr("trainer.annotation.models.found_place", lambda *_, **__: None)
    with pytest.raises(DarkroomError) as error:
        load_annotator(
            CAPTIONERS["blip_base"], CaptionSettings(), device="cpu", may_download=False,
            emit=lambda _event: None, should_stop=lambda: False,
        )  # fmt: skip
    assert "Salesforce/blip-image-captioning-base" in error.value.message
    assert "990" in error.value.message or "1.0 GB" in error.value.message
    assert "--download" in error.value.advice


@pytest.mark.parametrize(
    "event",
    [
        Loading("BLIP", 1.5, 990),
        ImageDone(1, 2, "x.png", True, "a, b", "", 3.5),
        Finished("stopped", 1, 2, 3, "kept"),
        Failed("no", "try"),
    ],
)
def test_an_event_is_a_line(event: AnnotationEvent) -> None:
    assert from_line(to_line(event)) == event
    assert from_line("{}") is None
    assert from_line("Warning: something") is None


def test_a_request_is_a_command_line_and_back(tmp_path: Path) -> None:
    captions = CaptionRequest(
        tmp_path, "blip_large", "new_line", True, ".caption", "-a, ", " --b", device="cpu",
        settings=CaptionSettings(0.2, 0.4, ("c d", "e"), True, "a photo of", "long"),
    )  # fmt: skip
    parser = argparse.ArgumentParser()
    add_caption_arguments(parser)
    arguments = caption_arguments(captions, may_download=True)
    assert arguments[0] == "caption"
    options = parser.parse_args(arguments[1:])
    assert caption_request(options) == captions
    assert options.download
    masks = MaskRequest(
        tmp_path, "clipseg", "blend", True, tmp_path / "m", -3, 2, 0.5, True, device="cpu",
        settings=MaskSettings(("a face", "-x"), "#ffffff", 7, 0.6),
    )  # fmt: skip
    parser = argparse.ArgumentParser()
    add_mask_arguments(parser)
    options = parser.parse_args(mask_arguments(masks, may_download=False)[1:])
    assert mask_request(options) == masks
    assert not options.download


def events_of(child: AnnotationProcess) -> list[AnnotationEvent]:
    found = []
    while not found or not isinstance(found[-1], Finished | Failed):
        found.append(child.events.get(timeout=60))
    return found


def test_a_child_does_the_work_with_the_options_of_the_window(folder: Path) -> None:
    request = MaskRequest(folder, "colour", settings=MaskSettings(colour="#c81e1e"))
    events = events_of(AnnotationProcess(command_of(mask_arguments(request, may_download=False))))
    assert events[-1] == Finished("finished", 3, 0, 0)
    with Image.open(folder / "a-masklabel.png") as mask:
        assert mask.getextrema() == (0, 0)


def test_a_child_stops_when_asked_and_reports_its_end() -> None:
    script = (
        "import sys\n"
        "from trainer.annotation.child import stop_signal\n"
        "from trainer.annotation.events import Finished, ImageDone, to_line\n"
        "print(to_line(ImageDone(1, 9, 'a.png', True)), flush=True)\n"
        "asked = stop_signal(sys.stdin)\n"
        "while not asked(): pass\n"
        "print(to_line(Finished('stopped', 1, 0, 0)), flush=True)\n"
    )
    child = AnnotationProcess([sys.executable, "-c", script])
    assert isinstance(child.events.get(timeout=60), ImageDone)
    child.stop()
    assert child.events.get(timeout=60) == Finished("stopped", 1, 0, 0)
    orphan = AnnotationProcess([sys.executable, "-c", script])
    assert isinstance(orphan.events.get(timeout=60), ImageDone)
    assert orphan._process.stdin is not None
    orphan._process.stdin.close()  # as when the window is killed
    assert orphan.events.get(timeout=60) == Finished("stopped", 1, 0, 0)
    broken = events_of(AnnotationProcess([sys.executable, "-c", "raise SystemExit('no luck')"]))
    assert isinstance(broken[-1], Failed)
    assert "no luck" in broken[-1].message
    with pytest.raises(queue.Empty):
        child.events.get_nowait()


def test_the_verbs_report_what_they_did(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.cli.annotate.stop_signal", lambda _stream: lambda: False)
    assert main(["mask", str(folder), "--model", "colour", "--colour", "white", "--include-subfolders"]) == 0
    assert "4 masks written." in capsys.readouterr().err
    assert main(["mask", str(folder), "--model", "colour", "--colour", "whitish", "--mode", "replace"]) == 2
    assert "not a colour" in capsys.readouterr().err
    (folder / "b.png").write_bytes(b"no image")
    assert main(["mask", str(folder), "--model", "colour", "--mode", "add", "--events"]) == 1
    lines = [from_line(line) for line in capsys.readouterr().out.splitlines()]
    assert isinstance(lines[-1], Finished)
    assert lines[-1].num_failed == 1
