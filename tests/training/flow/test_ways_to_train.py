"""Other ways to train every flow family: all weights, each adapter, masks, quantized weights, rewards."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from modules.config.codec import decode, encode
from modules.config.schema import Config
from modules.families.kinds.identify import identify
from modules.families.protocol import ModelFamily
from modules.families.registry import published_model
from modules.formats.repository import index_file
from tests.builders.configs import laid_over
from tests.builders.editing_models import EDITING_MODELS, with_references
from tests.builders.flow_models import FlowModel
from tests.builders.pipelines import linear_layers
from tests.builders.runs import losses, run
from trainer.events import RewardMeasured
from trainer.preflight import check


@pytest.mark.daily(2)
def test_a_fine_tune_is_a_folder_that_loads_again(config: Config, model: Path, tiny: FlowModel, tmp_path: Path) -> None:
    tuned = {
        "training": {"trains": "full", "learning_rate": 1e-3, "epochs": 1},
        "output": {"model_format": "diffusers", "destination": str(tmp_path / "tuned")},
    }
    saved = Path(run(laid_over(config, tuned)).finished.model_path)
    assert identify(saved).family == tiny.family
    index_of_it = index_file(saved)
    assert index_of_it is not None
    index = json.loads(index_of_it.read_text())
    processors = published_model(identify(saved).model).index
    for tokenizer in (folder.name for folder in model.glob("*tokenizer*")):
        settings = json.loads((saved / tokenizer / "tokenizer_config.json").read_text())
        assert index[tokenizer][:2] == processors.get(tokenizer, ["transformers", settings["tokenizer_class"]])
    scheduler = Path("scheduler") / "scheduler_config.json"
    after = json.loads((saved / scheduler).read_text())
    if (model / scheduler).is_file():  # a modular pipeline may make its own
        assert json.loads((model / scheduler).read_text()).items() <= after.items()
    again = laid_over(config, {"model": {"base_model": str(saved)}, "training": {"epochs": 1}})
    assert run(again).finished.outcome == "finished"


@pytest.mark.daily(1)
@pytest.mark.parametrize("adapter", [{"name": "loha"}, {"name": "oft"}, {"name": "lora", "decompose": True}])
def test_other_adapters_train_on_every_layer(
    config: Config, tiny: FlowModel, family: ModelFamily, tmp_path: Path, adapter: dict[str, Any]
) -> None:
    output = {"format": "kohya", "destination": str(tmp_path / "other.safetensors")}
    tree = encode(laid_over(config, {"training": {"epochs": 1}, "output": output}))
    if adapter["name"] == "oft":
        adapter = {**adapter, **tiny.oft}
    ran = run(decode({**tree, "adapter": {**adapter, "layers": "all"}}).config)
    denoiser = family.spec.denoiser.name
    idle = [n for n in linear_layers(family) if not any(w.startswith(f"{denoiser}.{n}.") for w in ran.weights)]
    assert not idle
    assert identify(Path(ran.finished.model_path)).family == family.spec.name


@pytest.mark.daily(1)
def test_masked_training_and_prior_preservation(config: Config, images: Path, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    shutil.copytree(images, folder)
    for file in folder.glob("*.png"):
        mask = Image.new("L", Image.open(file).size)
        mask.paste(255, (0, 0, 32, 32))
        mask.save(folder / f"{file.stem}-masklabel.png")
    once: dict[str, Any] = {"concepts": [{"path": str(folder)}], "training": {"epochs": 1}}
    plain, masked, preserved = (
        losses(run(with_references(laid_over(config, {**once, "masks": masks}))))[0]
        for masks in ({}, {"enabled": True}, {"enabled": True, "prior_preservation_weight": 0.5})
    )
    assert masked < plain
    assert preserved == masked  # before the first update the model is as it was


@pytest.mark.daily(1)
def test_prior_prediction_keeps_what_the_model_predicts(config: Config, images: Path) -> None:
    """The half of the images whose target is the model's own prediction has hardly a loss in the first epoch."""
    once = {"epochs": 1, "learning_rate": 1e-5}
    learned, mixed = (
        sum(losses(run(with_references(laid_over(config, {"concepts": concepts, "training": once})))))
        for concepts in (
            [{"path": str(images)}, {"path": str(images), "kind": kind}] for kind in ("training", "prior_prediction")
        )
    )
    assert mixed == pytest.approx(learned / 2, rel=0.2)


@pytest.mark.daily(1)
@pytest.mark.parametrize("dtype", ["int8", "nfloat4", "float8"])
def test_it_trains_on_quantized_weights(config: Config, tiny: FlowModel, dtype: str) -> None:
    spec = tiny.spec
    frozen = {name: {"dtype": dtype, "train": False} for name in spec.names_of("text_encoder")}
    parts = {spec.denoiser.name: {"dtype": dtype}, **frozen}
    trained = laid_over(config, {"parts": parts, "training": {"epochs": 1}})
    assert not check(trained).errors
    assert run(trained).finished.outcome == "finished"


@pytest.mark.full
def test_alignprop_raises_the_reward(config: Config, name: str, tiny: FlowModel) -> None:
    """Editing models are refused: what is sampled for a reward has no references."""
    method = {"name": "alignprop", "steps": 4, "backprop_steps": 2, "guidance": 2.0, "gradient_truncation": "fixed"}
    followed = laid_over(
        config,
        {
            "general": {"temp_device": "cpu:1", "debug_checks": True},
            "parts": {tiny.spec.denoiser.name: {"checkpointing": "block"}},
            "training": {"method": method, "epochs": 4, "learning_rate": 0.01},
            "reward": {"models": [{"kind": "brightness"}], "measure_every": {"n": 12, "unit": "step"}, "num_images": 4},
        },
    )
    errors = [problem.path for problem in check(followed).errors]
    if name in EDITING_MODELS:
        assert errors == ["training.method"]
        return
    assert not errors
    before, after = (m.followed for m in run(followed).of(RewardMeasured))
    assert before is not None
    assert after is not None
    least = 0.0002 if tiny.places else 0.005  # the random decoder of a prior gives nearly equal images
    assert after > before + least
