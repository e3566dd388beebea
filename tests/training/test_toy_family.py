"""A family without a VAE, registered by a test: it trains, samples, resumes, is recognised, and passes every check.

Whatever here needs a VAE fails: none is there. `tests/builders/toy_family` is all that the program knows of it.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from modules.config.rules import RULES
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.families.kinds.identify import identify, who_loads_file
from modules.families.registry import FAMILIES, registered
from modules.formats.safetensors_io import read_safetensors
from modules.system.hardware import GpuMemory
from tests.builders.budgets import budget_of_run
from tests.builders.configs import config_fixture, laid_over
from tests.builders.runs import assert_equal_tensors, losses, run
from tests.builders.toy_family.build import write_toy_folder
from tests.builders.toy_family.spec import TOY
from trainer.__main__ import main
from trainer.events import BackupSaved, ModelSaved, SampleReady, ValidationFinished
from trainer.phases import CACHE_IMAGES, SAMPLE_DECODE, TRAIN, needed_parts, phase_facts
from trainer.preflight import check
from trainer.preflight.budget import disk_need, memory_problems
from trainer.preflight.run_budget import memory_estimate
from ui.forms.records import groups_of

BASE: dict[str, Any] = {
    "data": {"resolution_px": [32], "bucket_step_px": 8, "latent_cache": True, "text_cache": True},
    "training": {"epochs": 2, "batch_size": 2, "learning_rate": 0.01},
    "parts": {"text_encoder": {"train": False}},
    "output": {"dtype": "float32"},
}


@pytest.fixture(scope="module", autouse=True)
def toy() -> Iterator[None]:
    with registered(TOY):
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    return write_toy_folder(tmp_path_factory.mktemp("models") / "toy-pixel")


config = config_fixture("model", BASE)


def test_it_trains_validates_samples_and_saves_a_lora_of_its_own(config: Config, images: Path) -> None:
    watched = laid_over(
        config,
        {
            "concepts": [{"path": str(images)}, {"path": str(images), "kind": "validation"}],
            "validation": {"every": {"n": 1, "unit": "epoch"}, "num_timesteps": 2},
            "sampling": {
                "at_end": True,
                "prompts": [{"prompt": "a disc", "width_px": 32, "height_px": 32, "steps": 2}],
            },
        },
    )
    assert not check(watched).errors
    ran = run(watched)
    assert len(losses(ran)) == 6
    measured = [e.loss for e in ran.of(ValidationFinished)]
    assert measured[-1] < measured[0]
    [sample] = ran.of(SampleReady)
    assert Image.open(sample.path).size == (32, 32)
    saved = ran.of(ModelSaved)[-1]
    found, loads = who_loads_file(Path(saved.path))
    assert (found.kind, found.family, found.model, found.facts["form"]) == ("lora", "toy_pixel", "toy_pixel", "kohya")
    assert "for Toy pixel diffusion" in found.sentence
    assert loads == ()  # no program but this one samples such models


@pytest.mark.full
@pytest.mark.parametrize("caches", [True, False])
def test_a_trained_text_encoder_and_no_cache(config: Config, caches: bool) -> None:
    """Pixels come from the cache or not, bit for bit the same."""
    learning = {"parts": {"text_encoder": {"train": True}, "unet": {"checkpointing": "block"}}}
    ran = run(laid_over(config, {**learning, "data": {"latent_cache": caches, "text_cache": False}}))
    names = {name.partition(".")[0] for name in ran.weights}
    assert names == {"unet", "text_encoder"}
    assert losses(ran) == losses(run(laid_over(config, learning)))


def test_a_run_that_is_stopped_and_resumed_ends_the_same(config: Config) -> None:
    whole = run(laid_over(config, {"backup": {"every": {"n": 2, "unit": "step"}, "keep": 0}}))
    first = Path(whole.of(BackupSaved)[0].path)
    assert_equal_tensors(run(config, resume_from=first).weights, whole.weights)


def test_its_lora_is_inspected_converted_and_trained_further(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path(run(config).finished.model_path)
    assert main(["inspect", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["family"] == "toy_pixel"
    peft, back = tmp_path / "peft.safetensors", tmp_path / "kohya.safetensors"
    assert main(["convert", str(file), str(peft)]) == 0
    assert main(["convert", str(peft), str(back)]) == 0
    assert identify(peft).family == "toy_pixel"
    assert identify(back).model == "toy_pixel"
    assert read_safetensors(back)[0].keys() == read_safetensors(file)[0].keys()
    assert not check(laid_over(config, {"adapter": {"start_from": str(peft)}})).errors
    assert losses(run(laid_over(config, {"adapter": {"start_from": str(peft)}, "training": {"epochs": 1}})))


@pytest.mark.full
def test_a_fine_tune_is_saved_as_a_folder_that_loads_again(config: Config, model: Path, tmp_path: Path) -> None:
    tuned = {
        "training": {"trains": "full", "learning_rate": 1e-3, "epochs": 1},
        "output": {"model_format": "diffusers", "destination": str(tmp_path / "tuned")},
    }
    folder = Path(run(laid_over(config, tuned)).finished.model_path)
    found = identify(folder)
    assert (found.kind, found.family, found.facts.get("missing")) == ("diffusers_folder", "toy_pixel", None)
    assert {p.name for p in folder.iterdir() if p.is_dir()} == {"unet", "text_encoder", "tokenizer", "scheduler"}
    assert losses(run(laid_over(config, {"model": {"base_model": str(folder)}})))


def test_preflight_has_an_estimate_without_a_vae(config: Config) -> None:
    report = check(config)
    assert not report.errors
    sizes = {Size(32, 32): 5}
    memory = memory_estimate(config, sizes)
    assert memory is not None
    training = memory.phase("training")
    assert training is not None
    assert dict(training.parts)["weights"] > 0
    assert dict(training.parts)["activations"] > 0
    encoding = memory.phase("encoding images")
    assert encoding is not None
    assert dict(encoding.parts).get("activations", 0) == 0
    need = disk_need(budget_of_run(config, sizes), sizes, num_captions=3)
    assert need is not None
    assert need.latents_bytes > 5 * 3 * 32 * 32 * 4
    uncached = laid_over(config, {"data": {"latent_cache": False}})
    assert memory_estimate(uncached, sizes) is not None
    [problem] = memory_problems(budget_of_run(uncached, sizes), memory_of=lambda device: GpuMemory(10**5, 10**5))
    assert "does not fit in the GPU's memory" in problem.message


def test_phases_forms_and_rules_know_its_parts_alone(config: Config) -> None:
    facts = phase_facts(config)
    assert needed_parts(CACHE_IMAGES, TOY, facts) == frozenset()
    assert needed_parts(SAMPLE_DECODE, TOY, facts) == frozenset()
    assert needed_parts(TRAIN, TOY, facts) == {"unet"}
    titles = [g.title for g in groups_of(config, ("parts",))]
    assert titles == ["UNet", "Text encoder"]
    assert not [p for rule in RULES for p in rule(config) if p.severity == "error"]


def test_registering_a_family_leaves_nothing_behind() -> None:
    with pytest.raises(ValueError, match="already"), registered(TOY):
        pass
    assert TOY.name in FAMILIES
    module, _, name = TOY.files.partition(":")
    assert hasattr(importlib.import_module(module), name)
