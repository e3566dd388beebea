"""Safetensors files and cache entries: readable by the library, the same each time, whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from modules.data.buckets import Size, resize_crop_for
from modules.data.cache.build import EncodingJob, ImageFile, build_captions, build_images, missing_images, to_tensor
from modules.data.cache.memory import RememberingStore
from modules.data.cache.store import BrokenEntryError, CacheStore, weights_fingerprint
from modules.data.captions.seen import ReadCaption, SeenCaption
from modules.data.transforms.recipe import Recipe, plain_recipe
from modules.formats.safetensors_io import payload_sha256, read_safetensors, write_safetensors
from modules.system.errors import DarkroomError
from tests.builders.images import draw_folder

RECIPE = plain_recipe(resize_crop_for(8, 8, (Size(8, 8),)))
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool]


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=20).filter(
            lambda n: n != "__metadata__"
        ),
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=3)),
        max_size=6,
    ),
    st.dictionaries(st.text(max_size=8), st.text(max_size=20), max_size=4),
)
def test_what_is_written_the_library_reads(
    tmp_path_factory: pytest.TempPathFactory, shapes: dict[str, tuple[torch.dtype, list[int]]], metadata: dict[str, str]
) -> None:
    tensors = {n: torch.ones(shape).to(dtype) for n, (dtype, shape) in shapes.items()}
    path = tmp_path_factory.mktemp("st") / "file.safetensors"
    write_safetensors(path, tensors, metadata)
    read, read_metadata = read_safetensors(path)
    assert read_metadata == metadata
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)


def test_equal_content_gives_an_equal_file(tmp_path: Path) -> None:
    tensors = {"b": torch.randn(3, 5), "a": torch.randn(7).half(), "c": torch.tensor(2.0)}
    metadata = {f"key {i}": str(i) for i in range(20)}
    write_safetensors(tmp_path / "1", tensors, metadata)
    write_safetensors(tmp_path / "2", dict(reversed(tensors.items())), dict(reversed(metadata.items())))
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
    content = (tmp_path / "1").read_bytes()
    header = int.from_bytes(content[:8], "little")
    import hashlib

    assert payload_sha256(tensors) == hashlib.sha256(content[8 + header :]).hexdigest()


def test_one_element_of_a_strided_tensor_is_written(tmp_path: Path) -> None:
    """Prodigy keeps every 11th weight: one of a bias of four, with a stride of 11."""
    weights = {"w": torch.arange(4.0)[::11].clone(), "b": torch.arange(20.0)[::11]}
    write_safetensors(tmp_path / "f", weights, {})
    read = load_file(tmp_path / "f")
    assert (read["w"].tolist(), read["b"].tolist()) == ([0.0], [0.0, 11.0])


def test_floats_are_cast_and_others_are_not(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "f", {"w": torch.randn(3), "n": torch.arange(3)}, {}, dtype=torch.float16)
    read = load_file(tmp_path / "f")
    assert (read["w"].dtype, read["n"].dtype) == (torch.float16, torch.int64)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e6])
def test_a_value_not_finite_in_the_target_dtype_is_not_written(tmp_path: Path, value: float) -> None:
    path = tmp_path / "file.safetensors"
    write_safetensors(path, {"w": torch.ones(3)}, {})
    with pytest.raises(DarkroomError, match="NaN or infinite"):
        write_safetensors(path, {"w": torch.tensor([1.0, value])}, {}, dtype=torch.float16)
    assert load_file(path)["w"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("content", [b"", b"<!DOCTYPE html><html>", b"\x10\x00\x00\x00\x00\x00\x00\x00{}"])
def test_an_invalid_safetensors_file_is_reported(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(DarkroomError, match="not a complete safetensors file"):
        read_safetensors(tmp_path / "file")


def test_an_entry_is_read_as_it_was_written(tmp_path: Path) -> None:
    store = CacheStore(tmp_path)
    tensors = {"latents": torch.randn(4, 8, 8), "half": torch.randn(3).bfloat16()}
    assert not store.has("ab12")
    store.write("ab12", tensors)
    assert store.has("ab12")
    assert store.path("ab12").parent.name == "ab"
    read = store.read("ab12")
    assert all(torch.equal(read[n], tensors[n]) for n in tensors)
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["ab12.safetensors"]


def test_entries_read_first_are_remembered_up_to_a_size(tmp_path: Path) -> None:
    inner = CacheStore(tmp_path)
    store = RememberingStore(inner, most_bytes=40)
    for key in ("aa1", "aa2", "aa3"):
        store.write(key, {"latents": torch.full((5,), float(key[-1]))})
        assert store.read(key)["latents"].tolist() == [float(key[-1])] * 5
    for key in ("aa1", "aa2", "aa3"):
        inner.remove(key)
    assert [store.read(key)["latents"][0].item() for key in ("aa1", "aa2")] == [1.0, 2.0]
    with pytest.raises(BrokenEntryError):  # there was no room left for it
        store.read("aa3")
    store.write("aa1", {"latents": torch.zeros(5)})
    assert store.read("aa1")["latents"].tolist() == [0.0] * 5
    store.remove("aa1")
    with pytest.raises(BrokenEntryError):
        store.read("aa1")


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "remove", "other"])
def test_a_damaged_entry_is_never_read(tmp_path: Path, damage: str) -> None:
    store = CacheStore(tmp_path)
    store.write("ab12", {"latents": torch.randn(4, 8, 8)})
    path = store.path("ab12")
    content = path.read_bytes()
    match damage:
        case "flip":
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        case "truncate":
            path.write_bytes(content[: len(content) // 2])
        case "empty":
            path.write_bytes(b"")
        case "remove":
            path.unlink()
        case "other":
            write_safetensors(path, {"latents": torch.randn(4, 8, 8)}, {})
    with pytest.raises(BrokenEntryError):
        store.read("ab12")


def test_a_write_that_breaks_off_leaves_no_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CacheStore(tmp_path)

    def break_off(_self: Path, _target: Path) -> None:
        raise OSError("planted")

    monkeypatch.setattr(Path, "replace", break_off)
    with pytest.raises(OSError, match="planted"):
        store.write("ab12", {"latents": torch.ones(1)})
    assert not store.has("ab12")
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_the_fingerprint_is_of_weights_names_and_dtypes() -> None:
    def module() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))

    plain = weights_fingerprint(module())
    assert weights_fingerprint(module()) == plain
    changed = module()
    with torch.no_grad():
        next(changed.parameters())[0, 0] += 1e-7
    assert weights_fingerprint(changed) != plain
    assert weights_fingerprint(module().half()) != plain
    assert weights_fingerprint(torch.nn.Sequential(*module(), torch.nn.Identity())) == plain


def jobs_in(folder: Path) -> list[EncodingJob]:
    sizes = (Size(64, 64),)
    return [
        EncodingJob(f"{i:02d}aa", ImageFile(p, plain_recipe(resize_crop_for(64, 64, sizes))))
        for i, p in enumerate(sorted(folder.glob("*.png")))
    ]


def test_a_build_can_stop_anywhere_and_continue(tmp_path: Path) -> None:
    jobs = jobs_in(draw_folder(tmp_path / "images", sizes=[(64, 64)] * 7))
    store, encoded = CacheStore(tmp_path / "cache"), []

    def encode(image_13PP: torch.Tensor) -> torch.Tensor:
        encoded.append(image_13PP)
        return image_13PP[:, :, ::8, ::8]

    build = build_images(missing_images(jobs, store), store, encode, threads=2)
    for _ in range(3):
        next(build)
    build.close()
    assert len(encoded) == 4, "one is encoded while the one before it is written"
    assert len(missing_images(jobs, store)) == 3
    built = list(build_images(missing_images(jobs, store), store, encode, threads=2))
    assert [b.key for b in built] == [j.key for j in jobs[4:]]
    assert len(encoded) == 7
    assert not missing_images(jobs, store)


def test_equal_keys_are_built_once_and_damaged_images_are_reported(tmp_path: Path) -> None:
    folder = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 3)
    (folder / "001.png").write_bytes(b"no image")
    jobs = jobs_in(folder)
    doubled = [*jobs, EncodingJob(jobs[0].key, jobs[2].image)]
    store = CacheStore(tmp_path / "cache")
    assert len(missing_images(doubled, store)) == 3
    built = list(build_images(missing_images(doubled, store), store, lambda p: p, threads=1))
    assert [bool(b.problem) for b in built] == [False, True, False]
    assert "001.png" in built[1].problem
    assert not store.has(jobs[1].key)


def test_latents_that_are_no_numbers_are_reported_and_not_kept(tmp_path: Path) -> None:
    [job] = jobs_in(draw_folder(tmp_path / "images", sizes=[(64, 64)]))
    store = CacheStore(tmp_path / "cache")
    [built] = build_images([job], store, lambda p: p * float("nan"), threads=1)
    assert "NaN or infinite" in built.problem
    assert not store.has(job.key)


def test_captions_are_built_once_each(tmp_path: Path) -> None:
    store, asked = CacheStore(tmp_path), []

    def encode(captions: Sequence[str]) -> list[dict[str, torch.Tensor]]:
        asked.append("".join(captions))
        return [{"states": torch.ones(1)} for _ in captions]

    captions = {"k1": "a", "k2": "b"}
    assert len(list(build_captions(captions, store, encode))) == 2
    assert len(list(build_captions(captions | {"k3": "c"}, store, encode))) == 1
    assert asked == ["a", "b", "c"]


def test_a_stop_among_captions_keeps_the_batches_before_it(tmp_path: Path) -> None:
    captions, asked = {f"k{n}": str(n) for n in range(7)}, list[Sequence[str]]()

    def encode(some: Sequence[str]) -> list[dict[str, torch.Tensor]]:
        asked.append(some)
        return [{"states": torch.tensor([float(c)])} for c in some]

    store = CacheStore(tmp_path)
    build = build_captions(captions, store, encode, batch_size=3)
    for _ in range(4):
        next(build)
    build.close()
    assert [store.has(key) for key in captions] == [True] * 6 + [False]
    assert len(list(build_captions(captions, store, encode, batch_size=3))) == 1
    assert [list(some) for some in asked] == [["0", "1", "2"], ["3", "4", "5"], ["6"]]
    assert [store.read(key)["states"].item() for key in captions] == list(range(7))


def test_the_images_of_later_captions_are_loaded_while_one_is_encoded(tmp_path: Path) -> None:
    """They were decoded one after the other, between the passes of the text encoder."""
    are_loaded = [Event() for _ in range(5)]

    @dataclass(frozen=True)
    class Image:
        number: int
        path: Path = Path("any.png")
        recipe: Recipe = RECIPE

        def load_tensor(self) -> torch.Tensor:
            are_loaded[self.number].set()
            return torch.tensor([float(self.number)])

    def encode(some: Sequence[ReadCaption]) -> list[dict[str, torch.Tensor]]:
        [caption] = some
        assert isinstance(caption, SeenCaption)
        state = caption.images[0].load_tensor()
        assert are_loaded[min(4, int(state) + 2)].wait(timeout=60)
        return [{"states": state}]

    captions = {f"k{n}": SeenCaption("a", (f"i{n}",), (Image(n),)) for n in range(5)}
    store = CacheStore(tmp_path)
    assert len(list(build_captions(captions, store, encode, threads=2))) == 5
    assert [store.read(key)["states"].item() for key in captions] == list(range(5))


def test_pixels_become_minus_one_to_one() -> None:
    pixels = np.array([[[0, 127, 255]]], dtype=np.uint8)
    assert to_tensor(pixels).flatten().tolist() == pytest.approx([-1.0, -0.00392, 1.0], abs=1e-4)
