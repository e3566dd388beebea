"""Training units: two of them live on one part, each with its own learning rate, span and optimizer state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from modules.config.schema import Config
from modules.optim.ema import Ema
from modules.optim.param_groups import TrainGroup, named_parameters, optimizer_groups
from modules.settings.every import Every
from modules.system.devices import CPU
from tests.builders.runs import assert_equal_tensors
from trainer.methods.denoise import Denoise
from trainer.methods.protocol import StepLoss
from trainer.run.checkpoint import read_state, restore, write_state
from trainer.step.counters import Counters
from trainer.step.freezing import freeze_finished_units, training_parts
from trainer.step.outcome import StepOutcome
from trainer.step.stepper import Stepper

EMBEDDING = "embedding:zog"
LAST_STEP, STOP_AT = 6, 3


class TextEncoder(nn.Module):
    """A token's vector, and a layer with an adapter behind it."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.token = nn.Parameter(torch.randn(4, generator=generator))
        self.adapter = nn.Sequential(nn.Dropout(0.0), nn.Linear(4, 4, bias=False))
        self.adapter[1].weight.data = torch.randn(4, 4, generator=generator)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        adapted: torch.Tensor = self.adapter(x * self.token)
        return adapted


class Toy:
    """A run of an embedding and an adapter on the same text encoder, of which one may stop."""

    def __init__(self, *, stopping: str, is_fused: bool = False) -> None:
        self.encoder = TextEncoder().train()
        stop = {"stop_after": Every(n=STOP_AT, unit="step")}
        self.units = [
            TrainGroup(
                EMBEDDING,
                {"text_encoder.token": self.encoder.token},
                0.1,
                part="text_encoder",
                **(stop if stopping == EMBEDDING else {}),  # type: ignore[arg-type]
            ),
            TrainGroup(
                "text_encoder",
                {"text_encoder.adapter.1.weight": self.encoder.adapter[1].weight},
                0.01,
                module=self.encoder.adapter,
                part="text_encoder",
                **(stop if stopping == "text_encoder" else {}),  # type: ignore[arg-type]
            ),
        ]
        self.stepper = Stepper(
            self.units,
            torch.optim.AdamW(optimizer_groups(self.units)),
            scaler=torch.amp.GradScaler("cpu", enabled=False),
            clip_grad_norm=None if is_fused else 1.0,
            rate_factor=lambda step: 1.0,
            ema=Ema(named_parameters(self.units), decay=0.9, update_every_steps=1, device=CPU),
            is_fused=is_fused,
        )
        self.counters = Counters()

    def step(self) -> StepOutcome:
        """Make one step, and freeze what is over after it."""
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(self.counters.step))
        self.stepper.begin(self.counters.step)
        self.stepper.backward(StepLoss(self.encoder(x).square().mean(), 3, 3, is_last_micro_batch=True))
        outcome = self.stepper.finish(self.counters.step)
        now = self.counters.after_step(epoch_steps=100, num_images=3, seconds=1.0)
        self.counters = now.with_outcome(loss=outcome.loss, was_skipped=False)
        freeze_finished_units(self.units, self.stepper.optimizer, self.counters.moment)
        return outcome

    def run(self, to_step: int) -> list[StepOutcome]:
        """Step until so many steps are done."""
        return [self.step() for _ in range(self.counters.step, to_step)]

    def weights(self) -> dict[str, torch.Tensor]:
        return {n: p.detach().clone() for n, p in named_parameters(self.units).items()}

    def save(self, folder: Path) -> None:
        folder.mkdir()
        write_state(
            folder, config=Config(), counters=self.counters, num_threads=1, plan="", groups=self.units,
            stepper=self.stepper, method=Denoise(), validation={}, rewards={},
        )  # fmt: skip

    @classmethod
    def resumed(cls, folder: Path, **kind: Any) -> Toy:
        toy, saved = cls(**kind), read_state(folder)
        toy.counters = saved.counters
        freeze_finished_units(toy.units, toy.stepper.optimizer, toy.counters.moment)
        restore(folder, saved, groups=toy.units, stepper=toy.stepper, method=Denoise(), sharded={})
        return toy


@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("stopping", [EMBEDDING, "text_encoder"])
def test_one_of_two_units_on_a_part_stops_and_the_other_trains_on(stopping: str, is_fused: bool) -> None:
    toy = Toy(stopping=stopping, is_fused=is_fused)
    [first, *_] = toy.run(STOP_AT)
    assert first.learning_rates == {EMBEDDING: 0.1, "text_encoder": 0.01}
    frozen = next(u for u in toy.units if u.name == stopping)
    [other] = [u.name for u in toy.units if u is not frozen]
    assert training_parts(toy.units) == (other,)
    assert toy.encoder.adapter.training == (stopping == EMBEDDING)  # an embedding's end leaves the adapter's dropout
    at_stop = toy.weights()
    last = toy.run(LAST_STEP)[-1]
    assert list(last.learning_rates) == [other]
    for name, weight in toy.weights().items():
        assert torch.equal(weight, at_stop[name]) == (name in frozen.parameters), name


@pytest.mark.parametrize("stopping", [EMBEDDING, "text_encoder"])
@pytest.mark.parametrize("saved_at", [STOP_AT - 1, STOP_AT, STOP_AT + 1])
def test_a_run_of_two_units_on_a_part_resumes_bit_equal(tmp_path: Path, stopping: str, saved_at: int) -> None:
    straight = Toy(stopping=stopping)
    straight.run(LAST_STEP)
    first = Toy(stopping=stopping)
    first.run(saved_at)
    first.save(tmp_path / "backup")
    resumed = Toy.resumed(tmp_path / "backup", stopping=stopping)
    resumed.run(LAST_STEP)
    assert_equal_tensors(straight.weights(), resumed.weights())
    assert straight.stepper.ema is not None
    assert resumed.stepper.ema is not None
    assert_equal_tensors(dict(straight.stepper.ema.averages), dict(resumed.stepper.ema.averages))
