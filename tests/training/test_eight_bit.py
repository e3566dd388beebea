"""AdamW with 8-bit state (bitsandbytes): its arguments, and its steps where the package is installed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from modules.optim.build import build_optimizer
from modules.optim.optimizers.adam import AdamW8bit
from modules.optim.param_groups import TrainGroup, optimizer_groups
from modules.system.errors import DarkroomError
from tests.builders.configs import small_config
from tests.builders.runs import assert_equal_tensors, run
from trainer.events import BackupSaved, StepFinished
from trainer.preflight.requirements import problems_of_packages


def group_of() -> TrainGroup:
    weight = torch.randn(96, 64, generator=torch.Generator().manual_seed(0))
    return TrainGroup("unet", {"unet.w": nn.Parameter(weight)}, 1e-3)


def test_it_receives_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, dict[str, Any]]] = []

    def adamw_8bit(groups: Any, **options: Any) -> torch.optim.Optimizer:
        calls.append((groups, options))
        return torch.optim.AdamW(groups)

    package = SimpleNamespace(optim=SimpleNamespace(AdamW8bit=adamw_8bit))
    monkeypatch.setitem(sys.modules, "bitsandbytes", package)
    group = group_of()
    build_optimizer([group], AdamW8bit(beta1=0.8, beta2=0.95, eps=1e-6, weight_decay=0.2, min_8bit_size=100))
    expected = {"betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.2, "min_8bit_size": 100}
    [(groups, options)] = calls
    assert options == expected
    assert [g["params"] for g in groups] == [list(group.parameters.values())]


def test_a_missing_package_is_named_before_and_in_the_run(
    monkeypatch: pytest.MonkeyPatch, tiny_sd: Path, images: Path, tmp_path: Path
) -> None:
    config, other = (
        small_config(tmp_path, model=tiny_sd, images=images, training={"optimizer": {"name": name}})
        for name in ("adamw_8bit", "adamw")
    )
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)  # as if it were not there
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (problem,) = problems_of_packages(config)
    assert problem.path == "training.optimizer"
    assert "python -m trainer install bitsandbytes" in problem.advice
    assert problem.remedy == "packages"
    assert not list(problems_of_packages(other))
    with pytest.raises(DarkroomError, match="needs the package bitsandbytes"):
        build_optimizer([group_of()], AdamW8bit())


def test_its_state_is_in_8_bits_and_its_steps_are_near_those_of_adamw() -> None:
    ours, exact = group_of(), group_of()
    one = build_optimizer([ours], AdamW8bit(weight_decay=0.1))
    other = torch.optim.AdamW(optimizer_groups([exact]), weight_decay=0.1)
    start = ours.parameters["unet.w"].detach().clone()
    for seed in range(10):
        gradient = torch.randn(96, 64, generator=torch.Generator().manual_seed(seed)) + 1.0
        for group, optimizer in ((ours, one), (exact, other)):
            group.parameters["unet.w"].grad = gradient.clone()
            optimizer.step()
    state = one.state[ours.parameters["unet.w"]]
    assert state["state1"].dtype == state["state2"].dtype == torch.uint8
    away, expected = ours.parameters["unet.w"].detach() - start, exact.parameters["unet.w"].detach() - start
    assert (away - expected).norm() < 0.1 * expected.norm()


@pytest.mark.full
def test_a_run_fused_and_resumed_ends_as_the_plain_one(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    ended = []
    for fused in (False, True):
        config = small_config(
            tmp_path / str(fused),
            model=tiny_sd,
            images=images,
            training={
                "trains": "full",
                "batch_size": 1,
                "clip_grad_norm": None,
                "low_precision_updates": "stochastic",
                "optimizer": {"name": "adamw_8bit", "min_8bit_size": 64, "fused_back_pass": fused},
            },
            parts={"unet": {"dtype": "bfloat16"}},
            backup={"every": {"n": 1, "unit": "epoch"}, "keep": 0},
        )
        ran = run(config)
        assert len(ran.of(StepFinished)) == 10
        resumed = run(config, resume_from=Path(ran.of(BackupSaved)[0].path))
        assert_equal_tensors(ran.weights, resumed.weights)
        ended.append(ran.weights)
    assert_equal_tensors(*ended)
