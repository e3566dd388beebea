"""The base model, from headers alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from modules.config.schema import Config
from modules.families.kinds.file_kind import FileKind
from modules.sampling.registry import SAMPLERS
from tests.unit.preflight.setups import EMPTY_WEIGHTS, changed, write_model, write_sdxl
from tests.unit.test_kinds import model_shapes, write_header
from trainer.preflight import check, denoiser
from trainer.preflight.denoiser import problems_of_prediction


def sdxl(config: Config, tmp: Path, **scheduler: Any) -> Config:
    """Return the run with an SDXL base model."""
    model = write_sdxl(tmp / "sdxl", **scheduler)
    return changed(config, model__family="sdxl", model__base_model=str(model))


def test_each_family_needs_its_own_models(config: Config, tmp_path: Path) -> None:
    fitting = sdxl(config, tmp_path)
    assert check(fitting).errors == []
    [problem] = check(changed(fitting, model__family="sd")).errors
    assert (problem.path, problem.advice) == ("model.base_model", "Set the model family to Stable Diffusion XL.")
    [problem] = check(changed(config, model__family="sdxl")).errors
    assert "not a Stable Diffusion XL model" in problem.message


def test_all_parts_of_the_family_are_required(config: Config, tmp_path: Path) -> None:
    broken = sdxl(config, tmp_path)
    (tmp_path / "sdxl" / "text_encoder_2" / "config.json").unlink()
    assert ["text_encoder_2" in p.message for p in check(broken).errors] == [True]


@pytest.mark.parametrize("content", ["[]", "5", "null", "{", ""])
def test_the_check_reads_any_content_of_a_models_files(content: str, config: Config) -> None:
    """A list in the place of a part's config was a traceback."""
    folder = Path(config.model.base_model)
    files = [file for file in folder.rglob("*.json") if file.parent != folder]
    assert files
    for file in files:
        before = file.read_text()
        file.write_text(content)
        check(config)
        file.write_text(before)


@pytest.mark.parametrize("what", ["scaled float8", "text encoders"])
def test_a_single_file_that_a_run_cannot_load_is_an_error(what: str, config: Config, tmp_path: Path) -> None:
    shapes = model_shapes("sd1", without="cond_stage_model." if what == "text encoders" else "-")
    dtype = "F16"
    if what == "scaled float8":
        dtype = "F8_E4M3"
        shapes |= {"scaled_fp8": ()}  # but no scales
    path = write_header(tmp_path / "m.safetensors", shapes, dtype=dtype)
    [problem] = check(changed(config, model__base_model=str(path))).errors
    assert problem.path == "model.base_model"
    assert what in problem.message


def test_epsilon_with_zero_snr_is_an_error(config: Config, tmp_path: Path) -> None:
    [problem] = check(sdxl(config, tmp_path, rescale_betas_zero_snr=True)).errors
    assert "zero terminal SNR" in problem.message


def test_a_vae_that_overflows_is_reported(config: Config, tmp_path: Path) -> None:
    report = check(changed(sdxl(config, tmp_path), parts={"vae": {"dtype": "float16"}}))
    assert [(p.path, p.severity) for p in report.problems if p.path == "parts.vae.dtype"] == [
        ("parts.vae.dtype", "info")
    ]


@pytest.mark.parametrize("name", ["sdxl-turbo", "realvis_Lightning", "SDXL-LCM", "plain"])
def test_a_distilled_model_is_reported(config: Config, tmp_path: Path, name: str) -> None:
    folder = write_sdxl(tmp_path / name)
    report = check(changed(config, model__family="sdxl", model__base_model=str(folder)))
    found = [p.severity for p in report.problems if "distilled" in p.message]
    assert found == ([] if name == "plain" else ["warning"])


def test_a_guidance_embedding_shows_a_distilled_model(config: Config, tmp_path: Path) -> None:
    distilled = sdxl(config, tmp_path)
    file = tmp_path / "sdxl" / "unet" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "time_cond_proj_dim": 256}))
    assert [p.severity for p in check(distilled).problems if "distilled" in p.message] == ["warning"]


# -- the weights of a folder


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "the weights of unet are missing"),
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1", "git-lfs pointer"),
        (b"<!doctype html><html>", "a web page"),
        ((10_000).to_bytes(8, "little") + b'{"a":1}', "incomplete"),
    ],
)
def test_weights_that_are_missing_or_broken(
    config: Config, tmp_path: Path, content: bytes | None, expected: str
) -> None:
    """Such a folder used to fail only when the model was loaded."""
    weights = tmp_path / "model" / "unet" / "diffusion_pytorch_model.safetensors"
    weights.unlink()
    if content is not None:
        weights.write_bytes(content)
    [problem] = check(config).errors
    assert problem.path == "model.base_model"
    assert expected in problem.message


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
        assert "the index of the weight files of unet" in problem.message


# -- prediction type


def of(config: Config, *, prediction: str = "epsilon", zero_snr: bool = False, **changes: Any) -> list[tuple[str, str]]:
    """Return the problems of the prediction type, with a base model of these facts."""
    found = FileKind("diffusers_folder", "A model.", "sd", prediction=prediction, zero_snr=zero_snr, is_whole=True)  # type: ignore[arg-type]
    return [(p.path, p.severity) for p in problems_of_prediction(changed(config, **changes), found)]


V = "v_prediction"
ZERO = [("model.family.zero_terminal_snr", "error")]


@pytest.mark.parametrize(
    ("own", "zero_snr", "changes", "expected"),
    [
        ("epsilon", False, {}, []),
        (V, True, {}, []),
        ("", False, {"model__family__prediction_type": V}, []),
        ("epsilon", False, {"model__family__prediction_type": V}, [("model.family.prediction_type", "warning")]),
        (V, False, {"model__family__prediction_type": "epsilon"}, [("model.family.prediction_type", "warning")]),
        (V, False, {"model__family__prediction_type": V, "model__family__zero_terminal_snr": "on"}, []),
        ("epsilon", False, {"model__family__zero_terminal_snr": "on"}, ZERO),
        ("", False, {"model__family__prediction_type": "epsilon", "model__family__zero_terminal_snr": "on"}, ZERO),
        ("epsilon", True, {"model__family__zero_terminal_snr": "off"}, []),
        ("epsilon", True, {}, [("model.base_model", "error")]),
        (V, True, {"training__noise__offset_weight": 0.1}, [("training.noise.offset_weight", "warning")]),
        (V, False, {"training__noise__offset_weight": 0.1}, []),
        ("edm", False, {}, [("model.base_model", "error")]),
    ],
)
def test_settings_that_fit_a_prediction_type(
    config: Config, own: str, zero_snr: bool, changes: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    assert of(config, prediction=own, zero_snr=zero_snr, **changes) == expected


def test_the_prediction_type_is_read_from_the_model(config: Config, tmp_path: Path) -> None:
    model = sdxl(config, tmp_path, prediction_type="v_prediction", rescale_betas_zero_snr=True)
    assert check(model).errors == []
    report = check(changed(model, model__family__prediction_type="epsilon"))
    assert [(p.path, p.severity) for p in report.problems] == [
        ("model.family.prediction_type", "warning"),
        ("model.base_model", "error"),
    ]


def test_a_sampler_that_does_not_support_the_prediction_type(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """All current samplers support both types; a future one may not."""
    limited = {**SAMPLERS, "euler": replace(SAMPLERS["euler"], predictions=("epsilon",))}
    monkeypatch.setattr(denoiser, "SAMPLERS", limited)
    samples = [{"sampler": "ddim"}, {"sampler": "euler"}, {"sampler": "euler", "enabled": False}]
    assert of(config, prediction=V, sampling__prompts=samples) == [("sampling.prompts.1.sampler", "error")]
    assert of(config, prediction="epsilon", sampling__prompts=samples) == []
    assert of(config, prediction="", sampling__prompts=samples) == [], "not known before it is loaded"


# -- repositories


def downloaded(config: Config, cache: Path, class_name: str) -> Config:
    """Return the run with a repository as its base model, whose small files were downloaded before."""
    repository = cache / "models--owner--model"
    write_model(repository / "snapshots" / "abc", _class_name=class_name)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    return changed(config, model__base_model="owner/model", model__hub_cache_dir=str(cache))


def test_a_downloaded_repository_is_checked(config: Config, tmp_path: Path) -> None:
    here = downloaded(config, tmp_path / "hub", "StableDiffusionPipeline")
    report = check(here)
    assert report.problems == ()
    assert report.preview is not None
    assert report.preview.model.startswith("A Stable Diffusion 1.x")
    [problem] = check(changed(here, model__family="sdxl")).errors
    assert "not a Stable Diffusion XL model" in problem.message


def test_missing_files_of_a_repository_can_be_downloaded(config: Config, tmp_path: Path) -> None:
    here = downloaded(config, tmp_path / "hub", "StableDiffusionPipeline")
    (tmp_path / "hub" / "models--owner--model/snapshots/abc/unet/diffusion_pytorch_model.safetensors").unlink()
    assert check(here).errors == []
    [problem] = check(changed(here, model__offline=True)).errors
    assert "the weights of unet are missing" in problem.message


def test_offline_a_repository_must_be_downloaded(config: Config, tmp_path: Path) -> None:
    config = changed(config, model__base_model="owner/model", model__hub_cache_dir=str(tmp_path / "hub"))
    assert check(config).errors == []
    [problem] = check(changed(config, model__offline=True)).errors
    assert problem.message == "The repository owner/model has not been downloaded, and offline mode is on."


def test_a_moved_repository_is_reported_unless_it_is_downloaded(config: Config, tmp_path: Path) -> None:
    moved = changed(config, model__base_model="runwayml/stable-diffusion-v1-5", model__hub_cache_dir=str(tmp_path))
    [problem] = [p for p in check(moved).problems if p.path == "model.base_model"]
    assert problem.severity == "warning"
    assert "stable-diffusion-v1-5/stable-diffusion-v1-5" in problem.advice
    snapshot = tmp_path / "models--runwayml--stable-diffusion-v1-5" / "snapshots" / "abc"
    write_model(snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc", encoding="utf-8")
    assert not [p for p in check(moved).problems if p.path == "model.base_model"]
