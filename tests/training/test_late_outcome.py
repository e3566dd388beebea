"""The outcome of a step is read while the next one is computed, which changes nothing but the time it is known.

On a CPU it is known at once. Here it is read as late as on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from modules.config.schema import Config
from modules.optim.build import build_optimizer
from modules.optim.ema import Ema
from modules.optim.optimizers.adamw import AdamW
from modules.optim.param_groups import TrainGroup, exact_parameters, named_parameters, optimizer_state
from modules.optim.updates.master_weights import Rounding
from modules.system.devices import CPU, LateRead
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.runs import Ran, assert_equal_tensors, run, stop_at
from trainer.events import BackupSaved, RunFailed, RunStarted, StepFinished, ValidationFinished
from trainer.methods.denoise import Denoise
from trainer.methods.protocol import StepContext, StepLoss
from trainer.step import outcome as outcome_module
from trainer.step.stepper import Stepper

BROKEN = (3, 8)  # steps, counted from 0; from the third on, none of these weights is watched any more
NUM_STEPS = 12


class ReadLater(LateRead):
    """Values that arrive when they are waited for."""

    @property
    def is_ready(self) -> bool:
        return self._read is not None


@pytest.fixture(scope="module")
def config(tiny_sd: Path, tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("late")
    return small_config(
        folder,
        model=tiny_sd,
        images=draw_folder(folder / "images", sizes=[(64, 64)] * 8),
        training={
            "epochs": 3,
            "ema": {"mode": "train_device", "decay": 0.9},
            "schedule": {"name": "linear", "warmup_steps": 1},
        },
        adapter={"dropout": 0.1},
        backup={"every": {"n": 5, "unit": "step"}, "keep": 0},
        validation={"every": {"n": 6, "unit": "step"}, "num_timesteps": 1},
        concepts=[{"path": str(folder / "images")}, {"path": str(folder / "images"), "kind": "validation"}],
    )


@pytest.fixture(scope="module")
def log() -> Iterator[list[str]]:
    """What happens in a run: the loss of some steps is NaN."""
    noted: list[str] = []
    plain = Denoise.loss

    def loss(self: Denoise, batch: Any, context: StepContext) -> StepLoss:
        result = plain(self, batch, context)
        noted.append(f"loss {batch.step + 1}")
        return replace(result, loss=result.loss * (float("nan") if batch.step in BROKEN else 1.0))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Denoise, "loss", loss)
        yield noted


@pytest.fixture(scope="module")
def at_once(config: Config, log: list[str], tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A run whose outcomes are read at once."""
    return run_in(config, tmp_path_factory.mktemp("now"), log)


def read_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome_module, "LateRead", ReadLater)


def run_in(config: Config, folder: Path, log: list[str], **options: Any) -> Ran:
    """Run from the start, with a first dry run whose losses do not count, and note the reports among the losses."""
    general = {"workspace_dir": str(folder / "workspace"), "cache_dir": config.general.cache_dir}
    config = laid_over(config, {"general": general, "output": {"destination": str(folder / "out.safetensors")}})
    on_event = options.pop("on_event", lambda event, send: None)

    def note(event: Any, send: Any) -> None:
        if isinstance(event, RunStarted):
            log.clear()
        if isinstance(event, StepFinished | ValidationFinished | BackupSaved):
            log.append(f"{type(event).__name__} {event.step}")
        on_event(event, send)

    return run(config, on_event=note, **options)


def reported(ran: Ran) -> list[dict[str, Any]]:
    """The reports of the steps, without times."""
    names = ("epoch", "epoch_step", "step", "loss", "smoothed_loss", "gradient_norm", "num_skipped", "learning_rates")
    return [{name: getattr(step, name) for name in names} for step in ran.of(StepFinished)]


def states(ran: Ran) -> dict[str, torch.Tensor]:
    """The tensors of all backups of a run: weights, the optimizer's state, EMA."""
    folders = [Path(saved.path) for saved in ran.of(BackupSaved)]
    files = [(folder, file) for folder in folders for file in sorted(folder.rglob("*.safetensors"))]
    return {f"{d.name}/{f.name}/{n}": t for d, f in files for n, t in load_file(f).items()}


def test_a_run_ends_bit_for_bit_as_one_that_waits(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: list[str], at_once: Ran
) -> None:
    read_late(monkeypatch)
    late = run_in(config, tmp_path / "late", log)
    events = [entry for entry in log if not entry.startswith("loss 0")]
    assert reported(late) == reported(at_once)
    assert [s.loss is None for s in late.of(StepFinished)] == [n in BROKEN for n in range(NUM_STEPS)]
    assert [v.loss for v in late.of(ValidationFinished)] == [v.loss for v in at_once.of(ValidationFinished)]
    one, other = states(at_once), states(late)
    assert len(one) > 50
    assert_equal_tensors(one, other)
    # Steps 5, 6, 10 and 12 are followed by other work; the reports of all others come with the loss of the next step.
    tail = events[events.index("loss 6") :]
    assert tail[:9] == ["loss 6", "StepFinished 6", "ValidationFinished 6", "loss 7", "loss 8", "StepFinished 7",
                        "loss 9", "StepFinished 8", "loss 10"]  # fmt: skip
    assert tail[9:12] == ["StepFinished 9", "StepFinished 10", "BackupSaved 10"]


def test_a_stop_while_an_outcome_is_on_its_way(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: list[str], at_once: Ran
) -> None:
    """The run is stopped after a report, in the middle of the next step: both are whole in the backup."""
    read_late(monkeypatch)
    stopped = run_in(config, tmp_path / "late", log, on_event=stop_at(7))
    assert stopped.finished.outcome == "stopped"
    assert stopped.finished.step == 8  # step 7 was reported within step 8
    assert [s.step for s in stopped.of(StepFinished)] == [1, 2, 3, 4, 5, 6, 7, 8]
    resumed = run_in(config, tmp_path / "late", log, resume_from=Path(stopped.finished.backup_path))
    assert reported(stopped) + reported(resumed) == reported(at_once)
    assert_equal_tensors(at_once.weights, resumed.weights)


def test_too_many_skipped_steps_end_the_run_where_they_happened(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: list[str]
) -> None:
    config = laid_over(config, {"training": {"max_consecutive_skipped_steps": 0}})
    read_late(monkeypatch)
    ran = run_in(config, tmp_path / "late", log)
    assert isinstance(ran.ending, RunFailed)
    assert "The run was stopped at step 4." in ran.ending.message
    assert [s.step for s in ran.of(StepFinished)] == [1, 2, 3]
    backup = Path(ran.ending.backup_path)
    assert backup.name.endswith("4")
    assert all(t.isfinite().all() for t in load_file(backup / "weights.safetensors").values())


# -- the stepper alone


def stepper_of(rounding: Rounding | None, *, scale: float | None) -> tuple[list[TrainGroup], Stepper]:
    generator = torch.Generator().manual_seed(0)
    dtype = torch.float32 if rounding is None else torch.bfloat16
    weights = {f"unet.{i}": nn.Parameter(torch.randn(8, 4, generator=generator).to(dtype)) for i in range(3)}
    groups = [TrainGroup("unet", weights, 1e-2)]
    if rounding is not None:
        groups[0].master_weight(rounding)
    stepper = Stepper(
        groups,
        build_optimizer(groups, AdamW()),
        scaler=torch.amp.GradScaler("cpu", enabled=scale is not None, init_scale=scale or 1.0),
        clip_grad_norm=1.0,
        rate_factor=lambda step: 1.0,
        ema=Ema(
            named_parameters(groups),
            decay=0.9,
            update_every_steps=1,
            device=CPU,
            exact=lambda: exact_parameters(groups),
        ),
        rounding_generators=lambda step, name: torch.Generator().manual_seed(step),
    )
    return groups, stepper


def take_step(groups: list[TrainGroup], stepper: Stepper, step: int, factor: float = 1.0) -> Any:
    weights = [p.float() for g in groups for p in g.parameters.values()]
    loss = torch.stack([(w * (i + step + 1)).square().mean() for i, w in enumerate(weights)]).sum() * factor
    stepper.begin(step)
    stepper.backward(StepLoss(loss, num_samples=1, group_samples=1, is_last_micro_batch=True))
    return stepper.update(step)


@pytest.mark.parametrize("factor", [float("nan"), float("inf")])
@pytest.mark.parametrize("rounding", [None, "master", "stochastic"])
def test_a_broken_step_leaves_no_trace(
    monkeypatch: pytest.MonkeyPatch, rounding: Rounding | None, factor: float
) -> None:
    """Neither in weights nor in the optimizer or the average, although the host learns of it after the update."""
    read_late(monkeypatch)
    ended = []
    for breaks in (False, True):
        groups, stepper = stepper_of(rounding, scale=1024.0)
        for step in range(4):
            if breaks and step == 2:
                pending = take_step(groups, stepper, 99, factor)
                assert not pending.is_ready
            take_step(groups, stepper, step)
        assert not breaks or pending.read().was_skipped  # the next step has read it
        pending = take_step(groups, stepper, 4)
        assert not pending.is_ready
        assert not pending.read().was_skipped
        assert stepper.ema is not None
        tensors, _ = optimizer_state(stepper.optimizer, named_parameters(groups)) if rounding is None else ({}, {})
        ended.append(
            {**exact_parameters(groups), **{f"ema {n}": t for n, t in stepper.ema.averages.items()}, **tensors}
        )
        assert stepper.ema.num_updates == 5
        assert stepper.scaler.get_scale() == (512.0 if breaks else 1024.0)
    assert_equal_tensors(*ended)
