"""The limit of the norms of LoRA layers, alone and in runs with everything that touches the weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from modules.adapters.lora_layers import LoraShape, attach_lora
from modules.config.rules import problems_of
from modules.config.schema import Config
from modules.optim.param_groups import TrainGroup
from modules.optim.updates.weight_norms import NormLimit
from modules.settings.edit import set_path
from tests.builders.configs import laid_over, small_config
from tests.builders.runs import assert_equal_tensors, run
from trainer.events import StepFinished
from trainer.run.stepper import lora_weights
from trainer.run_folder.backup import list_backups

LIMIT = 0.02


class Layers(nn.Module):
    """Two linear layers of one shape, one of another, and a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 5), nn.Linear(6, 5), nn.Linear(5, 7)
        self.conv = nn.Conv2d(3, 4, 3)


def product_norm(factors: Sequence[torch.Tensor], scale: float) -> float:
    down, up = (f.detach().float().flatten(1) for f in factors)
    return scale * float((up @ down).norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_only_layers_above_the_limit_are_scaled_to_it(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    names = ["first", "second", "third", "conv"]
    adapter = attach_lora("unet", Layers(), names, LoraShape(2, 3.0, 0.0, dtype), seed=1)
    group = TrainGroup("unet", adapter.parameters(), 1e-3)
    factors = {n: [p for k, p in group.parameters.items() if f".{n}." in k] for n in names}
    with torch.no_grad():
        for number, name in enumerate(names):
            for parameter in factors[name]:
                parameter.copy_(torch.randn_like(parameter) * (0.01 if number == 1 else 1.0))
    group.master_weight("master")
    before = {n: [p.detach().clone() for p in factors[n]] for n in names}
    found = NormLimit(lora_weights([adapter], [group]), 0.5).apply()
    assert found["scaled_layers"] == 3
    assert all(torch.equal(a, b) for a, b in zip(before["second"], factors["second"], strict=True))
    norms = [product_norm(factors[n], 1.5) for n in names]
    assert found["weight_norm"] == pytest.approx(sum(norms) / 4, rel=1e-5 if dtype == torch.float32 else 1e-2)
    for name in ("first", "third", "conv"):
        norm = product_norm(before[name], 1.5)
        for old, new in zip(before[name], factors[name], strict=True):  # sd-scripts: each by the root of the ratio
            torch.testing.assert_close(new.float(), old.float() * (0.5 / norm) ** 0.5, rtol=1e-2, atol=1e-6)
            assert dtype == torch.float32 or torch.equal(new, group.master_weights[_name(group, new)].master.to(dtype))


def _name(group: TrainGroup, parameter: torch.Tensor) -> str:
    return next(n for n, p in group.parameters.items() if p is parameter)


def test_a_frozen_unit_is_left_alone() -> None:
    adapter = attach_lora("unet", Layers(), ["first"], LoraShape(2, 2.0, 0.0, torch.float32), seed=1)
    group = TrainGroup("unet", adapter.parameters(), 1e-3, is_training=False)
    with torch.no_grad():
        for parameter in group.parameters.values():
            parameter.fill_(1.0)
    assert NormLimit(lora_weights([adapter], [group]), 0.1).apply() == {}
    assert all(bool((p == 1).all()) for p in group.parameters.values())


@pytest.fixture
def config(tiny_sd: Path, images: Path, tmp_path: Path) -> Config:
    return small_config(
        tmp_path,
        model=tiny_sd,
        images=images,
        training={
            "epochs": 1,
            "learning_rate": 0.01,
            "loss": {"learned_weighting": True, "mix": {"smooth_l1": {"strength": 0.5}}},
        },
        adapter={"max_norm": LIMIT, "dropout": 0.1},
        backup={"every": {"n": 1, "unit": "step"}, "keep": 0},
    )


def norms_of(weights: dict[str, torch.Tensor]) -> list[float]:
    downs = [name for name in weights if ".lora_A." in name]
    return [product_norm((weights[d], weights[d.replace(".lora_A.", ".lora_B.")]), 1.0) for d in downs]


def test_a_run_in_16_bits_resumes_to_the_bit_with_learned_weights_and_an_average(config: Config) -> None:
    in_16_bits: dict[str, Any] = {
        "training": {
            "batch_size": 1,
            "accumulation_steps": 2,
            "ema": {"mode": "train_device", "decay": 0.5},
            "learning_rate_scaler": "both",
        },
        "adapter": {"dtype": "bfloat16"},
        "parts": {"text_encoder": {"train": True}},
    }
    config = laid_over(config, in_16_bits)
    whole = run(config)
    steps = whole.of(StepFinished)
    assert max(norms_of(whole.weights)) == pytest.approx(LIMIT, rel=1e-4)
    assert steps[-1].metrics["scaled_layers"] > 0
    assert 0 < steps[-1].metrics["weight_norm"] <= LIMIT * 1.000001
    assert steps[0].metrics["unscaled_loss"] == pytest.approx(steps[0].loss)  # the learned weights begin with 1
    assert steps[-1].metrics["unscaled_loss"] != pytest.approx(steps[-1].loss, rel=1e-3)
    for step in steps:
        assert step.learning_rates["unet"] == pytest.approx(0.01 * 2**0.5)  # the one that is used
        assert step.gradient_norms.keys() == {"unet", "text_encoder"}
        assert sum(n**2 for n in step.gradient_norms.values()) ** 0.5 == pytest.approx(step.gradient_norm, rel=1e-5)
    backups = list_backups(Path(whole.finished.backup_path).parents[1])
    last = {name: load_file(backups[-1].path / f"{name}.safetensors") for name in ("weights", "ema", "method")}
    assert set(last["method"]) == {f"learned_weighting.{name}" for name in ("weights", "means", "squares")}
    assert not any("learned" in name for name in (*last["weights"], *last["ema"]))
    resumed = run(config, resume_from=backups[len(backups) // 2 - 1].path)
    for name, tensors in last.items():
        assert_equal_tensors(tensors, load_file(Path(resumed.finished.backup_path) / f"{name}.safetensors"))


def test_a_fused_backward_pass_keeps_the_limit_too(config: Config) -> None:
    fused = {"training": {"optimizer": {"name": "adamw", "fused_back_pass": True}, "clip_grad_norm": None}}
    ran = run(laid_over(config, {**fused, "backup": {"every": {"unit": "never"}}}))
    assert max(norms_of(ran.weights)) == pytest.approx(LIMIT, rel=1e-4)


def test_what_cannot_be_limited_is_refused_by_name(config: Config) -> None:
    def found(**changes: Any) -> list[str]:
        return [p.path for p in problems_of(laid_over(config, changes)) if p.severity == "error"]

    assert found() == []
    rounded = {"training": {"low_precision_updates": "stochastic"}, "adapter": {"dtype": "bfloat16"}}
    assert found(**rounded) == ["adapter.max_norm"]
    assert found(adapter={"init": "pissa"}) == ["adapter.max_norm"]
    averaged, _ = set_path(config, "training.optimizer", "schedule_free_adamw")
    assert "adapter.max_norm" in [p.path for p in problems_of(averaged)]
    assert found(training={"trains": "full", "low_precision_updates": "stochastic"}) == []
