"""Configs of small runs."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from modules.adapters.lora import Lora
from modules.config.codec import decode, encode
from modules.config.schema import Config
from modules.families.registry import FAMILIES, files_of
from modules.formats.repository import index_file

# Two projections of each attention block, of itself and of the text: a third of a small run's time is spent on the
# layers of an adapter, and what they all do is tested with the adapters.
FEW_LAYERS = {"layers": "custom", "custom_layers": "attn1.to_q, attn2.to_v"}
# The default of the program.
USUAL_LAYERS = {"layers": Lora().layers, "custom_layers": ""}


def small_config(folder: Path, *, model: Path, images: Path, **changes: Any) -> Config:
    """Return the config of a run of a few seconds, with `changes` (nested sections) applied.

    All parts that can be are trained, the large text encoders, too.
    """
    family = family_of(model)
    step_px = max(16, FAMILIES[family].size_step_px)
    has_unet = FAMILIES[family].denoiser.model_class.endswith(":UNet2DConditionModel")
    tree: dict[str, Any] = {
        "darkroom_version": 7,
        "general": general_in(folder),
        "model": {"base_model": str(model), "family": family},
        "parts": {part.name: {"train": True} for part in FAMILIES[family].trainable_parts if part.defaults},
        "data": {"resolution_px": [64], "bucket_step_px": step_px, "loader_threads": 1},
        "concepts": [{"path": str(images)}],
        "training": {"epochs": 2, "batch_size": 2, "learning_rate": 1e-3},
        "adapter": {"rank": 2, "alpha": 2.0, **(FEW_LAYERS if has_unet else {})},
        "sampling": {"every": {"unit": "never"}, "at_start": False, "at_end": False},
        "backup": {"every": {"unit": "never"}},
        "output": {"destination": str(folder / "out" / "lora.safetensors"), "format": "kohya"},
    }
    return _decoded(_laid_over(tree, changes))


def general_in(folder: Path) -> dict[str, Any]:
    """Return the general settings of a run on the CPU whose workspace and cache are in a folder."""
    return {
        "workspace_dir": str(folder / "workspace"),
        "cache_dir": str(folder / "cache"),
        "train_device": "cpu",
        "num_threads": 1,
        "tensorboard": False,
    }


def family_of(model: Path) -> str:
    """Return the family of a model's folder; the default family for any other path."""
    file = index_file(model)
    if file is None:
        return "sd"
    index = json.loads(file.read_text())
    return next((name for name in FAMILIES if index["_class_name"] in files_of(name).pipelines), "sd")


def config_fixture(model: str, changes: dict[str, Any] | None = None) -> Any:
    """A fixture `config`: a small run on `images`, of the tiny model in the folder of another fixture."""

    @pytest.fixture
    def small(request: pytest.FixtureRequest, images: Path, tmp_path: Path) -> Config:
        return laid_over(small_config(tmp_path, model=request.getfixturevalue(model), images=images), changes or {})

    return small


def laid_over(config: Config, changes: dict[str, Any], *, replaced: Collection[str] = ()) -> Config:
    """Return a config with nested sections applied; those named in `replaced` keep nothing of what they were."""
    return _decoded(_laid_over(encode(config), changes, replaced))


def _decoded(tree: dict[str, Any]) -> Config:
    loaded = decode(tree)
    assert not loaded.problems, loaded.problems
    return loaded.config


def _laid_over(tree: dict[str, Any], changes: dict[str, Any], replaced: Collection[str] = ()) -> dict[str, Any]:
    result = dict(tree)
    for key, value in changes.items():
        mergeable = isinstance(value, dict) and isinstance(result.get(key), dict) and key not in replaced
        result[key] = _laid_over(result[key], value, replaced) if mergeable else value
    return result
