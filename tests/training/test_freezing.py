"""Parts that stop learning in mid-run: no crash, frozen weights stay, the others go on, nothing left ends in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from modules.config.schema import Config
from tests.builders.configs import laid_over, small_config
from tests.builders.matrix import matrix
from tests.builders.runs import Ran, assert_equal_tensors, run
from trainer.events import BackupSaved, StepFinished, WarningRaised

STOP = {"n": 2, "unit": "epoch"}


def config_of(tiny_sd: Path, pictures: Path, folder: Path, **changes: Any) -> Config:
    base = small_config(
        folder,
        model=tiny_sd,
        pictures=pictures,
        training={"epochs": 4, "batch_size": 4},
        backup={"every": {"n": 1, "unit": "epoch"}, "keep": 0},
    )
    return laid_over(base, changes)


def weights_by_step(ran: Ran) -> dict[int, dict[str, Any]]:
    return {b.step: load_file(Path(b.path) / "weights.safetensors") for b in ran.of(BackupSaved)}


TRAINED = {"tiny_sd": ("unet", "text_encoder"), "tiny_sdxl": ("unet", "text_encoder", "text_encoder_2")}
SDXL_STOPS = [
    ("block", True, "tiny_sdxl", "text_encoder_2", "adapter"),
    pytest.param("off", False, "tiny_sdxl", "text_encoder", "full", marks=pytest.mark.full),
    pytest.param("whole", False, "tiny_sdxl", "text_encoder_2", "adapter", marks=pytest.mark.full),
    pytest.param("block", True, "tiny_sdxl", "unet", "full", marks=pytest.mark.full),
]


@pytest.mark.parametrize(
    ("mode", "offload", "model", "stopping", "trains"),
    [
        *matrix(["off", "block", "whole"], [False, True], ["tiny_sd"], ["text_encoder", "unet"], ["adapter", "full"]),
        *SDXL_STOPS,
    ],
)
def test_a_part_stops_and_the_other_goes_on(
    request: pytest.FixtureRequest,
    pictures: Path,
    tmp_path: Path,
    mode: str,
    offload: bool,
    model: str,
    stopping: str,
    trains: str,
) -> None:
    """OneTrainer#549 stopped the text encoder after 30 epochs and died at the next step."""
    memory = {"checkpointing": mode, "offload_activations": offload}
    parts = {name: dict(memory) for name in TRAINED[model]}
    parts[stopping]["stop_after"] = STOP
    changes = {"parts": parts, "general": {"temp_device": "cpu:1"}}
    config = config_of(request.getfixturevalue(model), pictures, tmp_path, **changes)
    ran = run(laid_over(config, {"training": {"trains": trains}}))
    assert ran.finished.outcome == "finished"
    weights = weights_by_step(ran)
    steps = ran.of(StepFinished)
    at_stop = next(s.step for s in steps if s.epoch == 2 and s.epoch_step == s.epoch_steps)
    last = steps[-1].step
    for name in weights[last]:
        is_frozen = name.startswith(f"{stopping}.")
        assert weights[at_stop][name].equal(weights[last][name]) == is_frozen, name
    assert {s.training_parts for s in steps if s.epoch <= 2} == {TRAINED[model]}
    assert {s.training_parts for s in steps if s.epoch > 2} == {tuple(p for p in parts if p != stopping)}
    assert any("stopped learning" in w.message for w in ran.of(WarningRaised))


def test_optimizer_state_of_a_frozen_part_is_let_go(tiny_sd: Path, pictures: Path, tmp_path: Path) -> None:
    ran = run(config_of(tiny_sd, pictures, tmp_path, parts={"text_encoder": {"stop_after": STOP}}))
    state = load_file(Path(ran.finished.backup_path) / "optimizer.safetensors")
    assert state
    assert all(name.startswith("unet.") for name in state)


@pytest.mark.parametrize("resume_epoch", [1, 2, 3])
def test_resumed_before_at_and_after_the_stop_ends_bit_equal(
    tiny_sd: Path, pictures: Path, tmp_path: Path, resume_epoch: int
) -> None:
    changes = {"parts": {"text_encoder": {"stop_after": STOP}}, "training": {"ema": {"mode": "train_device"}}}
    config = config_of(tiny_sd, pictures, tmp_path, **changes)
    straight = run(config)
    backups = straight.of(BackupSaved)
    resumed = run(config, resume_from=Path(backups[resume_epoch - 1].path))
    assert_equal_tensors(straight.weights, resumed.weights)
    assert resumed.of(StepFinished)[-1].training_parts == ("unet",)


def test_when_nothing_is_left_the_run_ends_early_and_saves(tiny_sd: Path, pictures: Path, tmp_path: Path) -> None:
    stop = {"stop_after": {"n": 3, "unit": "step"}}
    ran = run(config_of(tiny_sd, pictures, tmp_path, parts={"unet": stop, "text_encoder": stop}))
    assert (ran.finished.outcome, ran.finished.step) == ("nothing_left", 3)
    assert Path(ran.finished.model_path).is_file()
    again = run(
        config_of(tiny_sd, pictures, tmp_path, parts={"unet": stop, "text_encoder": stop}),
        resume_from=Path(ran.finished.backup_path),
    )
    assert (again.finished.outcome, again.finished.step) == ("nothing_left", 3)
