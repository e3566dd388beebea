"""The rules of the loss and of the scaled learning rate, and the losses of other programs' configs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from modules.config.imports.any_file import load_any
from modules.config.rules import problems_of
from modules.config.rules.every_setting import settings_without_effect
from modules.config.rules.optimizers import plausible_learning_rate
from modules.config.schema import Config
from modules.config.sections.loss import Loss
from modules.objectives.loss_mix import loss_mix_of
from modules.settings.edit import get_path
from modules.settings.field import records_of
from tests.builders.configs import laid_over, small_config
from trainer.export.metadata import _huber


def mix(**strengths: float) -> dict[str, Any]:
    """Settings of the loss with these strengths, the others as they are by default."""
    return {"mix": {name: {"strength": strength} for name, strength in strengths.items()}}


ALL_0 = mix(mse=0.0)
AT = "mix.mse.strength"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return small_config(tmp_path, model=tmp_path, images=tmp_path)


def of_loss(config: Config, **loss: Any) -> list[tuple[str, str]]:
    found = problems_of(laid_over(config, {"training": {"loss": loss}}))
    return [(p.path.removeprefix("training.loss."), p.severity) for p in found if p.path.startswith("training.loss")]


def test_a_loss_without_any_strength_is_an_error(config: Config) -> None:
    assert of_loss(config, **ALL_0) == [(AT, "error")]
    assert of_loss(config, **mix(mse=0.0, smooth_l1=0.1)) == []


def test_p2_with_the_gamma_of_min_snr_is_a_warning(config: Config) -> None:
    assert of_loss(config, weighting="p2") == [("gamma", "warning")]
    assert of_loss(config, weighting="p2", gamma=1.0) == []
    assert of_loss(config, weighting="min_snr") == []


def test_settings_that_a_method_does_not_use_are_warned_of(config: Config) -> None:
    dpo = laid_over(config, {"training": {"method": "dpo"}})
    changes = {"weighting": "p2", **mix(mae=1.0), "scaler": "batch", "learned_weighting": True}
    assert of_loss(dpo, **changes) == [("weighting", "warning")]
    [problem] = settings_without_effect(laid_over(dpo, {"training": {"loss": changes}}))
    assert "Loss weighting, Learned weighting, MAE strength, Loss scaler have no effect" in problem.message
    assert "Diffusion-DPO has a loss of its own" in problem.message
    assert of_loss(dpo) == []
    only_reward = laid_over(config, {"training": {"method": {"name": "alignprop", "probability": 1.0}}})
    assert of_loss(only_reward, **ALL_0) == [(AT, "warning")]
    both = laid_over(config, {"training": {"method": {"name": "alignprop", "probability": 0.5}}})
    assert of_loss(both, **ALL_0) == [(AT, "error")]


def test_the_scaled_rate_is_checked(config: Config) -> None:
    training = {"learning_rate": 0.02, "batch_size": 4, "accumulation_steps": 4}
    assert not list(plausible_learning_rate(laid_over(config, {"training": training})))
    scaled = laid_over(config, {"training": {**training, "learning_rate_scaler": "both"}})
    [problem] = plausible_learning_rate(scaled)
    assert problem.message.startswith("A learning rate of 0.08, 0.02 times 4 by the learning rate scaler, is far above")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"loss_type": "l2", "huber_c": 0.2, "huber_schedule": "snr"}, {}),
        ({"loss_type": "l1"}, {"mse.strength": 0, "mae.strength": 1}),
        (
            {"loss_type": "huber"},
            {"mse.strength": 0, "huber.strength": 1, "huber.delta": 0.1, "huber.schedule": "snr",
             "huber.form": "pseudo_huber"},
        ),
        (
            {"loss_type": "smooth_l1", "huber_schedule": "exponential", "huber_c": "0.3"},
            {"mse.strength": 0, "smooth_l1.strength": 1, "smooth_l1.delta": 0.3, "smooth_l1.schedule": "exponential",
             "smooth_l1.form": "pseudo_huber"},
        ),
        (
            {"loss_type": "huber", "huber_schedule": "constant", "huber_c": 0.3, "huber_scale": 2},
            {"mse.strength": 0, "huber.strength": 1, "huber.delta": 0.6, "huber.form": "pseudo_huber"},
        ),
        ({"debiased_estimation_loss": True}, {"weighting": "debiased"}),
    ],
)  # fmt: skip
def test_losses_of_kohya(tmp_path: Path, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    file = tmp_path / "kohya.json"
    file.write_text(json.dumps({"network_module": "networks.lora", "network_dim": 8, **theirs}))
    loaded = load_any(file)
    loss = loaded.config.training.loss
    changed = {r.path: get_path(loss, r.path) for r in records_of(Loss) if get_path(loss, r.path) != r.default}
    assert {path.removeprefix("mix."): value for path, value in changed.items()} == ours
    assert loaded.config.unknown == {}
    if any(path.endswith("form") for path in ours) and "huber_scale" not in theirs:
        again = {"huber_c": 0.1, "huber_schedule": "snr", **theirs}
        exported = _huber(loss_mix_of(loss.mix))
        assert {k: str(v) for k, v in exported.items()} == {k: str(v) for k, v in again.items()}


def test_kohyas_max_norm(tmp_path: Path) -> None:
    file = tmp_path / "kohya.json"
    for value, expected in ((1.0, 1.0), ("0.5", 0.5), (0, None)):
        file.write_text(json.dumps({"network_module": "networks.lora", "network_dim": 8, "scale_weight_norms": value}))
        adapter = load_any(file).config.adapter
        assert getattr(adapter, "max_norm") == expected  # noqa: B009 - not a field of every adapter


def test_losses_of_onetrainer_are_supported(tmp_path: Path) -> None:
    file = tmp_path / "onetrainer.json"
    keys = {
        "mse_strength": 0.5,
        "log_cosh_strength": 0.5,
        "huber_strength": 0.1,
        "loss_weight_fn": "DEBIASED_ESTIMATION",
    }
    file.write_text(
        json.dumps({"__version": 10, **keys, "loss_scaler": "BOTH", "learning_rate_scaler": "GLOBAL_BATCH"})
    )
    loaded = load_any(file)
    training = loaded.config.training
    assert (training.loss.scaler, training.learning_rate_scaler, training.loss.weighting) == (
        "both",
        "global_batch",
        "debiased",
    )
    assert not [p for p in problems_of(loaded.config) if p.path.startswith("training.l")]
