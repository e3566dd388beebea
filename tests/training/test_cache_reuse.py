"""The cache rebuilds exactly what a change touches, and nothing else."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from modules.config.quantized_parts import NOTHING_QUANTIZED
from modules.config.schema import Config
from modules.data.archives import open_file
from modules.data.cache import digests
from modules.system.devices import Device
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.models import write_sd_folder
from tests.builders.pipelines import load_tiny
from tests.builders.runs import Ran
from trainer.commands import CommandDesk, Stop
from trainer.events import CacheProgress, Event, RunFinished
from trainer.launch import RunRequest
from trainer.phases import phase_facts
from trainer.run.execute import execute_guarded
from trainer.run.identities import identities_of
from trainer.step.precision import Precision

NUM_IMAGES = 5
NUM_CAPTIONS = NUM_IMAGES + 1  # and the empty one


def config_of(model: Path, folder: Path) -> Config:
    images = draw_folder(folder / "images", sizes=[(64, 64)] * 3 + [(96, 64)] * 2)
    untrained = {key: {"train": False} for key in ("text_encoder", "text_encoder_2")}
    return small_config(folder, model=model, images=images, parts=untrained)


@pytest.fixture
def config(tiny_sd: Path, tmp_path: Path) -> Config:
    return config_of(tiny_sd, tmp_path)


def built(config: Config) -> dict[str, int]:
    """Fill the caches and return how many entries of each kind that took."""
    ran = Ran()
    execute_guarded(RunRequest(config, kind="cache", in_window=False), emit=ran.events.append, desk=CommandDesk())
    assert ran.finished.outcome == "cached"
    progress = ran.of(CacheProgress)
    return {what: sum(p.what == what for p in progress) for what in ("images", "captions")}


def both(images: int, captions: int) -> dict[str, int]:
    return {"images": images, "captions": captions}


ALL = both(NUM_IMAGES, NUM_CAPTIONS)
NONE = both(0, 0)


def test_a_second_time_nothing_is_built(config: Config) -> None:
    assert built(config) == ALL
    assert built(config) == NONE


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"data": {"resolution_px": [96]}}, both(NUM_IMAGES, 0)),
        ({"data": {"aspect_ratio_bucketing": False}}, both(2, 0)),  # the two wide ones are now cut to squares
        ({"data": {"resolution_px": [64, 96]}}, both(NUM_IMAGES, 0)),  # the smaller ones are there
        ({"model": {"family": {"clip_skip": 1}}}, both(0, NUM_CAPTIONS)),
        ({"training": {"precision": "bfloat16"}}, both(0, NUM_CAPTIONS)),  # on a GPU the images, too
        ({"training": {"precision": "tfloat32"}}, ALL),
        ({"parts": {"vae": {"dtype": "bfloat16"}}}, both(NUM_IMAGES, 0)),
        ({"parts": {"text_encoder": {"dtype": "bfloat16"}}}, both(0, NUM_CAPTIONS)),
        ({"training": {"learning_rate": 0.5, "epochs": 7, "batch_size": 3}}, NONE),
        ({"model": {"family": {"prompt_weighting": True}}}, both(0, NUM_CAPTIONS)),
        ({"general": {"seed": 7}}, NONE),
        ({"adapter": {"rank": 5, "layers": "all"}}, NONE),
        ({"data": {"caption_dropout": 0.5, "loader_threads": 3, "verify_cache": True}}, NONE),
        ({"parts": {"unet": {"dtype": "bfloat16", "checkpointing": "block"}}}, NONE),
    ],
    ids=str,
)
def test_a_setting_rebuilds_what_hangs_on_it(config: Config, change: dict[str, Any], expected: dict[str, int]) -> None:
    built(config)
    assert built(laid_over(config, change)) == expected
    assert built(config) == NONE, "what was there before is still there"


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"data": {"resolution_px": [96]}}, both(NUM_IMAGES, 0)),  # sizes and crops are no part of a caption
        pytest.param({"model": {"family": {"clip_skip": 1}}}, both(0, NUM_CAPTIONS), marks=pytest.mark.full),
        pytest.param({"parts": {"vae": {"dtype": "bfloat16"}}}, both(NUM_IMAGES, 0), marks=pytest.mark.full),
        ({"parts": {"vae": {"dtype": "float16"}}}, NONE),  # kept in float32, for it would overflow
        pytest.param(
            {"parts": {"vae": {"dtype": "float16"}}, "training": {"fallback_train_dtype": "bfloat16"}},
            both(NUM_IMAGES, 0),
            marks=pytest.mark.full,
        ),
        pytest.param({"parts": {"text_encoder": {"dtype": "bfloat16"}}}, both(0, NUM_CAPTIONS), marks=pytest.mark.full),
        ({"parts": {"text_encoder_2": {"dtype": "bfloat16"}}}, both(0, NUM_CAPTIONS)),
        ({"parts": {"text_encoder_2": {"train": True}}}, NONE),  # then nothing is read from that cache
    ],
    ids=str,
)
def test_a_setting_rebuilds_what_hangs_on_it_in_sdxl(
    tiny_sdxl: Path, tmp_path: Path, change: dict[str, Any], expected: dict[str, int]
) -> None:
    config = config_of(tiny_sdxl, tmp_path)
    assert built(config) == ALL
    assert built(laid_over(config, change)) == expected
    assert built(config) == NONE, "what was there before is still there"


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"text": {"prefix": "photo of"}}, both(0, NUM_CAPTIONS - 1)),  # the empty prompt is there
        ({"text": {"trigger_word": "picture"}}, NONE),  # every caption has it
        ({"text": {"replacements": "3 => three"}}, both(0, 1)),
        ({"text": {"shuffle_tags": True, "wildcards": True}, "text_variations": 5}, NONE),  # a single tag each
        ({"text": {"choice": "first"}, "seed": 7}, NONE),
        ({"caption_source": "file_name"}, both(0, NUM_CAPTIONS - 1)),
    ],
    ids=str,
)
def test_a_caption_setting_rebuilds_the_captions_it_changes(
    config: Config, change: dict[str, Any], expected: dict[str, int]
) -> None:
    built(config)
    concept = {**config.concepts[0].model_dump(mode="json"), **change}
    assert built(laid_over(config, {"concepts": [concept]})) == expected
    assert built(config) == NONE


def test_on_a_gpu_latents_of_different_tf32_have_different_keys(config: Config, tiny_sd: Path) -> None:
    """Images are encoded in float32, which convolutions on a GPU round to TF32 unless the precision is float32."""
    family = load_tiny(tiny_sd)

    def identity(precision: str) -> str:
        gpu = Device("cuda")
        return identities_of(
            config.model, family, phase_facts(config), Precision(precision, gpu), None, NOTHING_QUANTIZED
        ).images

    assert len({identity(p) for p in ("float32", "tfloat32", "bfloat16")}) == 3
    assert identity("bfloat16") == identity("float16")


def test_other_weights_rebuild_all(config: Config, tmp_path: Path) -> None:
    built(config)
    other = write_sd_folder(tmp_path / "other", seed=1)
    assert built(laid_over(config, {"model": {"base_model": str(other)}})) == ALL


def test_the_same_weights_elsewhere_rebuild_nothing(config: Config, tiny_sd: Path, tmp_path: Path) -> None:
    built(config)
    shutil.copytree(tiny_sd, tmp_path / "copy")
    assert built(laid_over(config, {"model": {"base_model": str(tmp_path / "copy")}})) == NONE


def test_a_caption_an_image_a_new_file_and_a_renamed_one(config: Config, tmp_path: Path) -> None:
    built(config)
    folder = tmp_path / "images"
    (folder / "000.txt").write_text("something else")
    assert built(config) == both(0, 1)
    with Image.open(folder / "001.png") as image:
        changed = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    changed.save(folder / "001.png")
    assert built(config) == both(1, 0)
    shutil.copy(folder / "002.png", folder / "copy of 002.png")  # the same image under another name
    (folder / "copy of 002.txt").write_text("something else")
    assert built(config) == NONE
    (folder / "003.png").rename(folder / "moved.png")
    (folder / "003.txt").rename(folder / "moved.txt")
    assert built(config) == NONE


def test_a_touched_file_is_read_again_and_found_the_same(config: Config, tmp_path: Path) -> None:
    built(config)
    os.utime(tmp_path / "images" / "000.png", ns=(1, 1))
    assert built(config) == NONE


def test_content_changed_behind_the_same_date_is_found_by_verify(config: Config, tmp_path: Path) -> None:
    built(config)
    path = tmp_path / "images" / "000.png"
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert built(config) == NONE
    changed = built(laid_over(config, {"data": {"verify_cache": True}}))
    assert changed["images"] <= 1  # PNG's own checksum may show that it is damaged; either way it is read


def test_trained_encoders_are_never_cached(config: Config) -> None:
    assert built(laid_over(config, {"parts": {"text_encoder": {"train": True}}})) == both(NUM_IMAGES, 0)


def test_what_was_read_and_encoded_before_a_stop_is_kept(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """All images used to be read before the first was encoded, and a stop until then kept nothing."""
    read: list[Path] = []
    monkeypatch.setattr(digests, "open_file", lambda path: read.append(path) or open_file(path))
    draw_folder(Path(config.concepts[0].path), sizes=[(64, 64)] * NUM_IMAGES)
    events: list[Event] = []
    desk = CommandDesk()

    def stop_after_three(event: Event) -> None:
        events.append(event)
        if isinstance(event, CacheProgress) and event.done == 3:
            desk.put(Stop())

    execute_guarded(RunRequest(config, kind="cache", in_window=False), emit=stop_after_three, desk=desk)
    assert isinstance(events[-1], RunFinished)
    assert events[-1].outcome == "stopped"
    assert [(e.done, e.total) for e in events if isinstance(e, CacheProgress)] == [(n, NUM_IMAGES) for n in (1, 2, 3)]
    num_read = len(read)
    assert built(config) == both(NUM_IMAGES - 4, NUM_CAPTIONS), "one more is encoded while the third is written"
    assert len(read) == NUM_IMAGES, "an image is read once, before the stop or after it"
    assert num_read >= 4
