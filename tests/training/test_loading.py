"""What is missing or wrong about a model is a sentence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.families.parts.clip_tokens import OPEN_CLIP_PAD, load_clip_tokenizer
from modules.families.parts.clip_vocabulary import clip_merges, clip_vocabulary
from modules.formats.diffusers_folder import locate
from modules.system.errors import DarkroomError
from tests.builders.configs import small_config
from tests.builders.models import tiny_unet
from tests.builders.pipelines import load_tiny
from tests.builders.runs import run
from trainer.commands import Command, Stop
from trainer.events import DownloadProgress
from trainer.run.reading import load_family


@pytest.fixture
def model(tiny_sd: Path, tmp_path: Path) -> Path:
    shutil.copytree(tiny_sd, tmp_path / "model")
    return tmp_path / "model"


def test_parts_come_frozen_in_eval_mode_in_their_dtypes(tiny_sd: Path) -> None:
    family = load_tiny(tiny_sd, "sd", dtypes={"unet": torch.bfloat16})
    for name, part in family.parts.items():
        assert not part.module.training
        assert not any(p.requires_grad for p in part.module.parameters())
        dtype = torch.bfloat16 if name == "unet" else torch.float32
        assert {p.dtype for p in part.module.parameters()} == {dtype}


@pytest.mark.parametrize(
    ("file", "part"),
    [
        ("unet/diffusion_pytorch_model.safetensors", "unet"),
        ("text_encoder/model.safetensors", "text_encoder"),
        ("vae/config.json", "vae"),
        ("scheduler/scheduler_config.json", "scheduler"),
    ],
)
def test_a_missing_file_is_named(model: Path, file: str, part: str) -> None:
    (model / file).unlink()
    with pytest.raises(DarkroomError, match=part):
        load_tiny(model, "sd")


@pytest.mark.parametrize("content", [b"", b"<!DOCTYPE html>", b"\x08\x00\x00\x00\x00\x00\x00\x00{}      "])
def test_a_damaged_file_is_reported_in_a_sentence(model: Path, content: bytes) -> None:
    (model / "unet" / "diffusion_pytorch_model.safetensors").write_bytes(content)
    with pytest.raises(DarkroomError, match="unet"):
        load_tiny(model, "sd")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"prediction_type": "sample"}, "'sample'"),
        ({"rescale_betas_zero_snr": True}, "epsilon with zero terminal SNR"),
    ],
)
def test_a_prediction_type_that_cannot_be_trained_is_refused(model: Path, settings: dict[str, Any], said: str) -> None:
    file = model / "scheduler" / "scheduler_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    with pytest.raises(DarkroomError, match=said):
        load_tiny(model, "sd")


def test_a_model_with_other_inputs_is_refused(model: Path) -> None:
    tiny_unet(in_channels=8).save_pretrained(model / "unet", safe_serialization=True)
    with pytest.raises(DarkroomError, match="8 input channels instead of 4 or 5 or 9"):
        load_tiny(model, "sd")


def test_a_model_of_another_variant_is_refused(model: Path) -> None:
    """A repository is known only once it is downloaded."""
    tiny_unet(in_channels=9).save_pretrained(model / "unet", safe_serialization=True)
    config = small_config(model, model=model, images=model)
    with pytest.raises(DarkroomError, match=r"is set to Base, but .* is of the variant Inpainting"):
        load_family(config.model, config.part)
    assert load_family(config.model.model_copy(update={"variant": "inpainting"}), config.part).variant == "inpainting"


@pytest.mark.parametrize(("vae_dtype", "kept_in"), [("float16", "float32"), ("bfloat16", "bfloat16")])
def test_a_vae_that_overflows_in_float16_is_kept_in_float32(tiny_sdxl: Path, vae_dtype: str, kept_in: str) -> None:
    family = load_tiny(tiny_sdxl, "sdxl", dtypes={"vae": getattr(torch, vae_dtype)})
    assert {p.dtype for p in family.vae.parameters()} == {getattr(torch, kept_in)}
    with torch.no_grad():
        images = family.decode(torch.randn(1, 4, 8, 8))
    assert images.dtype == torch.float32


def test_a_vae_that_overflows_in_float16_can_have_another_dtype(
    tiny_sdxl: Path, tiny_sd: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = small_config(tiny_sdxl, model=tiny_sdxl, images=tiny_sdxl, parts={"vae": {"dtype": "float16"}})
    for fallback in ("float32", "bfloat16"):
        vae = load_family(config.model, config.part, fallback_dtype=fallback).parts["vae"].module
        assert {p.dtype for p in vae.parameters()} == {getattr(torch, fallback)}
    assert {record.name for record in caplog.records} == {"darkroom.families"}  # diffusers' warns of any such cast
    plain = small_config(tiny_sd, model=tiny_sd, images=tiny_sd, parts={"vae": {"dtype": "float16"}})
    vae = load_family(plain.model, plain.part, fallback_dtype="bfloat16").parts["vae"].module
    assert {p.dtype for p in vae.parameters()} == {torch.float16}  # it does not overflow


def test_weights_that_could_hold_code_are_not_read(model: Path) -> None:
    file = model / "unet" / "diffusion_pytorch_model.safetensors"
    file.unlink()
    torch.save({}, model / "unet" / "diffusion_pytorch_model.bin")
    with pytest.raises(DarkroomError, match="safetensors"):
        load_tiny(model, "sd")


@pytest.mark.parametrize("offline", [True, False])
def test_a_repository_that_cannot_be_downloaded_is_reported(offline: bool, tmp_path: Path) -> None:
    with pytest.raises(DarkroomError, match="not on this machine"):
        locate("somebody/something", offline=offline, cache_dir=str(tmp_path))


def test_a_repository_in_the_cache_is_used_offline(tiny_sd: Path, tmp_path: Path) -> None:
    """As huggingface_hub lays it out: blobs apart, a revision that `refs/main` names."""
    repository = tmp_path / "models--somebody--tiny"
    shutil.copytree(tiny_sd, repository / "snapshots" / "abc123")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc123")
    folder = locate("somebody/tiny", offline=True, cache_dir=str(tmp_path))
    assert load_tiny(folder, "sd").count_tokens("a cat") == 2


def test_the_models_own_tokenizer_wins(model: Path) -> None:
    from transformers import CLIPTokenizer

    vocabulary = clip_vocabulary()
    cat, dog = vocabulary["cat</w>"], vocabulary["dog</w>"]
    vocabulary["cat</w>"], vocabulary["dog</w>"] = dog, cat
    (model / "tokenizer").mkdir()
    (model / "tokenizer" / "vocab.json").write_text(json.dumps(vocabulary))
    merges = "\n".join(["#version: 0.2", *(f"{a} {b}" for a, b in clip_merges())])
    (model / "tokenizer" / "merges.txt").write_text(merges)
    (model / "tokenizer" / "tokenizer_config.json").write_text(json.dumps({"pad_token": "!"}))
    family = load_tiny(model, "sd")
    theirs = CLIPTokenizer(vocab=vocabulary, merges=clip_merges())("a cat").input_ids
    ids = family.towers["text_encoder"].tokenizer.chunks("a cat")[0]
    assert ids[: len(theirs)] == theirs
    assert set(ids[len(theirs) :]) == {0}


@pytest.mark.parametrize(
    ("config", "special", "pad_id"),
    [
        ({"pad_token": "<|endoftext|>"}, {"pad_token": "!"}, 0),  # as SD 2's folders have it
        ({"pad_token": "!", "added_tokens_decoder": {}}, {"pad_token": "<|endoftext|>"}, 0),
        ({}, {"pad_token": {"content": "<|endoftext|>"}}, 49407),
        ({"pad_token": "<|endoftext|>"}, {}, 49407),
        ({}, {}, 0),  # silent: as OpenCLIP pads
    ],
    ids=str,
)
def test_the_padding_is_the_one_transformers_would_use(
    tmp_path: Path, config: dict[str, Any], special: dict[str, Any], pad_id: int
) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(special))
    tokenizer = load_clip_tokenizer(tmp_path, usual_pad=OPEN_CLIP_PAD)
    assert tokenizer.chunks("a cat")[0][4:] == [pad_id] * 73


class Hub:
    """A fake download: huggingface_hub's own progress bars, used as its snapshot_download uses them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.chunks = 0

    def snapshot_download(self, _name: str, *, tqdm_class: Any, **_: Any) -> str:
        with tqdm_class(total=0, unit="B", desc="Reconstructing", name="huggingface_hub.snapshot_download") as bar:
            bar.total = 4_000_000
            for _chunk in range(4):
                self.chunks += 1
                bar.update(1_000_000)
        return str(self.folder)


def test_a_download_reports_its_progress_and_can_be_stopped(
    tiny_sd: Path, tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    hub = Hub(tiny_sd)
    monkeypatch.setattr("huggingface_hub.snapshot_download", hub.snapshot_download)
    config = small_config(tmp_path, model=Path("somebody/something"), images=images)
    ran = run(config)
    assert ran.finished.outcome == "finished"
    assert [(e.done_mb, e.total_mb) for e in ran.of(DownloadProgress)][-1] == (4.0, 4.0)
    assert "Reconstructing" not in capfd.readouterr().err

    def stop(event: object, send: Callable[[Command], None]) -> None:
        if isinstance(event, DownloadProgress):
            send(Stop())

    hub.chunks = 0
    stopped = run(config, on_event=stop)
    assert stopped.finished.outcome == "stopped"
    assert hub.chunks < 4


def test_a_tokenizer_that_changed_on_disk_is_read_anew(tmp_path: Path) -> None:
    """The cache key is the content of the files, not their path."""
    vocabulary = clip_vocabulary()
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(pair) for pair in clip_merges()))
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    before = load_clip_tokenizer(folder)
    assert load_clip_tokenizer(folder).tokenizer is before.tokenizer
    (folder / "vocab.json").write_text(json.dumps({token: len(vocabulary) - 1 - i for token, i in vocabulary.items()}))
    after = load_clip_tokenizer(folder)
    assert after.chunks("a cat") == [[len(vocabulary) - 1 - i for i in ids] for ids in before.chunks("a cat")]
    assert after.identity() != before.identity()
