"""Captioners and maskers: what they make of an image, and what becomes of files that exist. Nothing is downloaded."""

from __future__ import annotations

import hashlib
import io
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file

from modules.annotators import download, onnx_models
from modules.annotators.onnx_models import Foreground, Tag, WdTagger, read_tags, square_bgr
from modules.annotators.protocol import CaptionSettings, MaskSettings
from modules.annotators.registry import CAPTIONERS, MASKERS, ModelFiles
from modules.annotators.results import CAPTION_MODES, combine_masks, draw_mask, merge_caption
from modules.data.captions.caption_file import parse_caption_file
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from modules.system.secrets import HubAccess
from tests.builders.annotators import FakeSession, write_blip_folder, write_clipseg_folder, write_florence_folder
from tests.builders.hostile_files import planted, zipped

IMAGE = Image.effect_noise((50, 40), 90).convert("RGB")
TAGS = (Tag("general", "9"), Tag("long_hair", "0"), Tag("0_0", "0"), Tag("rin_(zog)", "4"), Tag("sky", "0"))


def tagger(settings: CaptionSettings, *probabilities: float) -> WdTagger:
    answer = np.array([probabilities], np.float32)
    return WdTagger(FakeSession(lambda _image: answer, ("batch", 64, 64, 3)), TAGS, settings)


def test_tags_are_written_by_probability_with_characters_first() -> None:
    probabilities = (0.99, 0.5, 0.4, 0.9, 0.8)
    assert tagger(CaptionSettings(), *probabilities).caption(IMAGE) == "rin (zog), sky, long hair, 0_0"
    strict = CaptionSettings(threshold=0.6, character_threshold=0.95)
    assert tagger(strict, *probabilities).caption(IMAGE) == "sky"
    plain = CaptionSettings(keep_underscores=True, exclude_tags="Sky, rin (zog)")
    assert tagger(plain, *probabilities).caption(IMAGE) == "long_hair, 0_0"


def test_a_tagger_sees_the_whole_image_on_white_in_bgr() -> None:
    red = Image.new("RGB", (40, 20), (255, 0, 10))
    square = square_bgr(red, 64)
    assert square.shape == (64, 64, 3)
    assert square[32, 32].tolist() == [10, 0, 255]
    assert square[2, 32].tolist() == [255, 255, 255]


def test_a_table_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DarkroomError, match="3 tags, its table 5"):
        tagger(CaptionSettings(), 0.1, 0.2, 0.3).caption(IMAGE)
    table = tmp_path / "selected_tags.csv"
    table.write_text("tag_id,name,category,count\n1,long_hair,0,9\n2,rin,4,3\n")
    assert read_tags(table) == (Tag("long_hair", "0"), Tag("rin", "4"))
    table.write_text("something else\n1\n")
    with pytest.raises(DarkroomError):
        read_tags(table)


def test_a_foreground_is_stretched_to_the_whole_range() -> None:
    def answer(image: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        assert image.shape == (1, 3, 32, 32)
        found = np.full((1, 1, 32, 32), 0.2, np.float32)
        found[..., :16] = 0.7
        return found

    mask = Foreground(FakeSession(answer, (1, 3, 32, 32)), 32, (1.0, 1.0, 1.0)).mask(IMAGE)
    assert mask.shape == (40, 50)
    assert mask[20, 3] == 1
    assert mask[20, 47] == 0


@pytest.mark.full
def test_the_transformers_models_describe_an_image(tmp_path: Path) -> None:
    blip = load_factory(CAPTIONERS["blip_base"].factory)(
        write_blip_folder(tmp_path / "b"), CaptionSettings(initial="a red"), "cpu"
    )
    assert blip.caption(IMAGE).startswith("a red ")
    florence = load_factory(CAPTIONERS["florence_2_base"].factory)(
        write_florence_folder(tmp_path / "f"), CaptionSettings(detail="short"), "cpu"
    )
    assert florence.caption(IMAGE)
    folder = write_clipseg_folder(tmp_path / "c")
    make = load_factory(MASKERS["clipseg"].factory)
    seg = make(folder, MaskSettings(prompts="cat"), "cpu")
    masks = [replace(seg, prompts=p).mask(IMAGE) for p in (("cat",), ("red face",))]
    both = replace(seg, prompts=("cat", "red face")).mask(IMAGE)
    assert both.shape == (40, 50)
    assert both == pytest.approx(np.maximum(*masks), abs=0.05)
    with pytest.raises(DarkroomError, match="needs a text"):
        make(folder, MaskSettings(), "cpu")
    with pytest.raises(DarkroomError, match="cannot be loaded"):
        make(tmp_path, MaskSettings(prompts="cat"), "cpu")


@pytest.mark.full
def test_pickled_weights_are_read_without_running_code(tmp_path: Path) -> None:
    folder, canary = write_blip_folder(tmp_path / "b"), tmp_path / "canary"
    make, settings = load_factory(CAPTIONERS["blip_base"].factory), CaptionSettings(initial="a red")
    caption = make(folder, settings, "cpu").caption(IMAGE)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    assert make(folder, settings, "cpu").caption(IMAGE) == caption
    (folder / "pytorch_model.bin").write_bytes(zipped(b"\x80\x02" + planted(canary)["REDUCE"] + b"."))
    with pytest.raises(DarkroomError, match=r"posix\.mkdir"):
        make(folder, settings, "cpu")
    assert not canary.exists()


def test_a_colour_is_masked_out() -> None:
    image = Image.new("RGB", (4, 2), (250, 255, 255))
    image.putpixel((1, 1), (0, 90, 0))
    make = load_factory(MASKERS["colour"].factory)
    mask = make(None, MaskSettings(colour="white", tolerance=5), "cpu").mask(image)
    assert mask.tolist() == [[0, 0, 0, 0], [0, 1, 0, 0]]
    with pytest.raises(DarkroomError, match="not a colour"):
        make(None, MaskSettings(colour="whitish"), "cpu")


@pytest.mark.parametrize("name", [*CAPTIONERS, *MASKERS])
def test_a_record_names_its_files_in_full(name: str) -> None:
    spec = CAPTIONERS.get(name) or MASKERS[name]
    assert spec.label
    assert spec.help.endswith(".")
    assert callable(load_factory(spec.factory))
    if spec.files is not None:
        assert (spec.files.repo or spec.files.url) in spec.files.description
        assert all(file in spec.files.description for file in spec.files.names)
        assert bool(spec.files.md5) == bool(spec.files.url)


def test_onnx_files_need_a_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(DarkroomError, match="needs the package onnxruntime") as error:
        onnx_models.open_session(tmp_path / "model.onnx", "cpu")
    assert "python -m trainer install onnxruntime" in error.value.advice


@pytest.mark.parametrize(
    ("device", "first"),
    [("auto", 0), ("cuda", 0), ("cuda:1", 1), ("cpu", None)],
)
def test_onnx_files_run_on_the_gpu_that_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, device: str, first: int | None
) -> None:
    """By default that is the first GPU, on which another program may train."""
    asked: list[Any] = []
    runtime = SimpleNamespace(
        get_available_providers=lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"],
        InferenceSession=lambda file, providers: asked.append(providers),
    )
    monkeypatch.setitem(sys.modules, "onnxruntime", runtime)
    onnx_models.open_session(tmp_path / "model.onnx", device)
    on_gpu = [] if first is None else [("CUDAExecutionProvider", {"device_id": first})]
    assert asked == [[*on_gpu, "CPUExecutionProvider"]]


@pytest.mark.parametrize(
    ("old", "mode", "new"),
    [
        (None, "skip", "red, cat"),
        (b" \n", "skip", "red, cat"),
        (b"dog", "skip", None),
        (b"dog", "replace", "red, cat"),
        (b"red, cat", "replace", None),
        (b"dog\r\nbird\r\n", "new_line", "dog\nbird\nred, cat\n"),
        (b"dog", "new_line", "dog\nred, cat"),
        (b"dog\nred, cat", "new_line", None),
        (b"dog, red\nbird", "append", "dog, red, cat\nbird"),
        (b"dog, ", "append", "dog, red, cat"),
        (b"cat, red", "append", None),
    ],
)
def test_what_becomes_of_an_existing_caption(old: bytes | None, mode: Any, new: str | None) -> None:
    file = parse_caption_file(old or b"")
    assert merge_caption(file, "red, cat", mode) == new
    assert merge_caption(file, "", mode) is None
    assert mode in CAPTION_MODES


MASKS = st.lists(st.integers(0, 255), min_size=4, max_size=4).map(lambda v: np.array(v, np.uint8).reshape(2, 2))


@given(MASKS, MASKS)
def test_masks_are_combined(old: Any, new: Any) -> None:
    assert combine_masks(old, new, "skip") is None
    assert np.array_equal(combine_masks(old, new, "replace"), new)
    assert np.array_equal(combine_masks(old, new, "add"), np.maximum(old, new))
    subtracted = combine_masks(old, new, "subtract")
    assert subtracted is not None
    assert (subtracted <= old).all()
    assert np.array_equal(combine_masks(None, new, "subtract"), 255 - new)
    assert np.array_equal(combine_masks(None, new, "skip"), new)
    assert np.array_equal(combine_masks(old, new, "replace", share=0), old)


def test_a_mask_grows_or_shrinks_and_gets_soft_edges() -> None:
    found = np.zeros((60, 60), np.float32)
    found[20:40, 20:40] = 0.8

    def white(**options: Any) -> int:
        return int((draw_mask(found, threshold=0.5, smooth_px=0, **options) == 255).sum())

    assert white(expand_px=0) == 400
    assert 32 * 32 * 0.85 < white(expand_px=6) < 32 * 32
    assert white(expand_px=-5) == 100
    assert white(expand_px=0, is_inverted=True) == 3200
    assert draw_mask(found, threshold=0.9, smooth_px=3, expand_px=3).max() == 0
    soft = draw_mask(found, threshold=0.5, smooth_px=3, expand_px=0)
    assert 0 < soft[30, 20] < 255


class Answer(io.BytesIO):
    headers = {"Content-Length": "5"}  # noqa: RUF012


def test_a_file_at_an_address_is_checked_before_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "models_dir", lambda: tmp_path)
    monkeypatch.setattr("modules.annotators.registry.models_dir", lambda: tmp_path)
    seen: list[tuple[float, float]] = []
    good = hashlib.md5(b"model", usedforsecurity=False).hexdigest()

    def fetch(md5: str) -> Path:
        files = ModelFiles("", ("m.onnx",), url="https://example.invalid/m.onnx", md5=md5)
        return download.download_place(files, hub=HubAccess(), on_bytes=lambda *done: seen.append(done))

    monkeypatch.setattr(download, "urlopen", lambda *_, **__: Answer(b"other"))
    with pytest.raises(DarkroomError, match="MD5"):
        fetch(good)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(download, "urlopen", lambda *_, **__: Answer(b"model"))
    assert fetch(good).read_bytes() == b"model"
    assert seen[-1] == (5, 5)

    def refused(*_: Any, **__: Any) -> None:
        raise URLError("no route")

    monkeypatch.setattr(download, "urlopen", refused)
    assert fetch(good).is_file()  # it is there: nothing is asked
    (tmp_path / "m.onnx").unlink()
    with pytest.raises(DarkroomError, match="no route"):
        fetch(good)
