"""Links in the folder of a concept: those out of it are not followed, and a sentence says so."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from modules.data.captions.sources import CaptionOrigin
from modules.data.companions import find_input_file, find_mask
from modules.data.images import BrokenImageError
from modules.data.links import BROKEN, LEADS_OUT, leads_out
from modules.data.pairs import scan_pairs
from modules.data.prompts import scan_prompts
from modules.data.scan import Scan, fault_of_caption, scan_folder
from modules.data.wildcards import expand
from tests.builders.images import draw_image
from trainer.jobs.annotation import Originals
from trainer.jobs.caption import CaptionJob, caption_work
from trainer.jobs.mask import MaskJob, mask_work
from ui.features.captions.image_set import Source, read_images

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
SECRET = "root:x:0:0:root:/root:/bin/bash"


@pytest.fixture
def concept(tmp_path: Path) -> Path:
    """A folder with an image, and beside it one of a stranger's with a text, an image and a folder."""
    outside, folder = tmp_path / "outside", tmp_path / "concept"
    for made in (outside, outside / "more", folder, folder / "captions"):
        made.mkdir()
    (outside / "passwd").write_text(SECRET)
    draw_image(8, 8, 0).save(outside / "private.png")
    draw_image(8, 8, 0).save(outside / "more" / "b.png")
    draw_image(8, 8, 0).save(folder / "a.png")
    (folder / "captions" / "a.txt").write_text("a cat")
    return folder


def scan(folder: Path, source: str = "text_file") -> Scan:
    origin = CaptionOrigin("metadata" if source == "metadata" else "text_file")
    return scan_folder(folder, include_subfolders=True, captions=origin)


def reasons(found: Scan) -> dict[str, str]:
    return {s.path.name: s.reason for s in found.skipped}


def test_a_caption_is_not_that_of_another_file(concept: Path) -> None:
    (concept / "a.txt").symlink_to("../outside/passwd")
    found = scan(concept)
    [image] = found.images
    assert (image.captions, image.caption_fault) == ((), "link")
    assert fault_of_caption(image) == f"a.txt is {LEADS_OUT}"
    assert reasons(found) == {"a.txt": LEADS_OUT}


def test_links_inside_the_concept_are_followed(concept: Path) -> None:
    (concept / "a.txt").symlink_to("captions/a.txt")
    (concept / "b.png").symlink_to("a.png")
    (concept / "b.txt").symlink_to(concept / "captions" / "a.txt")
    found = scan(concept)
    assert [image.captions for image in found.images] == [("a cat",), ("a cat",)]
    assert not found.skipped


def test_a_concept_may_itself_be_a_link(concept: Path, tmp_path: Path) -> None:
    (concept / "a.txt").symlink_to("captions/a.txt")
    (tmp_path / "link").symlink_to(concept)
    assert [image.captions for image in scan(tmp_path / "link").images] == [("a cat",)]
    single = scan_folder(tmp_path / "link" / "a.png", include_subfolders=False, captions=CaptionOrigin())
    assert [image.captions for image in single.images] == [("a cat",)]


def test_images_and_folders_elsewhere_are_skipped_with_the_reason(concept: Path) -> None:
    (concept / "b.png").symlink_to("../outside/private.png")
    (concept / "more").symlink_to("../outside/more")
    found = scan(concept)
    assert [image.path.name for image in found.images] == ["a.png"]
    assert reasons(found) == {"b.png": LEADS_OUT, "more": LEADS_OUT}


def test_a_data_set_in_the_cache_of_the_hub_is_read(concept: Path, tmp_path: Path) -> None:
    """Its files are links to a folder beside it."""
    snapshot, blobs = tmp_path / "hub" / "snapshots" / "4f3a" / "train", tmp_path / "hub" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (concept / "a.png").rename(blobs / "1")
    (blobs / "2").write_text("a cat")
    (snapshot / "a.png").symlink_to("../../../blobs/1")
    (snapshot / "a.txt").symlink_to("../../../blobs/2")
    assert [image.captions for image in scan(snapshot).images] == [("a cat",)]
    (blobs / "2").unlink()
    (blobs / "2").symlink_to(tmp_path / "outside" / "passwd")
    assert [image.captions for image in scan(snapshot).images] == [()]


@pytest.mark.parametrize("find", [find_mask, partial(find_input_file, suffix="-condlabel")])
def test_masks_are_not_those_of_another_file(concept: Path, find: Callable[..., object]) -> None:
    for name in ("a-masklabel.png", "a-condlabel.png"):
        (concept / name).symlink_to("../outside/private.png")
    with pytest.raises(BrokenImageError, match="leads out of the concept"):
        find(concept / "a.png", folder=concept)


def test_a_folder_of_masks_has_its_own_bounds(concept: Path, tmp_path: Path) -> None:
    masks = tmp_path / "masks"
    masks.mkdir()
    (masks / "a.png").symlink_to("../outside/private.png")
    with pytest.raises(BrokenImageError, match="leads out of the concept"):
        find_mask(concept / "a.png", folder=concept, masks_folder=masks)


def test_metadata_are_not_those_of_another_file(concept: Path, tmp_path: Path) -> None:
    (tmp_path / "outside" / "rows").write_text(f'{{"file_name": "a.png", "text": "{SECRET}"}}')
    (tmp_path / "outside" / "row").write_text(f'{{"text": "{SECRET}"}}')
    (concept / "metadata.jsonl").symlink_to("../outside/rows")
    (concept / "a.json").symlink_to("../outside/row")
    found = scan(concept, "metadata")
    assert [image.captions for image in found.images] == [()]
    assert reasons(found)["metadata.jsonl"] == LEADS_OUT


def test_prompts_are_not_those_of_another_file(concept: Path) -> None:
    (concept / "prompts.txt").symlink_to("../outside/passwd")
    found = scan_prompts(concept, include_subfolders=False)
    assert (found.images, reasons(found)) == ((), {"prompts.txt": LEADS_OUT})
    (concept / "colour.txt").symlink_to("../outside/passwd")
    assert expand("__colour__", seed=1, folder=concept).missing == ("colour",)


def test_pairs_are_not_those_of_another_folder(concept: Path, tmp_path: Path) -> None:
    for side in ("chosen", "rejected"):
        (concept / side).mkdir()
        for number in range(3):
            draw_image(8, 8, len(side)).save(concept / side / f"{number}.png")
    (concept / "chosen" / "1.png").unlink()
    (concept / "chosen" / "1.png").symlink_to("../../outside/private.png")
    (concept / "rejected" / "2.png").unlink()
    (concept / "rejected" / "2.png").symlink_to("../a.png")
    found = scan_pairs(concept, captions=CaptionOrigin())
    assert [image.path.name for image in found.images] == ["0.png", "2.png"]
    rows = '{"chosen": "link.png", "rejected": "a.png", "caption": "x"}'
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "metadata.jsonl").write_text(rows)
    (tmp_path / "rows" / "link.png").symlink_to("../outside/private.png")
    draw_image(8, 8, 3).save(tmp_path / "rows" / "a.png")
    found = scan_pairs(tmp_path / "rows", captions=CaptionOrigin())
    assert found.images == ()
    assert reasons(found)["link.png"] == f"{LEADS_OUT}; its pair is left out"


def test_broken_links_are_reported(concept: Path) -> None:
    """Images on a disk that is not mounted must not vanish without a word."""
    for name, target in (("gone.png", "nowhere.png"), ("loop.jpg", "loop.jpg"), ("more", "no folder")):
        (concept / name).symlink_to(target)
    (concept / "out.png").symlink_to("../outside/nowhere.png")
    (concept / ".#a.txt").symlink_to("somebody@somewhere:1234")  # the lock of an editor
    found = reasons(scan(concept))
    assert {name: found.get(name) for name in ("gone.png", "loop.jpg", "more")} == dict.fromkeys(
        ("gone.png", "loop.jpg", "more"), BROKEN
    )
    assert found["out.png"] == LEADS_OUT
    assert ".#a.txt" not in found


def test_nothing_is_written_through_a_link_out_of_the_folder(concept: Path) -> None:
    draw_image(8, 8, 0).save(concept / "b.png")
    (concept / "a.txt").symlink_to("../outside/passwd")
    (concept / "b-masklabel.png").symlink_to("../outside/private.png")
    assert read_images(Source(concept, "cats")).images == ()
    captions = caption_work(
        CaptionJob(folder=str(concept), model="blip_base"),
        lambda: pytest.fail("no captioner is needed"),
        Originals(concept),
    )
    masks = mask_work(
        MaskJob(folder=str(concept), model="colour"), lambda: pytest.fail("no masker is needed"), Originals(concept)
    )
    assert [work.why_skipped(concept / "a.png") for work in (captions, masks)] == [LEADS_OUT, None]
    assert [work.why_skipped(concept / "b.png") for work in (captions, masks)] == [None, LEADS_OUT]


def test_what_is_no_link_is_not_one_out(concept: Path) -> None:
    (concept / "loop.txt").symlink_to("loop.txt")
    (concept / "dangling.txt").symlink_to("../outside/gone")
    assert not leads_out(concept / "a.png", concept)
    assert not leads_out(concept / "gone.png", concept)
    assert not leads_out(Path("a\0b"), concept)
    assert leads_out(concept / "dangling.txt", concept)
