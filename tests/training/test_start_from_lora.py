"""Learning on from a LoRA file: the same function at the first step, in each form, and words for what does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from modules.config.schema import Config
from modules.settings.edit import set_path
from tests.builders.configs import laid_over, small_config
from tests.builders.runs import Ran, run
from trainer.events import ValidationFinished
from trainer.preflight import check

FIRST: dict[str, Any] = {
    "training": {"epochs": 1, "learning_rate": 0.02},
    "adapter": {"rank": 4, "alpha": 2.0, "layers": "all"},
    "validation": {"every": {"n": 1, "unit": "epoch"}},
}


@pytest.fixture
def config(any_model: Path, images: Path, tmp_path: Path) -> Config:
    """A LoRA on every layer of a tiny model of each family, convolutions and all text encoders included."""
    concepts = [{"path": str(images)}, {"path": str(images), "kind": "validation"}]
    small = small_config(tmp_path, model=any_model, images=images)
    return laid_over(small, {**FIRST, "concepts": concepts, "output": {"dtype": "float32"}})


def trained_file(config: Config, path: Path, **output: Any) -> tuple[Path, Ran]:
    ran = run(laid_over(config, {"output": {"destination": str(path), **output}}))
    return Path(ran.finished.model_path), ran


LOKR = {"name": "lokr", "rank": 1, "use_tucker": True, "alpha": 2.0}
OFT = {"name": "oft", "block_size": 4, "scaled": True, "rescale": True}


FORMS = [("kohya", {}), ("diffusers", {}), ("kohya", LOKR), ("kohya", OFT)]
DAILY = [("tiny_sd", 0), ("tiny_sdxl", 1), ("tiny_sdxl", 2), ("tiny_sd", 3)]


@pytest.mark.full
@pytest.mark.parametrize(
    ("any_model", "form", "adapter"),
    [
        pytest.param(model, *FORMS[i], marks=[] if (model, i) in DAILY else pytest.mark.full, id=f"{model}-{i}")
        for model in ("tiny_sd", "tiny_sdxl")
        for i in range(len(FORMS))
    ],
    indirect=["any_model"],
)
def test_it_continues_where_the_file_ended(config: Config, tmp_path: Path, form: str, adapter: dict[str, Any]) -> None:
    if adapter:
        config, _ = set_path(config, "adapter", {"layers": "all", **adapter})
    file, first = trained_file(config, tmp_path / "first.safetensors", format=form)
    # Another alpha or a limit: the strength of what was learned stays.
    other = {"constraint": 1.0} if adapter.get("name") == "oft" else {"alpha": 8.0}
    onwards = laid_over(config, {"adapter": {"start_from": str(file), **other}})
    assert not check(onwards).errors
    second = run(onwards)
    plain, ended = (first.of(ValidationFinished)[i].loss for i in (0, -1))
    begun = second.of(ValidationFinished)[0].loss
    assert begun == pytest.approx(ended, rel=1e-5)
    assert abs(begun - plain) > 1e-3 * plain


def test_a_file_that_is_not_a_lora_is_reported_before_the_run(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    config = small_config(tmp_path, model=tiny_sd, images=images)
    wrong = laid_over(config, {"adapter": {"start_from": str(tiny_sd / "vae" / "diffusion_pytorch_model.safetensors")}})
    assert [e.path for e in check(wrong).errors] == ["adapter.start_from"]
    missing = laid_over(config, {"adapter": {"start_from": str(tmp_path / "nowhere.safetensors")}})
    assert [e.path for e in check(missing).errors] == ["adapter.start_from"]


def test_the_weights_are_those_of_the_file(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    base = laid_over(small_config(tmp_path, model=tiny_sd, images=images), {"training": {"epochs": 1}})
    file, first = trained_file(base, tmp_path / "first.safetensors", dtype="float32")
    still = {"training": {"learning_rate": 1e-12, "optimizer": {"name": "adamw", "weight_decay": 0.0}}}
    second = run(laid_over(base, {"adapter": {"start_from": str(file)}, **still}))
    for name, value in first.weights.items():
        torch.testing.assert_close(second.weights[name], value, rtol=0, atol=1e-9)
