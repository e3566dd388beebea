"""The watchdog: it stops a run in which a part learns nothing, and keeps still where there is a reason for that."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from modules.optim.build import build_optimizer
from modules.optim.optimizers.adamw import AdamW
from modules.optim.param_groups import TrainGroup, freeze
from modules.optim.updates.master_weights import Rounding
from modules.system.errors import DarkroomError
from tests.builders.configs import laid_over, small_config
from tests.builders.runs import run
from trainer.events import RunFailed, StepFinished
from trainer.methods.denoise import Denoise
from trainer.methods.protocol import StepLoss
from trainer.step import watchdog
from trainer.step.stepper import Stepper
from trainer.step.watchdog import FIRST_STEPS


class Toy:
    """Two parts whose outputs are added: a matrix, and a LoRA of a down and an up matrix that begins at zero."""

    def __init__(self, *, rate_factor: Callable[[int], float] = lambda step: 1.0, learning_rate: float = 1e-2) -> None:
        draws = torch.Generator().manual_seed(0)
        self.matrix = nn.Parameter(torch.randn(3, 3, generator=draws))
        self.down = nn.Parameter(torch.randn(2, 3, generator=draws))
        self.up = nn.Parameter(torch.zeros(3, 2))
        self.groups = [
            TrainGroup("unet", {"unet.matrix": self.matrix}, learning_rate, label="UNet"),
            TrainGroup(
                "text_encoder", {"text.down": self.down, "text.up": self.up}, learning_rate, label="Text encoder"
            ),
        ]
        self.optimizer = build_optimizer(self.groups, AdamW(weight_decay=0.0))
        self.stepper = Stepper(
            self.groups,
            self.optimizer,
            scaler=torch.amp.GradScaler("cpu", enabled=False),
            clip_grad_norm=1.0,
            rate_factor=rate_factor,
            ema=None,
        )
        self.input = torch.randn(3, generator=draws)

    def loss(self, *, unet: float = 1.0, text: float = 1.0) -> torch.Tensor:
        """A loss in which each part has a weight; a weight of zero gives it a gradient of zero."""
        output = unet * (self.matrix @ self.input) + text * (self.up @ (self.down @ self.input))
        return (output - 1.0).square().sum()

    def train(self, steps: int, loss: Callable[[int], torch.Tensor], *, is_legal: bool = False) -> None:
        for step in range(steps):
            self.stepper.backward(StepLoss(loss(step), 1, 1, is_last_micro_batch=True, zero_gradient_is_legal=is_legal))
            self.stepper.finish(step)


LONG = 2 * FIRST_STEPS


def test_a_part_without_any_gradient_stops_the_run_by_name() -> None:
    toy = Toy()
    toy.train(FIRST_STEPS - 1, lambda step: toy.loss(text=0.0))
    with pytest.raises(DarkroomError, match=r"Text encoder is not being trained: it got no gradient in 10 steps"):
        toy.train(1, lambda step: toy.loss(text=0.0))
    assert not toy.stepper.is_moving


def test_a_part_that_is_cut_off_from_the_loss_is_named() -> None:
    toy = Toy()
    with pytest.raises(DarkroomError, match="UNet is not being trained"):
        toy.train(LONG, lambda step: (toy.up @ (toy.down @ toy.input) - 1.0).square().sum())


def test_weights_that_do_not_change_are_distinguished() -> None:
    toy = Toy(learning_rate=1e-30)
    with pytest.raises(
        DarkroomError, match=r"UNet is not being trained: its weights did not change .* although they had"
    ):
        toy.train(LONG, lambda step: toy.loss())


def test_an_optimizer_that_does_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self, *arguments: None)
    toy = Toy()
    with pytest.raises(DarkroomError, match="did not change"):
        toy.train(LONG, lambda step: toy.loss())


def test_the_zero_gradient_of_a_fresh_loras_down_matrix_is_no_fault() -> None:
    toy = Toy()
    toy.train(1, lambda step: toy.loss())
    assert torch.equal(toy.up != 0, torch.ones(3, 2, dtype=torch.bool))
    toy.train(LONG, lambda step: toy.loss())


@pytest.mark.parametrize("reason", ["warm-up at zero", "loss of zero", "declared legal", "late", "stopped"])
def test_it_keeps_still_where_there_is_a_reason(reason: str) -> None:
    toy = Toy(rate_factor=lambda step: 0.0 if reason == "warm-up at zero" else 1.0)
    match reason:
        case "warm-up at zero":
            toy.train(LONG, lambda step: toy.loss())
        case "loss of zero":  # an empty mask
            toy.train(LONG, lambda step: toy.loss() * 0.0)
        case "declared legal":  # a token that no caption of the batch holds
            toy.train(LONG, lambda step: toy.loss(text=0.0), is_legal=True)
        case "late":
            toy.train(LONG, lambda step: toy.loss(text=float(step >= FIRST_STEPS - 1)))
        case "stopped":
            freeze(toy.groups[1], toy.optimizer)
            toy.train(LONG, lambda step: toy.loss(text=0.0))
    # And it still watches: what learned is let go, what had its reason is not taken for learning.
    if reason in ("loss of zero", "declared legal"):
        with pytest.raises(DarkroomError, match="Text encoder"):
            toy.train(LONG, lambda step: toy.loss(text=0.0))


def test_a_part_that_has_learned_is_not_watched_any_more() -> None:
    toy = Toy()
    toy.train(1, lambda step: toy.loss())
    toy.train(LONG, lambda step: toy.loss(text=0.0))
    assert toy.up.isfinite().all()


def test_a_resumed_run_is_not_asked_again_for_what_has_learned_and_counts_on_for_the_rest() -> None:
    """As a policy whose ratios are all clipped: it has learned, and its steps may be without a gradient for long."""
    toy = Toy()
    toy.train(1, lambda step: toy.loss(text=0.0))
    toy.train(FIRST_STEPS - 2, lambda step: toy.loss(unet=0.0, text=0.0))
    state = json.loads(json.dumps(toy.stepper.watchdog.state_dict()))
    assert state.keys() == {"text_encoder"}
    resumed = Toy()
    resumed.stepper.watchdog.load_state_dict(state)
    with pytest.raises(DarkroomError, match="Text encoder is not being trained"):
        resumed.train(1, lambda step: resumed.loss(unet=0.0, text=0.0))
    fresh = Toy()
    fresh.train(1, lambda step: fresh.loss())
    fresh.train(1, lambda step: fresh.loss())
    later = Toy()
    later.stepper.watchdog.load_state_dict(fresh.stepper.watchdog.state_dict())
    later.train(LONG, lambda step: later.loss(unet=0.0, text=0.0))


@pytest.mark.full
def test_a_backup_has_the_state_of_the_watchdog(
    tiny_sd: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(tmp_path, model=tiny_sd, images=images)
    first = run(config)
    plain, losses = Denoise.loss, 0

    def loss(method: Denoise, batch: Any, context: Any) -> StepLoss:
        nonlocal losses
        losses += 1
        found = plain(method, batch, context)
        if losses == 1:  # the dry run's
            return found
        weights = [p for m in (context.family.parts["unet"].module,) for p in m.parameters() if p.requires_grad]
        return replace(found, loss=found.loss.detach() + sum(0.0 * p.sum() for p in weights))

    monkeypatch.setattr(Denoise, "loss", loss)
    longer = laid_over(config, {"training": {"epochs": 2 + LONG // 3}})
    resumed = run(longer, resume_from=Path(first.finished.backup_path))
    assert resumed.finished.outcome == "finished", resumed.ending


# ---- every parameter counts, not one of each part


class Layers:
    """A part of eight matrices, whose outputs are added."""

    def __init__(self, learning_rate: float = 1e-2, **options: Any) -> None:
        draws = torch.Generator().manual_seed(0)
        self.matrices = {f"unet.layer.{i}": nn.Parameter(torch.randn(3, 3, generator=draws)) for i in range(8)}
        self.group = TrainGroup("unet", self.matrices, learning_rate, label="UNet")
        self.optimizer = build_optimizer([self.group], AdamW(weight_decay=0.0))
        self.stepper = Stepper(
            [self.group],
            self.optimizer,
            scaler=torch.amp.GradScaler("cpu", enabled=False),
            clip_grad_norm=None,
            rate_factor=lambda step: 1.0,
            ema=None,
            **options,
        )

    def train(
        self, steps: int, *, detached: Collection[int] = (), zero: Collection[int] = (), is_legal: bool = False
    ) -> None:
        """Train with some matrices cut off from the loss, and some whose gradients are zero."""
        for step in range(steps):
            output = torch.zeros(3)
            for i, matrix in enumerate(self.matrices.values()):
                weight = 0.0 if i in zero else 1.0
                output = output + weight * (matrix.detach() if i in detached else matrix).sum(dim=0)
            loss = (output - 1.0).square().sum()
            self.stepper.backward(StepLoss(loss, 1, 1, is_last_micro_batch=True, zero_gradient_is_legal=is_legal))
            self.stepper.finish(step)


@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("is_legal", [False, True])  # a hinge's step may be without a gradient, but these are not
def test_parameters_without_a_gradient_stop_the_run_though_others_learn(
    is_fused: bool, is_legal: bool, caplog: pytest.LogCaptureFixture
) -> None:
    layers = Layers(is_fused=is_fused)
    layers.train(FIRST_STEPS - 1, detached=range(1, 6), is_legal=is_legal)
    with pytest.raises(DarkroomError) as caught:
        layers.train(1, detached=range(1, 6), is_legal=is_legal)
    assert caught.value.message == (
        "Part of UNet is not being trained: 5 of its 8 parameters got no gradient in 10 steps."
    )
    assert f"Not trained: {', '.join(f'unet.layer.{i}' for i in range(1, 6))}" in caplog.text


def test_a_single_one_is_enough() -> None:
    with pytest.raises(DarkroomError, match=r"1 of its 8 parameters got no gradient"):
        Layers().train(LONG, detached=[7])


def test_zero_gradients_are_accepted_in_half_of_a_part() -> None:
    """As of keys' biases, or of down matrices while the up matrices are rounded to zero."""
    Layers().train(LONG, zero=range(4))
    with pytest.raises(DarkroomError, match=r"Most of UNet .* the gradient of 5 of its 8 parameters was zero"):
        Layers().train(LONG, zero=range(5))


@pytest.mark.parametrize("num_idle", [4, 5])
def test_an_optimizer_that_passes_over_most_of_a_part_is_noticed(
    monkeypatch: pytest.MonkeyPatch, num_idle: int
) -> None:
    layers = Layers()
    plain = torch.optim.AdamW.step
    idle = list(layers.matrices.values())[:num_idle]

    def step(self: torch.optim.AdamW, *arguments: Any) -> None:
        kept = [p.detach().clone() for p in idle]
        plain(self, *arguments)
        with torch.no_grad():
            for parameter, value in zip(idle, kept, strict=True):
                parameter.copy_(value)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    if num_idle == 4:  # as weights of norms, which are too large for a small step
        layers.train(LONG)
        return
    with pytest.raises(DarkroomError, match=r"5 of its 8 parameters did not change .* although they had gradients"):
        layers.train(LONG)


def test_steps_without_any_gradient_do_not_count_against_what_comes_late() -> None:
    layers = Layers()
    layers.train(FIRST_STEPS - 1, detached=[0])
    layers.train(LONG, zero=range(8), is_legal=True)
    layers.train(LONG)


@pytest.mark.parametrize("is_fused", [False, True])
def test_it_looks_no_more_once_all_have_learned(monkeypatch: pytest.MonkeyPatch, is_fused: bool) -> None:
    looks: list[torch.Size] = []
    plain = watchdog._sum_of_bits

    def counted(parameter: nn.Parameter) -> torch.Tensor:
        looks.append(parameter.shape)
        return plain(parameter)

    monkeypatch.setattr(watchdog, "_sum_of_bits", counted)
    layers = Layers(is_fused=is_fused)
    layers.train(1)
    assert len(looks) == 2 * len(layers.matrices)
    layers.train(LONG, detached=range(4))
    assert len(looks) == 2 * len(layers.matrices)


@pytest.mark.parametrize("rounding", ["master", "stochastic"])
def test_weights_in_16_bits_are_watched_too(rounding: Rounding) -> None:
    weights = {f"unet.{i}": nn.Parameter(torch.ones(4, 4, dtype=torch.bfloat16)) for i in range(3)}
    group = TrainGroup("unet", weights, 1e-5)  # each step is lost in bfloat16, but not in float32
    group.master_weight(rounding)
    stepper = Stepper(
        [group],
        build_optimizer([group], AdamW(weight_decay=0.0)),
        scaler=torch.amp.GradScaler("cpu", enabled=False),
        clip_grad_norm=None,
        rate_factor=lambda step: 1.0,
        ema=None,
        rounding_generators=lambda step, name: torch.Generator().manual_seed(step),
    )

    def train(learning: Sequence[str]) -> None:
        for step in range(LONG):
            loss = torch.stack([weights[name].float().square().sum() for name in learning]).sum()
            stepper.backward(StepLoss(loss, 1, 1, is_last_micro_batch=True))
            stepper.finish(step)

    with pytest.raises(DarkroomError, match=r"1 of its 3 parameters got"):
        train(["unet.0", "unet.1"])
    stepper.discard()
    train(list(weights))


@pytest.mark.parametrize(
    "values", [torch.rand(5), torch.rand(3, 4, 4, 2).to(memory_format=torch.channels_last), torch.tensor(2.0),
               torch.rand(3, dtype=torch.float64), torch.rand(700, 1600)], ids=lambda v: str(tuple(v.shape)),
)  # fmt: skip
def test_the_smallest_step_of_a_value_is_seen(values: torch.Tensor) -> None:
    parameter = nn.Parameter(values)
    before = watchdog._sum_of_bits(parameter)
    assert torch.equal(before, watchdog._sum_of_bits(parameter))
    with torch.no_grad():
        first = parameter.view(-1)[0] if parameter.is_contiguous() else parameter[0, 0, 0, 0]
        first.copy_(torch.nextafter(first, torch.full_like(first, 9.0)))
    assert not torch.equal(before, watchdog._sum_of_bits(parameter))


def test_a_run_in_which_most_of_the_model_is_cut_off_is_stopped(
    tiny_sd: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted, as AlignProp was under bfloat16 with torch 2.9: most layers' weights are used without their graph."""
    plain = torch.nn.Linear.forward

    def forward(layer: nn.Linear, values: torch.Tensor) -> torch.Tensor:
        if layer.in_features == 24 or not layer.weight.requires_grad:
            return plain(layer, values)
        bias = None if layer.bias is None else layer.bias.detach()
        return nn.functional.linear(values, layer.weight.detach(), bias)

    monkeypatch.setattr(torch.nn.Linear, "forward", forward)
    ran = run(
        small_config(
            tmp_path,
            model=tiny_sd,
            images=images,
            training={"trains": "full", "epochs": 7},
            parts={"text_encoder": {"train": False}},
        )
    )
    assert isinstance(ran.ending, RunFailed)
    assert len(ran.of(StepFinished)) == FIRST_STEPS - 1
    assert re.search(r"Part of UNet is not being trained: \d+ of its \d+ parameters got", ran.ending.message)
