"""The plan and the contact sheet on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from modules.config.codec import export_file
from modules.data.samples import SampleIndex
from modules.data.versions import ImageVersion, ImageVersions
from tests.builders.configs import small_config
from tests.builders.images import draw_folder, draw_image, draw_mask
from trainer.__main__ import main


@pytest.fixture
def config_file(tiny_sd: Path, tmp_path: Path) -> Path:
    images = draw_folder(tmp_path / "images", sizes=[(64, 64), (140, 64)])
    draw_mask(images / "000-masklabel.png")
    augmented = {"flip": "always", "crop_jitter": True, "hue": "random", "hue_max": 0.5, "mask_rotate_crop": True}
    config = small_config(tmp_path, model=tiny_sd, images=images, concepts=[{"path": str(images), "image": augmented}])
    export_file(config, tmp_path / "config.json")
    return tmp_path / "config.json"


def test_a_sheet_has_a_row_for_each_image(config_file: Path, tmp_path: Path) -> None:
    assert main(["preview", str(config_file), "--out", str(tmp_path / "sheet.png"), "--epochs", "2"]) == 0
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.size == (8 + (1 + 4 + 2) * 232, 8 + 2 * 248)
        assert len(sheet.getcolors(1 << 24) or ()) > 100


def test_a_sheet_has_no_row_for_a_damaged_image(
    config_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One among thousands left no sheet at all."""
    damaged = tmp_path / "images" / "001.png"
    draw_image(140, 64, 0).save(damaged.with_suffix(".jpg"))
    damaged.unlink()
    damaged = damaged.with_suffix(".jpg")
    damaged.write_bytes(damaged.read_bytes()[:-500])
    assert main(["preview", str(config_file), "--out", str(tmp_path / "sheet.png"), "--epochs", "1"]) == 0
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.height == 8 + 248
    assert f"{damaged}: cannot be read (image file is truncated" in capsys.readouterr().err
    (tmp_path / "images" / "000.png").unlink()
    assert main(["preview", str(config_file), "--out", str(tmp_path / "sheet.png"), "--epochs", "1"]) == 2
    assert "None of the images can be decoded." in capsys.readouterr().err


@pytest.mark.parametrize(("options", "num_draws"), [((), 12), (("--draws", "30"), 20), (("--epochs", "1"), 5)])
def test_a_sheet_has_a_tile_for_each_epoch_and_repeat(
    config_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    num_draws: int,
) -> None:
    seen: list[SampleIndex] = []
    plain = ImageVersions.of

    def of(self: ImageVersions, sample_index: SampleIndex) -> ImageVersion:
        seen.append(sample_index)
        return plain(self, sample_index)

    monkeypatch.setattr(ImageVersions, "of", of)
    settings = ("--set", "concepts.0.repeats=5", "--set", "data.resolution_px=[64,96]", "--images", "1")
    assert main(["preview", str(config_file), "--out", str(tmp_path / "sheet.png"), *settings, *options]) == 0
    uses = [(s.epoch, s.repeat, s.resolution) for s in seen]
    assert uses == [(n // 5, n % 5, n % 2) for n in range(num_draws)]
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width == 8 + (1 + 4 + num_draws) * 232


@pytest.mark.parametrize("verb", ["check", "cache"])
def test_the_plan_is_printed(config_file: Path, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([verb, str(config_file), "--images"])
    text = capsys.readouterr().out
    assert "64x64       1 image        1 sample  in epoch 1  scale" in text
    assert "001.png: 140x64 to 80x48, scale 0.750, crop" in text


@pytest.mark.parametrize(
    ("partial", "fate"), [("drop", "are dropped from epoch 1"), ("merge", "wait for a later epoch")]
)
def test_partial_batches_are_listed(
    config_file: Path, capsys: pytest.CaptureFixture[str], partial: str, fate: str
) -> None:
    main(["check", str(config_file), "--set", f"data.partial_batches={partial}"])
    assert f"In partial batches, 2 images {fate}: 000.png, 001.png" in capsys.readouterr().out
