"""The base model, from headers alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from modules.config.schema import Config
from tests.unit.preflight.setups import EMPTY_WEIGHTS, changed, write_sdxl
from trainer.preflight import check


def sdxl(config: Config, tmp: Path, **scheduler: Any) -> Config:
    """The run with an SDXL as its base model."""
    model = write_sdxl(tmp / "sdxl", **scheduler)
    return changed(config, model__family="sdxl", model__base_model=str(model))


def test_each_family_wants_its_own_models(config: Config, tmp_path: Path) -> None:
    fitting = sdxl(config, tmp_path)
    assert check(fitting).errors == []
    [problem] = check(changed(fitting, model__family="sd")).errors
    assert (problem.path, problem.advice) == ("model.base_model", "Set the model family to Stable Diffusion XL.")
    [problem] = check(changed(config, model__family="sdxl")).errors
    assert "not Stable Diffusion XL" in problem.message


def test_all_parts_of_the_family_are_wanted(config: Config, tmp_path: Path) -> None:
    broken = sdxl(config, tmp_path)
    (tmp_path / "sdxl" / "text_encoder_2" / "config.json").unlink()
    assert ["text_encoder_2" in p.message for p in check(broken).errors] == [True]


def test_epsilon_with_zero_snr_is_refused_beforehand(config: Config, tmp_path: Path) -> None:
    [problem] = check(sdxl(config, tmp_path, rescale_betas_zero_snr=True)).errors
    assert "zero terminal SNR" in problem.message


def test_a_vae_that_overflows_is_told(config: Config, tmp_path: Path) -> None:
    report = check(changed(sdxl(config, tmp_path), parts={"vae": {"dtype": "float16"}}))
    assert [(p.path, p.severity) for p in report.problems if p.path == "parts.vae.dtype"] == [
        ("parts.vae.dtype", "info")
    ]


# -- the weights of a folder


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "the weights of unet are missing"),
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1", "git-lfs pointer"),
        (b"<!doctype html><html>", "a web page"),
        ((10_000).to_bytes(8, "little") + b'{"a":1}', "incomplete"),
    ],
)
def test_weights_that_are_missing_or_broken(config: Config, tmp_path: Path, content: bytes | None, said: str) -> None:
    """Such a folder used to fail once the model was loaded."""
    weights = tmp_path / "model" / "unet" / "diffusion_pytorch_model.safetensors"
    weights.unlink()
    if content is not None:
        weights.write_bytes(content)
    [problem] = check(config).errors
    assert problem.path == "model.base_model"
    assert said in problem.message


def test_weights_in_several_files(config: Config, tmp_path: Path) -> None:
    unet = tmp_path / "model" / "unet"
    (unet / "diffusion_pytorch_model.safetensors").unlink()
    index = unet / "diffusion_pytorch_model.safetensors.index.json"
    names = [f"diffusion_pytorch_model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    index.write_text(json.dumps({"weight_map": {"a": names[0], "b": names[1]}}))
    (unet / names[0]).write_bytes(EMPTY_WEIGHTS)
    [problem] = check(config).errors
    assert names[1] in problem.message
    (unet / names[1]).write_bytes(EMPTY_WEIGHTS)
    assert check(config).errors == []
    for broken in ("{", "[]", "{}", '{"weight_map": []}'):
        index.write_text(broken)
        [problem] = check(config).errors
        assert "the list of the files that hold unet" in problem.message
