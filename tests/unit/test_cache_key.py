"""Cache keys change with each of their ingredients; digests are read once, and again when a file has changed."""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.data.buckets import ResizeCrop, Size
from modules.data.cache import key as module
from modules.data.cache.digests import DigestIndex
from modules.data.cache.key import (
    blank_image_key,
    caption_key,
    conditioning_image_key,
    drawn_mask_key,
    image_key,
    mask_key,
    masked_image_key,
)
from modules.data.source_image import SourceImage
from modules.data.transforms.geometry import Geometry
from modules.data.transforms.recipe import Colour, Recipe, plain_recipe

IMAGE: dict[str, Any] = {
    "digest": "d1",
    "width_px": 600,
    "height_px": 400,
    "recipe": plain_recipe(ResizeCrop(Size(512, 320), Size(512, 341), 0, 10)),
    "encoder": "vae 1",
}


# -- keys


@pytest.mark.parametrize(
    "change",
    [
        {"digest": "d2"},
        {"width_px": 601},
        {"height_px": 401},
        {"recipe": plain_recipe(ResizeCrop(Size(512, 328), Size(512, 341), 0, 10))},
        {"recipe": plain_recipe(ResizeCrop(Size(504, 320), Size(512, 341), 0, 10))},
        {"recipe": plain_recipe(ResizeCrop(Size(512, 320, 5), Size(512, 341), 0, 10))},
        {"recipe": plain_recipe(ResizeCrop(Size(512, 320), Size(513, 341), 0, 10))},
        {"recipe": plain_recipe(ResizeCrop(Size(512, 320), Size(512, 342), 0, 10))},
        {"recipe": plain_recipe(ResizeCrop(Size(512, 320), Size(512, 341), 1, 10))},
        {"recipe": plain_recipe(ResizeCrop(Size(512, 320), Size(512, 341), 0, 11))},
        {"encoder": "vae 2"},
        {"recipe": plain_recipe(ResizeCrop(Size(512, 320), Size(512, 341), 0, 10), (255, 255, 255))},
    ],
)
def test_each_ingredient_of_an_image_changes_its_key(change: dict[str, Any]) -> None:
    assert image_key(**{**IMAGE, **change}) != image_key(**IMAGE)


def test_keys_are_those_of_earlier_versions() -> None:
    """Otherwise all entries of everybody would be encoded again."""
    assert image_key(**IMAGE) == "e9756a61d9b923dbd78251394c061b1c530a7cbc"
    assert caption_key(caption='a "cat" é\n', encoder="clip") == "44bcad3a99bd1b352b998b37673b16e54cc2d741"


def test_swapped_sides_are_another_image() -> None:
    swapped = {**IMAGE, "width_px": IMAGE["height_px"], "height_px": IMAGE["width_px"]}
    assert image_key(**swapped) != image_key(**IMAGE)


@pytest.mark.parametrize("name", ["RESAMPLER", "CACHE_FORMAT"])
def test_another_resampler_or_format_changes_all_keys(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    image, caption = image_key(**IMAGE), caption_key(caption="a cat", encoder="clip")
    monkeypatch.setattr(module, name, "another")
    assert image_key(**IMAGE) != image
    assert (caption_key(caption="a cat", encoder="clip") != caption) == (name == "CACHE_FORMAT")


def test_captions() -> None:
    base = caption_key(caption="a cat", encoder="clip")
    assert caption_key(caption="a cat ", encoder="clip") != base
    assert caption_key(caption="a cat", encoder="clip 2") != base
    assert caption_key(caption="", encoder="clip") != caption_key(caption="", encoder="")
    assert caption_key(caption="clip", encoder="a cat") != base
    assert caption_key(caption="\ud800", encoder="clip") != base


MASK: dict[str, Any] = {**{k: v for k, v in IMAGE.items() if k != "encoder"}, "is_alpha": False, "latent_factor": 8}
FITS = st.builds(
    lambda width, height, left: ResizeCrop(Size(width, height), Size(width + 8, height + 8), left, 3),
    st.integers(8, 20),
    st.integers(8, 20),
    st.integers(0, 8),
)
RECIPES = st.builds(
    lambda fit, degrees, is_flipped, brightness: Recipe(Geometry(fit, degrees, is_flipped), Colour(brightness)),
    FITS,
    st.sampled_from([0.0, 5.0]),
    st.booleans(),
    st.sampled_from([1.0, 1.2]),
)
INPUTS = st.fixed_dictionaries(
    {
        "digest": st.sampled_from(["d1", "d2"]),
        "width_px": st.integers(30, 32),
        "height_px": st.integers(30, 32),
        "recipe": RECIPES,
        "encoder": st.sampled_from(["vae 1", "vae 2"]),
    }
)


@given(one=INPUTS, other=INPUTS)
def test_conditioning_images_share_a_key_exactly_if_all_but_their_colours_is_equal(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    """Their colours are not augmented."""

    def facts(given: dict[str, Any]) -> dict[str, Any]:
        return {**given, "recipe": given["recipe"].geometry}

    assert (conditioning_image_key(**one) == conditioning_image_key(**other)) == (facts(one) == facts(other))
    assert conditioning_image_key(**one) != image_key(**one), "an image is not its own conditioning image"


@given(one=st.tuples(INPUTS, INPUTS), other=st.tuples(INPUTS, INPUTS))
def test_masked_images_share_a_key_exactly_if_image_and_mask_do(
    one: tuple[dict[str, Any], dict[str, Any]], other: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    def keys(given: tuple[dict[str, Any], dict[str, Any]]) -> tuple[str, str]:
        mask = {k: v for k, v in given[1].items() if k != "encoder"}
        return image_key(**given[0]), mask_key(**mask, is_alpha=False, latent_factor=8)

    are_equal = keys(one) == keys(other)
    ours, others = (masked_image_key(image=image, mask=mask) for image, mask in (keys(one), keys(other)))
    assert (ours == others) == are_equal


def test_random_masks_and_blank_images() -> None:
    small, large = Size(8, 16), Size(16, 8)
    masks = {drawn_mask_key(seed=seed, bucket=bucket) for seed in (1, 2) for bucket in (small, large)}
    blank = {blank_image_key(bucket=bucket, encoder=encoder) for bucket in (small, large) for encoder in ("a", "b")}
    assert len(masks | blank | {mask_key(**MASK)}) == 9


@pytest.mark.parametrize("name", ["MASKED_IMAGES", "DRAWN_MASKS"])
def test_another_way_to_mask_changes_its_keys_alone(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def keys() -> list[str]:
        size = Size(8, 8)
        blank, drawn = blank_image_key(bucket=size, encoder="vae"), drawn_mask_key(seed=1, bucket=size)
        return [masked_image_key(image="i", mask="m"), blank, drawn, image_key(**IMAGE), mask_key(**MASK)]

    before = keys()
    monkeypatch.setattr(module, name, "another")
    changed = [a != b for a, b in zip(before, keys(), strict=True)]
    assert changed == (
        [True, True, False, False, False] if name == "MASKED_IMAGES" else [False, False, True, False, False]
    )


@given(captions=st.sets(st.text(), min_size=2, max_size=20))
def test_different_captions_have_different_keys(captions: set[str]) -> None:
    assert len({caption_key(caption=c, encoder="x") for c in captions}) == len(captions)


def test_keys_are_the_same_in_every_process() -> None:
    """They name files that later runs look for."""
    assert image_key(**IMAGE) == "e9756a61d9b923dbd78251394c061b1c530a7cbc"
    assert caption_key(caption="a cat", encoder="clip") == "9cb89a0b122c4d1a30157477621d52c6cee5c26f"


# -- digests


def stat_of(path: Path) -> dict[str, int]:
    status = path.stat()
    return {"size_bytes": status.st_size, "mtime_ns": status.st_mtime_ns}


def rewrite(path: Path, content: bytes, *, mtime_ns: int) -> None:
    path.write_bytes(content)
    os.utime(path, ns=(mtime_ns, mtime_ns))


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "a.png"
    path.write_bytes(b"one")
    return path


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_the_digest_is_that_of_the_content(image: Path, cache_dir: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.png"
    other.write_bytes(b"one")
    index = DigestIndex(cache_dir)
    digest = index.digest(image, **stat_of(image))
    assert index.digest(other, **stat_of(other)) == digest
    other.write_bytes(b"two")
    assert index.digest(other, **stat_of(other)) != digest


def test_an_unchanged_file_is_not_read_again(image: Path, cache_dir: Path) -> None:
    facts = stat_of(image)
    index = DigestIndex(cache_dir)
    digest = index.digest(image, **facts)
    index.save()
    image.unlink()
    assert index.digest(image, **facts) == digest
    assert DigestIndex(cache_dir).digest(image, **facts) == digest


@pytest.mark.parametrize("content", [b"four", b"two"], ids=["another size", "another date"])
def test_another_size_or_date_reads_again(image: Path, cache_dir: Path, content: bytes) -> None:
    facts = stat_of(image)
    index = DigestIndex(cache_dir)
    first = index.digest(image, **facts)
    rewrite(image, content, mtime_ns=5)
    assert index.digest(image, **facts) == first, "the file is not looked at while its stat is the same"
    changed = stat_of(image)
    second = index.digest(image, **changed)
    assert second != first
    index.save()
    assert DigestIndex(cache_dir).digest(image, **changed) == second
    image.unlink()
    with pytest.raises(OSError, match=r"a\.png"):
        index.digest(image, **facts)


def test_a_file_that_changed_after_it_was_found_is_not_known_by_its_old_size_and_date(
    image: Path, cache_dir: Path
) -> None:
    """Its old content may come back, as from a backup, with its old date: it had the digest of the other one."""
    facts = stat_of(image)
    rewrite(image, b"two", mtime_ns=5)
    index = DigestIndex(cache_dir)
    of_new = index.digest(image, **facts)
    rewrite(image, b"one", mtime_ns=facts["mtime_ns"])
    assert stat_of(image) == facts
    assert index.digest(image, **facts) != of_new


def test_verify_reads_in_any_case(image: Path, cache_dir: Path) -> None:
    """A change that leaves size and date alone is found only so."""
    facts = stat_of(image)
    index = DigestIndex(cache_dir)
    first = index.digest(image, **facts)
    rewrite(image, b"two", mtime_ns=facts["mtime_ns"])
    second = index.digest(image, **facts, verify=True)
    assert second != first
    assert index.digest(image, **facts) == second


def test_files_are_read_ahead_and_a_stop_keeps_their_digests(cache_dir: Path, tmp_path: Path) -> None:
    images = []
    for number in range(50):
        path = tmp_path / f"{number}.png"
        path.write_bytes(bytes([number]))
        images.append(SourceImage(path.parent, path.name, 1, 1, **stat_of(path), captions=()))
    index = DigestIndex(cache_dir)
    expected = [index.digest(i.path, size_bytes=i.size_bytes, mtime_ns=i.mtime_ns) for i in images]
    stopped = DigestIndex(cache_dir).digests(images, threads=3)
    assert [next(stopped) for _ in range(49)] == expected[:49]
    stopped.close()
    assert DigestIndex(cache_dir).known_digests(images[:49]) == expected[:49]
    images[0].path.unlink()
    assert list(DigestIndex(cache_dir).digests(images, threads=3)) == expected
    with pytest.raises(FileNotFoundError):
        list(DigestIndex(cache_dir).digests(images, verify=True))


def test_what_is_not_saved_is_forgotten(image: Path, cache_dir: Path) -> None:
    DigestIndex(cache_dir).digest(image, **stat_of(image))
    facts = stat_of(image)
    image.unlink()
    with pytest.raises(OSError, match=r"a\.png"):
        DigestIndex(cache_dir).digest(image, **facts)


def test_two_indexes_on_one_folder_keep_the_digests_of_both(image: Path, cache_dir: Path, tmp_path: Path) -> None:
    other = tmp_path / "b.png"
    other.write_bytes(b"two")
    one, two = DigestIndex(cache_dir), DigestIndex(cache_dir)
    facts = {p: stat_of(p) for p in (image, other)}
    expected = {image: one.digest(image, **facts[image]), other: two.digest(other, **facts[other])}
    two.digest(image, **facts[image])
    one.save()
    two.save()
    one.save()
    for path in facts:
        path.unlink()
    third = DigestIndex(cache_dir)
    assert {p: third.digest(p, **facts[p]) for p in facts} == expected


def test_threads_may_share_an_index(cache_dir: Path, tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.png" for i in range(40)]
    for i, path in enumerate(paths):
        path.write_bytes(b"x" * i)
    index = DigestIndex(cache_dir)
    barrier = threading.Barrier(4)

    def work() -> None:
        barrier.wait()
        for path in paths:
            index.digest(path, **stat_of(path))
            index.save()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    facts = {p: stat_of(p) for p in paths}
    digests = [index.digest(p, **facts[p]) for p in paths]
    for path in paths:
        path.unlink()
    assert [DigestIndex(cache_dir).digest(p, **facts[p]) for p in paths] == digests
    assert len(set(digests)) == 40


@pytest.mark.parametrize("content", [b"not a database, but long enough" * 9, b"SQLite format 3\x00" + b"\xff" * 500])
def test_a_damaged_index_begins_anew(image: Path, cache_dir: Path, content: bytes) -> None:
    """It used to end every run until it was deleted by hand."""
    cache_dir.mkdir()
    (cache_dir / "digests.sqlite").write_bytes(content)
    facts = stat_of(image)
    index = DigestIndex(cache_dir)
    digest = index.digest(image, **facts)
    index.save()
    image.unlink()
    assert DigestIndex(cache_dir).digest(image, **facts) == digest


def locked(*args: object, **kwargs: object) -> sqlite3.Connection:
    raise sqlite3.OperationalError("database is locked")


def test_an_index_that_cannot_be_used_only_costs_time(
    image: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    index = DigestIndex(cache_dir)
    digest = index.digest(image, **stat_of(image))
    index.save()
    index.digest(image, **stat_of(image), verify=True)
    content = (cache_dir / "digests.sqlite").read_bytes()
    monkeypatch.setattr(sqlite3, "connect", locked)
    index.save()
    assert DigestIndex(cache_dir).digest(image, **stat_of(image)) == digest
    assert (cache_dir / "digests.sqlite").read_bytes() == content, "a locked index is in use"
    assert len(caplog.records) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere file names are text")
def test_a_file_name_that_is_not_valid_text(cache_dir: Path, tmp_path: Path) -> None:
    """It used to end the run when the index was written."""
    path = tmp_path / os.fsdecode(b"\xe9t\xe9.png")
    path.write_bytes(b"one")
    facts = stat_of(path)
    index = DigestIndex(cache_dir)
    digest = index.digest(path, **facts)
    index.save()
    path.unlink()
    assert DigestIndex(cache_dir).digest(path, **facts) == digest


def test_a_missing_file_is_an_error(cache_dir: Path, tmp_path: Path) -> None:
    reading: Callable[..., str] = DigestIndex(cache_dir).digest
    with pytest.raises(FileNotFoundError):
        reading(tmp_path / "gone.png", size_bytes=1, mtime_ns=1)
