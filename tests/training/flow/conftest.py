"""The tiny model of every flow family, and the configs and the shared run of their tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modules.config.schema import Config
from modules.diffusion.flow_convention import FlowConvention
from modules.families.protocol import ModelFamily
from tests.builders.configs import laid_over, small_config
from tests.builders.editing_models import EDITING_MODELS, with_references
from tests.builders.flow_models import FLOW_MODELS, VARIANTS, WITH_VARIANTS, FlowModel, flow_model
from tests.builders.images import draw_folder
from tests.builders.pipelines import load_tiny
from tests.builders.runs import Ran, run

BASE: dict[str, Any] = {
    "data": {"latent_cache": True, "text_cache": True},
    "training": {
        "epochs": 2,
        "batch_size": 2,
        "learning_rate": 0.01,
        "noise": {"distribution": "logit_normal", "dynamic_shift": False},
    },
    "output": {"dtype": "float32", "format": "diffusers"},
}
PROMPT = {"prompt": "a disc", "steps": 2, "guidance": 2.0}
RUN_ON_EDITING_MODELS = ("test_run", "test_ways_to_train", "test_memory", "test_measures")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test on each model; on variants daily only what compares them with diffusers' pipeline.

    What has the shared config runs on the editing models, too, with the full suite.
    """
    if "name" in metafunc.fixturenames:
        is_every = metafunc.definition.get_closest_marker("daily") is None
        is_daily = is_every and metafunc.module.__name__.endswith("test_pipelines")
        names = [*FLOW_MODELS, *VARIANTS] if is_daily else WITH_VARIANTS
        if "flow" in metafunc.fixturenames:
            names = [name for name in names if flow_model(getattr(name, "values", [name])[0]).is_flow]
        if metafunc.module.__name__.endswith(RUN_ON_EDITING_MODELS) and "config" in metafunc.fixturenames:
            names = [*names, *(pytest.param(name, marks=pytest.mark.full) for name in EDITING_MODELS)]
        metafunc.parametrize("name", names, scope="module")


@pytest.fixture(scope="module")
def tiny(name: str) -> FlowModel:
    """The tiny model; of an editing one, the model whose variant it is."""
    return flow_model(EDITING_MODELS[name].of if name in EDITING_MODELS else name)


@pytest.fixture(scope="module")
def flow(tiny: FlowModel) -> FlowConvention:
    """The convention of a flow family; what has this fixture does not run on others."""
    assert tiny.spec.process.flow is not None
    return tiny.spec.process.flow


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest, name: str) -> Path:
    folder: Path = request.getfixturevalue(name)
    return folder


@pytest.fixture
def family(model: Path, tiny: FlowModel) -> ModelFamily:
    family: ModelFamily = load_tiny(model, tiny.family)
    return family


@pytest.fixture(scope="module")
def folder(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the shared run keeps its caches, which later runs of this model use."""
    return tmp_path_factory.mktemp(name)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of two shapes, with captions of different lengths."""
    captions = ["a disc", "a disc, red, in front of a wall of large stones", "two squares"]
    sizes = [(64, 64)] * 3 + [(96, 64)] * 2
    return draw_folder(tmp_path_factory.mktemp("images"), sizes=sizes, captions=captions)


@pytest.fixture(scope="module")
def config(model: Path, tiny: FlowModel, folder: Path, images: Path) -> Config:
    parts = {name: {"train": False} for name in tiny.untrained}
    own = {
        "model": {"family": {**tiny.settings, **dict.fromkeys(tiny.places, str(model))}},
        "parts": parts,
        "data": {"resolution_px": [tiny.side_px]},
    }
    plain = laid_over(
        small_config(folder, model=model, images=images), {**BASE, **own, "data": {**BASE["data"], **own["data"]}}
    )
    return with_references(plain)


@pytest.fixture(scope="module")
def watched(config: Config, tiny: FlowModel) -> Config:
    """The config of the shared run: a LoRA, validated, sampled, with backups."""
    images = config.concepts[0].path
    sides = {"width_px": tiny.side_px, "height_px": tiny.side_px}
    watched = laid_over(
        config,
        {
            "concepts": [{"path": images}, {"path": images, "kind": "validation"}],
            "validation": {"every": {"n": 1, "unit": "epoch"}, "num_timesteps": 2},
            "sampling": {"at_end": True, "prompts": [{**PROMPT, **sides, "sampler": s} for s in tiny.samplers]},
            "backup": {"every": {"n": 3, "unit": "step"}, "keep": 0},
        },
    )
    return with_references(watched)


@pytest.fixture(scope="module")
def ran(watched: Config) -> Ran:
    return run(watched)
