"""What of a run a finished file carries: never more than its user asked for, and no path of the machine."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from modules.config.codec import decode
from modules.config.imports.any_file import load_any
from modules.config.schema import Config
from modules.data.dataset import Dataset
from modules.settings.field import FieldRecord
from modules.system.secrets import Secrets
from modules.system.secrets_file import save_secrets
from tests.builders.configs import laid_over, small_config
from tests.builders.effects import offered, with_value
from tests.builders.images import draw_folder
from tests.builders.runs import run
from trainer.export.metadata import embedded_config, training_settings
from trainer.run.setup import Clocks

PRIVATE = ("holiday images", "a private prompt", "my concepts", "my samples", "an odd setting", "dear diary")


@pytest.mark.parametrize(("embeds", "is_all"), [("settings", False), ("all", True)])
def test_folders_prompts_and_files_of_lists_only_where_all_is_wanted(embeds: str, is_all: bool) -> None:
    config = Config.model_validate(
        {
            "general": {"notes": "dear diary"},
            "concepts": [{"path": "holiday images"}],
            "concepts_file": "my concepts.json",
            "sampling": {"prompts": [{"prompt": "a private prompt"}], "prompts_file": "my samples.json"},
            "training": {"epochs": 33},
            "output": {"embed_config": embeds},
            "unknown": {"x": "an odd setting"},
        }
    )
    text = embedded_config(config)
    assert [secret in text for secret in PRIVATE] == [is_all] * len(PRIVATE)
    assert json.loads(text)["training"]["epochs"] == 33


def test_nothing_where_nothing_is_wanted() -> None:
    assert embedded_config(Config.model_validate({"output": {"embed_config": "none"}})) == ""


MARK = "Zanzibar"
FULL = Config.model_validate(
    {
        "concepts": [{"path": "a"}],
        "sampling": {"prompts": [{"prompt": "a"}]},
        "reward": {"models": [{"kind": "user_code"}]},
        "parts": {"vae": {}},
        "embeddings": {"words": [{"placeholder": "x"}]},
        "remembered": {"adapter": {"lokr": {"start_from": f"/home/{MARK}/x.safetensors"}}},
    }
)


def paths_of(config: Config) -> list[tuple[Config, FieldRecord]]:
    return [(seen_in, record) for seen_in, record in offered(config) if record.setting.path_kind]


def test_every_path_of_a_config_is_hidden() -> None:
    paths = paths_of(FULL)
    assert {"general.workspace_dir", "model.base_model", "parts.vae.file", "adapter.start_from", "concepts.0.path"} <= {
        record.path for _, record in paths
    }
    for seen_in, record in paths:
        for form in (f"/home/{MARK}/x.safetensors", rf"C:\Users\{MARK}\x", f"{MARK}/in/x.bin", f"~/{MARK}/x/"):
            config = with_value(seen_in, record.path, form)
            assert MARK not in embedded_config(config), (record.path, form)
            assert decode(json.loads(embedded_config(config))).problems == []
            assert MARK in embedded_config(with_value(config, "output.embed_config", "all"))


@pytest.mark.parametrize(
    ("path", "value", "shown"),
    [
        ("model.base_model", "somebody/a-model", "somebody/a-model"),
        ("model.base_model", "/data/models/base.safetensors", "base.safetensors"),
        ("model.base_model", "models/base.safetensors", "base.safetensors"),
        ("output.destination", "/data/out/mine.safetensors", "models/mine.safetensors"),
        ("general.workspace_dir", "/data/work", "workspace/run"),
    ],
)
def test_files_keep_their_names_and_repositories_theirs(path: str, value: str, shown: str) -> None:
    tree = json.loads(embedded_config(with_value(Config(), path, value)))
    section, _, name = path.partition(".")
    assert tree[section][name] == shown


TOKEN = "hf_plantedTokenThatStays0123456789"
STARTED = datetime(2026, 1, 2, 3, 4, 5)


@pytest.fixture
def private(tiny_sd: Path, tmp_path: Path) -> Config:
    """A run whose every path, caption, prompt and name contains the mark."""
    save_secrets(Secrets(TOKEN))
    folder = tmp_path / MARK
    model = Path(shutil.copytree(tiny_sd, folder / "base"))
    sizes = [(64, 64), (64, 64), (96, 48)]
    images = draw_folder(folder / f"{MARK} pictures", sizes=sizes, captions=[f"a {MARK}, a disc", "a disc"])
    sample = {"prompt": MARK, "width_px": 64, "height_px": 64, "steps": 1}
    return small_config(
        folder,
        model=model,
        images=images,
        general={"notes": MARK},
        concepts=[{"path": str(images), "name": MARK, "repeats": 3}, {"path": str(images), "repeats": 0.5}],
        training={"epochs": 1},
        sampling={"at_start": True, "prompts": [sample]},
        output={"thumbnail": True, "trigger_words": "a disc", "destination": str(folder / "out" / "mine.safetensors")},
    )


def header_of(file: Path) -> dict[str, str]:
    content = file.read_bytes()
    header: dict[str, Any] = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    metadata: dict[str, str] = header["__metadata__"]
    return metadata


def result_of(config: Config) -> Path:
    return Path(run(config, clocks=Clocks(now=lambda: STARTED)).finished.model_path)


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    "changes",
    [
        {"output": {"format": "kohya"}},
        {"output": {"format": "diffusers"}},
        {"training": {"trains": "full"}, "output": {"model_format": "single_file"}},
        {"training": {"trains": "full"}, "output": {"model_format": "diffusers", "destination": "mine"}},
    ],
)
def test_nothing_private_is_in_a_result_unless_asked_for(
    changes: dict[str, Any], private: Config, tmp_path: Path
) -> None:
    if "destination" in changes["output"]:
        changes = {**changes, "output": {**changes["output"], "destination": str(tmp_path / MARK / "out" / "mine")}}
    result = result_of(laid_over(private, changes))
    samples = [f for f in (tmp_path / MARK / "workspace").rglob("*.png") if f.is_file()]
    assert samples
    for file in [*samples, *([result] if result.is_file() else (f for f in result.rglob("*") if f.is_file()))]:
        content = file.read_bytes()
        assert MARK.encode() not in content, file
        assert MARK.lower().encode() not in content.lower(), file
        assert TOKEN.encode() not in content, file
        if file.suffix == ".png":
            with Image.open(file) as image:
                assert MARK not in str(image.info)


def test_the_facts_of_a_run_are_true(private: Config) -> None:
    result = result_of(private)
    metadata, content = header_of(result), result.read_bytes()
    payload = content[8 + int.from_bytes(content[:8], "little") :]  # what A1111 hashes: the tensors alone
    assert metadata["sshs_model_hash"] == hashlib.sha256(payload).hexdigest()
    assert metadata["modelspec.hash_sha256"] == f"0x{metadata['sshs_model_hash']}"
    assert float(metadata["ss_training_started_at"]) == STARTED.timestamp()
    assert json.loads(metadata["ss_dataset_dirs"]) == {
        "concept 1": {"n_repeats": 3, "img_count": 3},
        "concept 2": {"n_repeats": 0.5, "img_count": 3},
    }
    buckets = json.loads(metadata["ss_bucket_info"])
    counts = {tuple(b["resolution"]): b["count"] for b in buckets["buckets"].values()}
    assert counts[64, 64] == 6 + 2  # half of the second concept: its first two images in the first epoch
    assert sum(counts.values()) == int(metadata["ss_num_train_images"]) == 11
    assert len(counts) == 2
    assert buckets["mean_img_ar_error"] >= 0.0
    assert "ss_tag_frequency" not in metadata
    [cover] = json.loads(metadata["ssmd_cover_images"])
    assert base64.b64decode(cover).startswith(b"\xff\xd8\xff")
    wanted = {
        **{"ss_learning_rate": "0.001", "ss_unet_lr": "0.001", "ss_lr_scheduler": "constant", "ss_optimizer": "AdamW"},
        **{"ss_gradient_accumulation_steps": "1", "ss_mixed_precision": "no", "ss_total_batch_size": "2"},
        **{"ss_num_batches_per_epoch": "6", "ss_max_train_steps": "6", "ss_steps": "6", "ss_num_epochs": "1"},
        **{"ss_sd_model_name": "base", "ss_enable_bucket": "True", "ss_max_grad_norm": "1.0"},
    }
    assert {key: metadata.get(key) for key in wanted} == wanted
    assert not metadata.keys() & {"ss_noise_offset", "ss_min_snr_gamma", "ss_sd_model_hash"}


def test_what_is_asked_for_is_told(private: Config) -> None:
    config = laid_over(
        private,
        {
            "output": {"embed_dataset": "tags", "embed_config": "none"},
            "training": {"loss": {"weighting": "min_snr", "gamma": 4.0}},
        },
    )
    result = result_of(config)
    metadata = header_of(result)
    assert json.loads(metadata["ss_dataset_dirs"]).keys() == {MARK, f"{MARK} pictures"}
    assert json.loads(metadata["ss_tag_frequency"])[MARK] == {"a disc": 3, f"a {MARK}": 2}
    assert metadata["ss_min_snr_gamma"] == "4.0"
    assert "darkroom_config" not in metadata
    imported = load_any(result)
    assert [c.name for c in imported.config.concepts] == [MARK, f"{MARK} pictures"]
    assert imported.config.training.learning_rate == 1e-3
    assert (imported.config.training.loss.weighting, imported.config.training.loss.gamma) == ("min_snr", 4.0)


def test_nothing_of_the_images_where_none_is_wanted(private: Config) -> None:
    metadata = header_of(result_of(laid_over(private, {"output": {"embed_dataset": "none"}})))
    names = ("num_train_images", "dataset_dirs", "bucket_info", "tag_frequency", "num_batches_per_epoch")
    assert not metadata.keys() & {f"ss_{name}" for name in names}


def test_the_settings_of_a_result_load_again(private: Config) -> None:
    loaded = load_any(result_of(private))
    assert loaded.config.training == private.training
    assert loaded.config.adapter == private.adapter
    assert loaded.config.data == private.data
    assert loaded.config.general.workspace_dir == Config().general.workspace_dir
    assert not [p for p in loaded.problems if p.severity != "info"]


def test_settings_under_the_names_of_sd_scripts(tmp_path: Path) -> None:
    base = tmp_path / "base.safetensors"
    base.write_bytes(bytes(0x100000) + b"x" * 0x20000)
    config = Config.model_validate(
        {
            "model": {"family": "sdxl", "base_model": str(base)},
            "parts": {"text_encoder": {"learning_rate": 2e-5}, "text_encoder_2": {"learning_rate": 1e-5}},
            "training": {
                "precision": "bfloat16",
                "accumulation_steps": 4,
                "noise": {"offset_weight": 0.05, "pyramid_iterations": 6, "input_perturbation": 0.1},
                "schedule": {"name": "cosine", "warmup_share": 0.1},
            },
        }
    )
    facts = training_settings(config, Dataset((), (), 1), trained=["unet"], total_steps=200)
    assert facts["unet_lr"] == "0.0001"
    assert "text_encoder_lr" not in facts
    assert (facts["lr_scheduler"], facts["lr_warmup_steps"]) == ("cosine", "20")
    assert (facts["mixed_precision"], facts["gradient_accumulation_steps"]) == ("bf16", "4")
    assert facts["noise_offset"] == "0.05"
    assert (facts["multires_noise_iterations"], facts["multires_noise_discount"]) == ("6", "0.3")
    assert (facts["ip_noise_gamma"], facts["ip_noise_gamma_random_strength"]) == ("0.1", "False")
    assert facts["sd_model_hash"] == hashlib.sha256(b"x" * 0x10000).hexdigest()[:8]
    facts = training_settings(config, Dataset((), (), 1), trained=["text_encoder", "text_encoder_2"], total_steps=0)
    assert facts["text_encoder_lr"] == "[2e-05, 1e-05]"
    assert not facts.keys() & {"unet_lr", "max_train_steps", "num_batches_per_epoch"}
    config = with_value(config, "training.method", "alignprop")  # adds no noise and drops no caption
    facts = training_settings(config, Dataset((), (), 1), trained=["unet"], total_steps=0)
    assert not facts.keys() & {"noise_offset", "caption_dropout_rate"}
