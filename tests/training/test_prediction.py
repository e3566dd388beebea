"""The user's overrides of a model's own settings: prediction type, zero terminal SNR, clip skip."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from modules.families.parts.noise_process import scheduler_with
from modules.system.errors import DarkroomError
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.pipelines import load_tiny
from tests.builders.runs import run
from trainer.events import StepFinished


@pytest.mark.parametrize(
    ("prediction", "zero_snr", "expected"),
    [
        ("auto", "auto", {"prediction_type": "epsilon", "rescale_betas_zero_snr": False, "beta_end": 0.01}),
        (
            "v_prediction",
            "auto",
            {"prediction_type": "v_prediction", "rescale_betas_zero_snr": False, "beta_end": 0.01},
        ),
        ("v_prediction", "on", {"prediction_type": "v_prediction", "rescale_betas_zero_snr": True, "beta_end": 0.01}),
        ("epsilon", "off", {"prediction_type": "epsilon", "rescale_betas_zero_snr": False, "beta_end": 0.01}),
    ],
)
def test_the_users_settings_override_the_models(prediction: str, zero_snr: str, expected: Any) -> None:
    there = {"prediction_type": "epsilon", "rescale_betas_zero_snr": False, "beta_end": 0.01}
    assert scheduler_with(there, prediction=prediction, zero_terminal_snr=zero_snr) == expected
    assert there["prediction_type"] == "epsilon"


def test_a_v_prediction_override_applies_everywhere(tiny_sd: Path) -> None:
    plain = load_tiny(tiny_sd, "sd")
    overridden = load_tiny(tiny_sd, "sd", prediction_type="v_prediction", zero_terminal_snr="on")
    assert (plain.process.prediction_type, overridden.process.prediction_type) == ("epsilon", "v_prediction")
    assert (plain.lora_naming.prediction, overridden.lora_naming.prediction) == ("epsilon", "v_prediction")
    assert overridden.scheduler_config()["prediction_type"] == "v_prediction"  # samples and a saved model follow it
    assert overridden.scheduler_config()["rescale_betas_zero_snr"]
    clean, noise = torch.randn(1, 4, 8, 8), torch.randn(1, 4, 8, 8)
    last = torch.tensor([overridden.process.num_timesteps - 1])
    assert torch.equal(overridden.process.add_noise(clean, noise, last), noise)
    assert not torch.equal(plain.process.add_noise(clean, noise, last), noise)


def test_epsilon_with_zero_terminal_snr_is_refused(tiny_sd: Path) -> None:
    with pytest.raises(DarkroomError, match="epsilon with zero terminal SNR") as caught:
        load_tiny(tiny_sd, "sd", zero_terminal_snr="on")
    assert "v-prediction" in caught.value.advice


def test_a_lora_names_the_overridden_prediction_type(tiny_sd: Path, tmp_path: Path) -> None:
    predictions, losses = [], []
    for prediction in ("auto", "v_prediction"):
        folder = tmp_path / prediction
        images = draw_folder(folder / "images", sizes=[(64, 64)] * 2)
        config = small_config(folder, model=tiny_sd, images=images)
        ran = run(laid_over(config, {"model": {"family": {"prediction_type": prediction}}, "training": {"epochs": 1}}))
        with safe_open(ran.finished.model_path, framework="pt") as file:
            predictions.append(file.metadata()["modelspec.prediction_type"])
        losses.append([step.loss for step in ran.of(StepFinished)])
    assert predictions == ["epsilon", "v"]
    assert losses[0] != losses[1]


def test_the_second_encoder_may_skip_layers_of_its_own(tiny_sdxl: Path) -> None:
    prompts = ["a disc"]
    with torch.no_grad():
        both_0, both_1, mixed = (
            load_tiny(tiny_sdxl, "sdxl", clip_skip=first, clip_skip_2=second)
            for first, second in ((0, None), (1, None), (0, 1))
        )
        states = [family.encode_prompts(prompts).text.states_BLD for family in (both_0, both_1, mixed)]
    width = both_0.towers["text_encoder"].encoder.config.hidden_size
    assert torch.equal(states[2][..., :width], states[0][..., :width])
    assert torch.equal(states[2][..., width:], states[1][..., width:])
    assert not torch.equal(states[0][..., width:], states[1][..., width:])
    assert len({family.text_identity() for family in (both_0, both_1, mixed)}) == 3


def test_a_config_may_build_only_its_caches(tiny_sd: Path, tmp_path: Path) -> None:
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 2)
    config = small_config(tmp_path, model=tiny_sd, images=images)
    ran = run(laid_over(config, {"general": {"only_cache": True}}))
    assert (ran.finished.outcome, ran.of(StepFinished)) == ("cached", [])
    assert any((tmp_path / "cache").rglob("*.safetensors"))
    assert not (tmp_path / "out").exists()
