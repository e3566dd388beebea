"""Prodigy: one estimate for all weights, made once a step, whatever these are kept in; runs that resume with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import prodigyopt
import pytest
import torch
from torch import nn

from modules.optim.build import build_optimizer
from modules.optim.optimizers.d_adaptation import Prodigy
from modules.optim.param_groups import TrainGroup, exact_parameters, freeze
from modules.optim.updates import sliced_step
from modules.optim.updates.master_weights import Rounding
from modules.system.seeds import derive_seed
from tests.builders.configs import small_config
from tests.builders.runs import assert_equal_tensors, run
from trainer.events import BackupSaved, RunFinished, StepFinished
from trainer.methods.protocol import StepLoss
from trainer.preflight import check
from trainer.step.stepper import Stepper

PARTS = ("unet", "text_encoder")
NUM_STEPS = 12


def groups_in(dtype: torch.dtype, rounding: Rounding | None) -> list[TrainGroup]:
    generator = torch.Generator().manual_seed(0)
    groups = []
    for part in PARTS:
        values = [torch.randn(8, 8, generator=generator).bfloat16() for _ in range(4)]
        groups.append(TrainGroup(part, {f"{part}.{i}": nn.Parameter(v.to(dtype)) for i, v in enumerate(values)}, 1.0))
        if rounding is not None:
            groups[-1].master_weight(rounding)
    return groups


def gradient(name: str, step: int) -> torch.Tensor:
    """The same in 16 bits and in float32; mostly uphill, so that there is progress to measure."""
    generator = torch.Generator().manual_seed(derive_seed(step, name))
    return (torch.randn(8, 8, generator=generator) + 1.0).bfloat16()


def stepper_of(groups: list[TrainGroup], **settings: float) -> Stepper:
    return Stepper(
        groups,
        build_optimizer(groups, Prodigy.model_validate(settings)),
        scaler=torch.amp.GradScaler("cpu", enabled=False),
        clip_grad_norm=None,
        rate_factor=lambda step: 1.0,
        ema=None,
        rounding_generators=lambda step, name: torch.Generator().manual_seed(derive_seed(step, name)),
    )


def step(stepper: Stepper, groups: list[TrainGroup], number: int) -> None:
    for group in groups:
        for name, parameter in group.parameters.items() if group.is_training else ():
            parameter.grad = gradient(name, number).to(parameter.dtype)
    none = StepLoss(torch.ones(()), num_samples=1, group_samples=1, is_last_micro_batch=True)
    stepper.backward(none)
    stepper.finish(number)


def its_own(num_steps: int) -> tuple[prodigyopt.Prodigy, dict[str, nn.Parameter]]:
    """The authors' loop over float32 weights."""
    groups = groups_in(torch.float32, None)
    weights = {n: p for g in groups for n, p in g.parameters.items()}
    optimizer = prodigyopt.Prodigy([{"params": list(g.parameters.values())} for g in groups], slice_p=11)
    for number in range(num_steps):
        for name, weight in weights.items():
            weight.grad = gradient(name, number).float()
        optimizer.step()
    return optimizer, weights


def estimates(optimizer: torch.optim.Optimizer) -> list[tuple[float, int]]:
    return [(group["d"], group["k"]) for group in optimizer.param_groups]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_its_steps_are_the_authors_also_with_16_bit_weights(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """Master weights are exact, so weights in 16 bits, of which a slice holds one, end where float32 ends."""
    monkeypatch.setattr(sliced_step, "SLICE_WEIGHTS", 64)
    groups = groups_in(dtype, "master")
    stepper = stepper_of(groups)
    for number in range(NUM_STEPS):
        step(stepper, groups, number)
    optimizer, weights = its_own(NUM_STEPS)
    assert estimates(stepper.optimizer) == estimates(optimizer)
    assert {k for _, k in estimates(optimizer)} == {NUM_STEPS}
    assert optimizer.param_groups[0]["d"] > 10 * Prodigy().d0
    for name, value in exact_parameters(groups).items():
        assert torch.equal(value, weights[name])


def test_stochastic_rounding_counts_each_step_once() -> None:
    groups = groups_in(torch.bfloat16, "stochastic")
    stepper = stepper_of(groups, d0=0.01)  # steps that 16 bits can hold
    for number in range(NUM_STEPS):
        step(stepper, groups, number)
    assert {k for _, k in estimates(stepper.optimizer)} == {NUM_STEPS}
    assert stepper.optimizer.param_groups[0]["d"] > 0.01


@pytest.mark.parametrize("frozen", [0, 1])
def test_a_part_that_stops_leaves_the_estimate_to_the_others(frozen: int) -> None:
    groups = groups_in(torch.float32, None)
    stepper = stepper_of(groups)
    for number in range(NUM_STEPS):
        step(stepper, groups, number)
    [(before, _), _] = estimates(stepper.optimizer)
    freeze(groups[frozen], stepper.optimizer)
    step(stepper, groups, NUM_STEPS)
    [(after, k)] = estimates(stepper.optimizer)
    assert k == NUM_STEPS + 1
    assert after >= before > Prodigy().d0


def test_nothing_is_printed_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    build_optimizer(groups_in(torch.float32, None), Prodigy(weight_decay=0.1))
    assert capsys.readouterr().out == ""


def lora_run(folder: Path, tiny_sd: Path, images: Path, **training: Any) -> Any:
    return small_config(
        folder,
        model=tiny_sd,
        images=images,
        parts={"unet": {"train": True}, "text_encoder": {"train": True, "stop_after": {"n": 2, "unit": "epoch"}}},
        training={
            "epochs": 4,
            "learning_rate": 1.0,
            "accumulation_steps": 2,
            "optimizer": {"name": "prodigy", "d0": 1e-4, "weight_decay": 0.01},
            "ema": {"mode": "train_device", "decay": 0.5},
            **training,
        },
        backup={"every": {"n": 1, "unit": "epoch"}, "keep": 0},
    )


def estimate_in(backup: str) -> dict[str, Any]:
    values = json.loads((Path(backup) / "state.json").read_text())["optimizer_values"]
    return {key: value for key, value in values.items() if key.startswith("group ")}


@pytest.mark.full
def test_a_run_finds_its_rate_and_resumes_bit_for_bit(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    """With accumulation, an average, and a part that stops between the backup and the end."""
    config = lora_run(tmp_path, tiny_sd, images)
    ran = run(config)
    assert ran.of(RunFinished)
    backups = [event.path for event in ran.of(BackupSaved)]
    first, last = estimate_in(backups[0]), estimate_in(backups[-1])
    assert first.keys() == {f"group {p}|{k}" for p in PARTS for k in ("d", "d_max", "d_numerator", "k")}
    assert last.keys() == {key for key in first if "unet" in key}
    assert last["group unet|d"] > 1e-4
    steps = ran.of(StepFinished)
    assert steps[0].effective_rates == dict.fromkeys(PARTS, steps[0].effective_rates["unet"])
    assert steps[-1].effective_rates == {"unet": pytest.approx(last["group unet|d"])}
    assert last["group unet|k"] == len(ran.of(StepFinished))
    for backup in backups[:3]:
        assert_equal_tensors(ran.weights, run(config, resume_from=Path(backup)).weights)


def test_parts_with_rates_of_their_own_are_refused_by_name(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    config = lora_run(tmp_path, tiny_sd, images, learning_rate=0.5)
    assert not check(config).errors
    parts = {"text_encoder": config.parts["text_encoder"].model_copy(update={"learning_rate": 1.0})}
    (error,) = check(config.model_copy(update={"parts": {**config.parts, **parts}})).errors
    assert error.path == "parts.text_encoder.learning_rate"
    assert "Prodigy estimates a single learning rate" in error.message
