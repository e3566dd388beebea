"""OneTrainer configs of version 11 for each target and model type, opened and trained as they are on tiny models."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from modules.config.codec import load_file as load_config
from modules.families.kinds.identify import identify
from tests.builders.configs import laid_over
from tests.builders.images import draw_folder, draw_mask
from tests.builders.models import write_depth_folder, write_inpainting_folder
from tests.builders.runs import run
from trainer.events import ModelSaved, SampleReady, WarningRaised
from trainer.preflight import check

PART = {"train": True, "stop_training_after_unit": "NEVER", "weight_dtype": "FLOAT_32", "gradient_checkpointing": True}
WORD = {"uuid": "1", "model_name": "", "placeholder": "<zog>", "train": True, "stop_training_after_unit": "NEVER"}
WORD |= {"token_count": 2, "initial_embedding_text": "disc", "is_output_embedding": False}
OTHER = {**WORD, "uuid": "2", "placeholder": "<zig>"}
XL = "STABLE_DIFFUSION_XL_10_BASE"
VAE = {"training_method": "FINE_TUNE_VAE"}
EMBEDDING = {"training_method": "EMBEDDING", "embedding": WORD}
FULL = {"training_method": "FINE_TUNE"}
SD_INPAINTING = {"base_model_name": "inpainting tiny_sd", "model_type": "STABLE_DIFFUSION_15_INPAINTING"}
SD2_INPAINTING = {"base_model_name": "inpainting tiny_sd2", "model_type": "STABLE_DIFFUSION_20_INPAINTING"}
XL_INPAINTING = {"base_model_name": "inpainting tiny_sdxl", "model_type": f"{XL}_INPAINTING"}
DEPTH = {"base_model_name": "depth tiny_sd2", "model_type": "STABLE_DIFFUSION_20_DEPTH"}
SD2 = {"base_model_name": "tiny_sd2", "model_type": "STABLE_DIFFUSION_21"}
SDXL = {"base_model_name": "tiny_sdxl", "model_type": XL}

# The changes of a config, and the kind and the variant of its result.
CASES: dict[str, tuple[list[dict[str, Any]], str, str]] = {
    "VAE of an inpainting model": ([VAE, SD_INPAINTING], "vae", ""),
    "embeddings with a LoRA": ([SDXL, {"additional_embeddings": [WORD, OTHER]}], "lora", ""),
    "depth LoRA": ([DEPTH], "lora", ""),
}
MORE: dict[str, tuple[list[dict[str, Any]], str, str]] = {
    "embedding": ([EMBEDDING], "embedding", ""),
    "inpainting fine-tune": ([SD_INPAINTING, FULL], "checkpoint", "inpainting"),
    "VAE": ([VAE, {"latent_caching": True, "dropout_probability": 0.1}], "vae", ""),
    "inpainting LoRA": ([XL_INPAINTING, {"masked_training": True, "unmasked_probability": 0.1}], "lora", ""),
    "VAE of SDXL with masks": ([VAE, SDXL, {"masked_training": True}], "vae", ""),
    "VAE as a folder": ([VAE, {"output_model_format": "DIFFUSERS"}], "vae", ""),
    "VAE of a depth model": ([VAE, DEPTH], "vae", ""),
    "embedding of SD 2": ([EMBEDDING, SD2], "embedding", ""),
    "output embedding of SDXL": (
        [SDXL, EMBEDDING, {"embedding": {**WORD, "is_output_embedding": True}}],
        "embedding",
        "",
    ),
    "embeddings, several": ([EMBEDDING, {"additional_embeddings": [OTHER]}], "embedding", ""),
    "embeddings with a fine-tune": ([FULL, {"additional_embeddings": [WORD]}], "checkpoint", ""),
    "embedding of an inpainting model": ([EMBEDDING, SD_INPAINTING], "embedding", ""),
    "inpainting LoRA with a prior": (
        [SD_INPAINTING, {"masked_training": True, "masked_prior_preservation_weight": 0.5}],
        "lora",
        "",
    ),
    "inpainting LoRA of SD 2": ([SD2_INPAINTING], "lora", ""),
    "inpainting fine-tune as a folder": (
        [XL_INPAINTING, FULL, {"output_model_format": "DIFFUSERS"}],
        "diffusers_folder",
        "inpainting",
    ),
    "depth fine-tune": ([DEPTH, FULL, {"output_model_format": "DIFFUSERS"}], "diffusers_folder", "depth"),
}


@pytest.fixture(scope="module")
def masked_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images with captions, masks and maps that serve as depth."""
    folder = draw_folder(
        tmp_path_factory.mktemp("theirs") / "images", sizes=[(64, 64)] * 2, captions=["a <zog>", "a <zig>, a <zog>"]
    )
    for number in range(2):
        draw_mask(folder / f"{number:03}-masklabel.png")
        shutil.copy(folder / f"{number:03}.png", folder / f"{number:03}-condlabel.png")
    return folder


def written(folder: Path, masked_images: Path, changes: list[dict[str, Any]], request: pytest.FixtureRequest) -> Path:
    """Write a config as OneTrainer does, with a tiny model in place of the published one."""
    sample = {"prompt": "a disc", "width": 64, "height": 64, "diffusion_steps": 2, "sample_inpainting": False}
    tree: dict[str, Any] = {
        "__version": 11,
        "training_method": "LORA",
        "model_type": "STABLE_DIFFUSION_15",
        "base_model_name": "tiny_sd",
        "workspace_dir": str(folder / "workspace"),
        "cache_dir": str(folder / "cache"),
        "tensorboard": False,
        "train_device": "cpu",
        "temp_device": "cpu",
        "train_dtype": "FLOAT_32",
        "output_dtype": "FLOAT_32",
        "output_model_format": "SAFETENSORS",
        "resolution": "64",
        "epochs": 2,
        "batch_size": 2,
        "learning_rate": 1e-3,
        "learning_rate_warmup_steps": 0,
        "dataloader_threads": 1,
        "unet": PART,
        "text_encoder": PART,
        "text_encoder_2": PART,
        "vae": {"train": True, "weight_dtype": "FLOAT_32", "model_name": ""},
        "optimizer": {"optimizer": "ADAMW"},
        "concepts": [{"__version": 2, "path": str(masked_images), "text": {"prompt_source": "sample"}}],
        "samples": [sample],
        "sample_after": 1,
        "sample_after_unit": "EPOCH",
        "backup_after_unit": "NEVER",
    }
    for change in changes:
        tree |= change
    if "INPAINTING" in tree["model_type"]:
        images = {
            "base_image_path": str(masked_images / "000.png"),
            "mask_image_path": str(masked_images / "000-masklabel.png"),
        }
        tree["samples"] = [{**sample, "sample_inpainting": True, **images}]
    kind, _, base = tree["base_model_name"].rpartition(" ")
    model: Path = request.getfixturevalue(base)
    if kind:
        model = {"inpainting": write_inpainting_folder, "depth": write_depth_folder}[kind](folder / "model", model)
    is_folder = tree["output_model_format"] == "DIFFUSERS"
    destination = folder / "out" / ("model" if is_folder else "model.safetensors")
    tree |= {"base_model_name": str(model), "output_model_destination": str(destination)}
    (folder / "theirs.json").write_text(json.dumps(tree))
    return folder / "theirs.json"


@pytest.mark.full
@pytest.mark.parametrize("name", [*CASES, *(pytest.param(name, marks=pytest.mark.full) for name in MORE)])
def test_it_trains_as_it_is(name: str, masked_images: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    changes, kind, variant = {**CASES, **MORE}[name]
    loaded = load_config(written(tmp_path, masked_images, changes, request))
    assert [p for p in loaded.problems if p.severity == "error"] == []
    config = laid_over(loaded.config, {"general": {"num_threads": 1}})
    assert check(config).errors == []
    ran = run(config)
    assert ran.finished.outcome == "finished", ran.ending
    result = identify(Path(ran.of(ModelSaved)[-1].path))
    assert (result.kind, result.variant) == (kind, variant)
    assert len({s.step for s in ran.of(SampleReady)}) >= 2
    assert not [w.message for w in ran.of(WarningRaised) if "could not" in w.message]
