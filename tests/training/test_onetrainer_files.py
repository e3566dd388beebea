"""Generated files of OneTrainer train on the tiny models, as far as the check before a start allows their settings.

A file starts with OneTrainer's defaults; drawn settings are added one after the other. A setting that the check refuses
is left out as a user would, and the refusal has to state a setting of the file and what to do.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from modules.config.codec import decode, encode
from modules.config.rules import problems_of
from modules.config.schema import Config
from modules.system.problem import Problem
from tests.builders.configs import laid_over, small_config
from tests.builders.flow_models import FLOW_MODELS, flow_model
from tests.builders.images import draw_folder, draw_mask
from tests.builders.onetrainer_files import METHODS, NEWEST, VALUES, Tree, aged, files, since
from tests.builders.runs import losses, run
from trainer.preflight import check

_TYPES = {
    "tiny_sd": "STABLE_DIFFUSION_15",
    "tiny_sdxl": "STABLE_DIFFUSION_XL_10_BASE",
    **{
        name: next(iter(tiny.onetrainer.values())).keys["model_type"]
        for name in FLOW_MODELS
        if (tiny := flow_model(name)).onetrainer
    },
}
ROWS = [(name, method) for name in _TYPES for method in METHODS]
# Settings of a machine, of other files, and of the time that a run takes.
_NOT_HERE = {
    *("train_device", "temp_device", "multi_gpu", "device_indexes", "attention_mechanism", "compile", "only_cache"),
    *("base_model_name", "workspace_dir", "cache_dir", "output_model_destination", "lora_model_name"),
    *("continue_last_backup", "epochs", "resolution", "huggingface_cache_dir", "validation", "dataloader_threads"),
    *("learning_rate", "sample_after_unit", "backup_after_unit", "save_every_unit", "tensorboard", "debug_mode"),
    *("gradient_accumulation_steps", "batch_size", "tensorboard_always_on", "ema_update_step_interval"),
    *("concepts", "samples", "embedding", "additional_embeddings", "align_prop", "layer_filter"),
}


@pytest.fixture(scope="module")
def masked_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four images, two steps of them, with captions and masks."""
    folder = draw_folder(
        tmp_path_factory.mktemp("theirs") / "images", sizes=[(64, 64)] * 4, captions=["a disc like a <zog>"] * 4
    )
    for number in range(4):
        draw_mask(folder / f"{number:03}-masklabel.png")
    return folder


@pytest.mark.daily(2)
@pytest.mark.parametrize(("tiny_name", "method"), ROWS)
def test_a_file_trains(
    tiny_name: str, method: str, request: pytest.FixtureRequest, masked_images: Path, tmp_path: Path
) -> None:
    model: Path = request.getfixturevalue(tiny_name)
    version = 4 + ROWS.index((tiny_name, method)) % (NEWEST - 3)
    drawn = dict(files([version], seed=1))[f"{version} {_TYPES[tiny_name]} {method}"]
    start: Tree = {"__version": NEWEST, **{key: values[0] for key, values in since(VALUES, version).items()}}
    start |= {key: drawn[key] for key in ("model_type", "training_method", "output_model_format")}
    start |= {"train_dtype": "BFLOAT_16", "batch_size": 2, "base_model_name": str(model)}
    start["ema_update_step_interval"] = 1
    if method == "EMBEDDING":
        start["embedding"] = {"placeholder": "<zog>", "token_count": 1}

    def placed(tree: Tree) -> Config:
        config = decode(aged(tree, version)).config
        return laid_over(config, _here(config, model, masked_images, tmp_path))

    refused = errors_of(placed(start))
    if not refused:
        config, refused = with_settings(start, drawn, placed)
        refused += check(config).errors
        ran = run(config)
        assert ran.finished.outcome == "finished", ran.ending
        assert losses(ran)
        assert all(map(math.isfinite, losses(ran)))
    for problem in refused:
        assert problem.path, problem
        assert problem.advice, problem


def errors_of(config: Config) -> list[Problem]:
    return [problem for problem in problems_of(config) if problem.severity == "error"]


def with_settings(start: Tree, drawn: Tree, placed: Any) -> tuple[Config, list[Problem]]:
    """Return the config with all drawn settings that the rules allow next to each other, and what is refused."""
    tree, config, refused = start, placed(start), list[Problem]()
    for key, value in drawn.items():
        if key in _NOT_HERE or key.startswith("__"):
            continue
        if isinstance(value, dict):
            # GGUF needs a file; a CPU does not compute with float16 weights in bfloat16.
            value = {n: inner for n, inner in value.items() if n != "model_name" and inner not in ("GGUF", "FLOAT_16")}
        added = {**tree, key: value}
        errors = errors_of(placed(added))
        if errors:
            refused += errors
        else:
            tree, config = added, placed(added)
    return config, refused


def _here(config: Config, model: Path, images: Path, folder: Path) -> dict[str, Any]:
    """The settings of this machine and of a short run."""
    ours = encode(small_config(folder, model=model, images=images))
    is_folder = config.output.model_format == "diffusers" and config.training.trains in ("full", "vae")
    return {
        "general": ours["general"],
        "concepts": ours["concepts"],
        "data": {"resolution_px": [64], "bucket_step_px": ours["data"]["bucket_step_px"], "loader_threads": 1},
        "parts": {name: {"offload_fraction": 0.0} for name in config.parts},
        "training": {"epochs": 1},
        "sampling": {"prompts": [], "every": {"unit": "never"}},
        "backup": {"every": {"unit": "never"}, "save_every": {"unit": "never"}},
        "output": {"destination": str(folder / "out" / ("model" if is_folder else "model.safetensors"))},
    }
