"""The optimizer's step inside the backward pass: the same weights as without, one gradient at a time, its limits."""

from __future__ import annotations

import gc
import math
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from modules.config.rules import problems_of
from modules.config.schema import Config
from modules.config.usage import updates_in_backward
from modules.optim.build import build_optimizer
from modules.optim.ema import Ema
from modules.optim.optimizers.adamw import AdamW
from modules.optim.optimizers.factored import Adafactor
from modules.optim.optimizers.signs import Lion
from modules.optim.optimizers.sums import Sgd
from modules.optim.param_groups import TrainGroup, exact_parameters, freeze, named_parameters
from modules.optim.spec import OptimizerSettings
from modules.optim.updates.fused_backward import FusedBackward
from modules.optim.updates.master_weights import Rounding
from modules.optim.updates.sliced_step import SlicedStep, gradient_holders
from modules.system.devices import CPU
from tests.builders.configs import laid_over, small_config
from tests.builders.matrix import matrix
from tests.builders.runs import Ran, assert_equal_tensors, run
from trainer.dry_run import DryRunStep
from trainer.events import BackupSaved, StepFinished
from trainer.methods.protocol import StepLoss
from trainer.step.outcome import StepOutcome
from trainer.step.stepper import Stepper
from trainer.step.watchdog import Watchdog

# -- whole runs


def config_of(model: Path, images: Path, folder: Path, *, name: str, fused: bool, **changes: Any) -> Config:
    """Ten steps of both parts."""
    base = small_config(
        folder / ("fused" if fused else "plain"),
        model=model,
        images=images,
        training={
            "epochs": 2,
            "batch_size": 1,
            "clip_grad_norm": None,
            "optimizer": {"name": name, "fused_back_pass": fused},
            "low_precision_updates": "stochastic",
        },
    )
    return laid_over(base, changes)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "trains", "mode", "dtype"),
    matrix(["adamw", "adafactor"], ["adapter", "full"], ["off", "block"], ["float32", "bfloat16"]),
)
def test_ten_steps_equal_the_plain_path_to_the_bit(
    tiny_sd: Path, images: Path, tmp_path: Path, name: str, trains: str, mode: str, dtype: str
) -> None:
    """Also with stochastically rounded bfloat16 weights: each weight has its own generator."""
    changes = {
        "training": {"trains": trains},
        "adapter": {"dtype": dtype},
        "parts": {
            part: {"checkpointing": mode, "dtype": dtype if trains == "full" else "float32"}
            for part in ("unet", "text_encoder")
        },
    }
    plain, fused = (
        run(config_of(tiny_sd, images, tmp_path, name=name, fused=fused, **changes)) for fused in (False, True)
    )
    assert len(losses(plain)) == 10
    assert losses(plain) == losses(fused)
    assert [s.gradient_norm for s in plain.of(StepFinished)] == [s.gradient_norm for s in fused.of(StepFinished)]
    assert {t.dtype for t in fused.weights.values()} == {getattr(torch, dtype)}
    assert_equal_tensors(plain.weights, fused.weights)


def losses(ran: Ran) -> list[float | None]:
    assert ran.finished.outcome == "finished"
    return [s.loss for s in ran.of(StepFinished)]


@pytest.mark.full
def test_a_part_stops_during_the_run_and_a_resumed_run_ends_the_same(
    tiny_sd: Path, images: Path, tmp_path: Path
) -> None:
    changes = {
        "training": {"epochs": 4, "batch_size": 4, "ema": {"mode": "train_device"}, "trains": "full"},
        "parts": {"text_encoder": {"stop_after": {"n": 2, "unit": "epoch"}}, "unet": {"dtype": "bfloat16"}},
        "backup": {"every": {"n": 1, "unit": "epoch"}, "keep": 0},
    }
    plain, fused = (
        run(config_of(tiny_sd, images, tmp_path, name="adamw", fused=fused, **changes)) for fused in (False, True)
    )
    assert losses(plain) == losses(fused)
    assert_equal_tensors(plain.weights, fused.weights)
    assert fused.of(StepFinished)[-1].training_parts == ("unet",)
    config = config_of(tiny_sd, images, tmp_path, name="adamw", fused=True, **changes)
    for backup in (fused.of(BackupSaved)[0], fused.of(BackupSaved)[2]):
        assert_equal_tensors(fused.weights, run(config, resume_from=Path(backup.path)).weights)


@pytest.mark.full
def test_no_two_gradients_exist_at_once(
    tiny_sd: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    living: list[int] = []
    plain_step = SlicedStep.step

    def step(sliced_step: SlicedStep, *arguments: Any, **options: Any) -> Any:
        holders = [p for g in sliced_step._groups.values() for p in gradient_holders(g)]
        living.append(sum(p.grad is not None for p in holders))
        return plain_step(sliced_step, *arguments, **options)

    monkeypatch.setattr(SlicedStep, "step", step)
    most = []
    for fused in (False, True):
        living.clear()
        run(config_of(tiny_sd, images, tmp_path, name="adafactor", fused=fused, training={"trains": "full"}))
        most.append(max(living[-20:]))
    assert most[0] > 50
    assert most[1] == 1


@pytest.mark.full
def test_the_dry_run_does_not_keep_all_gradients_either(
    tiny_sd: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[int, int]] = []
    plain_copy = DryRunStep._copy_gradients

    def copy_gradients(dry_run_step: DryRunStep) -> bool:
        real = named_parameters(dry_run_step._training.groups).values()
        found.append((sum(p.grad is not None for p in real), len(named_parameters(dry_run_step.state.groups))))
        return plain_copy(dry_run_step)

    monkeypatch.setattr(DryRunStep, "_copy_gradients", copy_gradients)
    for fused in (False, True):
        changes = {"training": {"trains": "full", "epochs": 1}}
        losses(run(config_of(tiny_sd, images, tmp_path, name="adamw", fused=fused, **changes)))
    (num_plain, num_copies), (num_fused, _) = found
    assert num_plain > 50
    assert 0 < num_fused <= num_copies < 20


@pytest.mark.full
def test_offloaded_layers_update_on_the_offload_device(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    changes = {
        "training": {"trains": "full", "epochs": 1},
        "general": {"temp_device": "cpu:1"},
        "parts": {"unet": {"checkpointing": "block", "offload_fraction": 0.5, "dtype": "bfloat16"}},
    }
    plain, fused = (
        run(config_of(tiny_sd, images, tmp_path, name="adamw", fused=fused, **changes)) for fused in (False, True)
    )
    assert losses(plain) == losses(fused)
    assert_equal_tensors(plain.weights, fused.weights)


@pytest.mark.parametrize(
    ("changes", "path", "advice"),
    [
        ({"accumulation_steps": 3}, "training.accumulation_steps", "Set the accumulation steps to 1"),
        ({"precision": "float16"}, "training.precision", "Choose bfloat16 or float32"),
    ],
)
def test_what_needs_all_gradients_together_switches_it_off(
    tiny_sd: Path, images: Path, tmp_path: Path, changes: dict[str, Any], path: str, advice: str
) -> None:
    config = config_of(tiny_sd, images, tmp_path, name="adamw", fused=True)
    assert not problems_of(config)
    changed = laid_over(config, {"training": changes})
    (problem,) = problems_of(changed)
    assert (problem.path, problem.severity) == (path, "warning")
    assert advice in problem.advice
    assert updates_in_backward(config)
    assert not updates_in_backward(changed)
    without = laid_over(config, {"training": {**changes, "optimizer": {"fused_back_pass": False}}})
    assert not problems_of(without)


def test_a_run_that_accumulates_is_that_of_a_plain_optimizer(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    changes = {"training": {"accumulation_steps": 2, "epochs": 1}}
    plain, fused = (
        run(config_of(tiny_sd, images, tmp_path, name="adamw", fused=fused, **changes)) for fused in (False, True)
    )
    assert losses(plain) == losses(fused)
    assert_equal_tensors(plain.weights, fused.weights)


# -- single steps


class Toy:
    """Three matrices of one part, one after the other; the last one's gradient comes first."""

    def __init__(
        self,
        *,
        fused: bool = True,
        rounding: Rounding | None = None,
        ema: bool = False,
        settings: OptimizerSettings | None = None,
        clip_grad_norm: float | None = None,
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        dtype = torch.float32 if rounding is None else torch.bfloat16
        matrices = {f"unet.{n}": torch.randn(4, 4, generator=generator).to(dtype) for n in ("first", "second", "third")}
        self.group = TrainGroup("unet", {n: nn.Parameter(m) for n, m in matrices.items()}, 1e-2)
        if rounding is not None:
            self.group.master_weight(rounding)
        self.average = Ema(self.group.parameters, decay=0.5, update_every_steps=1, device=CPU) if ema else None
        self.stepper = Stepper(
            [self.group],
            build_optimizer([self.group], settings or AdamW()),
            scaler=torch.amp.GradScaler("cpu", enabled=False),
            clip_grad_norm=clip_grad_norm,
            rate_factor=lambda step: 1.0 / (step + 1),
            ema=self.average,
            rounding_generators=lambda step, name: torch.Generator().manual_seed(step * 1000 + len(name)),
            is_fused=fused,
        )

    def loss(self, change: Callable[[torch.Tensor], torch.Tensor] = lambda value: value) -> torch.Tensor:
        first, second, third = (p.float() for p in self.group.parameters.values())
        return (third @ change(second @ (first @ torch.ones(4)))).square().mean()

    def step(self, step: int, loss: torch.Tensor | None = None) -> StepOutcome:
        self.stepper.begin(step)
        loss = self.loss() if loss is None else loss
        self.stepper.backward(StepLoss(loss, num_samples=1, group_samples=1, is_last_micro_batch=True))
        return self.stepper.finish(step)

    def values(self) -> list[torch.Tensor]:
        return [p.detach().clone() for p in exact_parameters([self.group]).values()]


def have_moved(before: Sequence[torch.Tensor], after: Sequence[torch.Tensor]) -> list[bool]:
    return [not torch.equal(one, other) for one, other in zip(before, after, strict=True)]


@pytest.mark.parametrize("rounding", [None, "master", "stochastic"])
def test_the_rate_of_each_step_and_both_modes_of_16_bit_weights(rounding: Rounding | None) -> None:
    plain, fused = Toy(fused=False, rounding=rounding), Toy(rounding=rounding)
    for step in range(10):
        assert plain.step(step) == fused.step(step)
    assert have_moved(plain.values(), fused.values()) == [False] * 3
    assert all(p.grad is None for p in fused.group.parameters.values())


def add_on_apple(to: torch.Tensor, other: torch.Tensor, *, alpha: float = 1.0) -> torch.Tensor:
    """As torch computes it on Apple's GPUs: without the other tensor where its factor is 0, even if it has a NaN."""
    return to.clone() if alpha == 0 else to + alpha * other


@pytest.mark.parametrize("leaves_out_zeros", [False, True])
def test_a_gradient_that_is_not_finite_stops_the_step_there(
    monkeypatch: pytest.MonkeyPatch, leaves_out_zeros: bool
) -> None:
    if leaves_out_zeros:
        monkeypatch.setattr(torch, "add", add_on_apple)

    class Breaks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
            return value.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * float("inf")

    toy = Toy(ema=True)
    assert toy.average is not None
    toy.step(0)
    before, num_updates = toy.values(), toy.average.num_updates
    outcome = toy.step(1, toy.loss(Breaks.apply))
    assert outcome.was_skipped
    assert (outcome.loss is not None, outcome.gradient_norm) == (True, None)
    assert have_moved(before, toy.values()) == [False, False, True]
    assert toy.average.num_updates == num_updates
    assert all(p.grad is None for p in toy.group.parameters.values())
    assert not toy.step(2).was_skipped


class Reads(TorchDispatchMode):
    """Counts how often the host reads a value of a tensor, which waits for the device."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket in (torch.ops.aten._local_scalar_dense, torch.ops.aten.is_nonzero)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("settings", [AdamW(), Adafactor(), Lion(), Sgd()], ids=lambda s: s.name)
def test_the_host_waits_for_no_gradient(settings: OptimizerSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = Toy(rounding="stochastic", settings=settings, clip_grad_norm=0.5)
    lists: list[int] = []
    plain = torch.Tensor.tolist
    toy.step(0)
    toy.step(1)

    def to_list(tensor: torch.Tensor) -> Any:
        lists.append(tensor.numel())
        return plain(tensor)

    monkeypatch.setattr(torch.Tensor, "tolist", to_list)
    before = toy.values()
    with Reads() as reads:  # type: ignore[no-untyped-call]  # torch does not type it
        toy.step(2)
    assert have_moved(before, toy.values()) == [True] * 3
    assert reads.count == 0
    assert lists == [3], "the loss, the gradient norm and that of the unit, together, at the end of the step"


def test_gradients_from_two_threads_update_one_after_the_other() -> None:
    """Like the gradients of weights on a GPU and of others offloaded to the CPU."""
    toy = Toy(fused=False)
    optimizer, others, is_between = toy.stepper.optimizer, list[threading.Thread](), threading.Event()
    fused = FusedBackward([toy.group], SlicedStep([toy.group], optimizer, Watchdog([toy.group])))

    def meanwhile(*_: Any) -> None:
        if others:
            is_between.set()
            return
        others.append(threading.Thread(target=fused.receive_gradient, args=("unet", "unet.first")))
        others[0].start()
        assert not is_between.wait(0.1), "one step begins inside another"

    optimizer.register_step_pre_hook(meanwhile)
    before = toy.values()
    for parameter in toy.group.parameters.values():
        parameter.grad = torch.ones(4, 4)
    with fused.updating(lambda name: None, torch.tensor(1.0)):
        fused.receive_gradient("unet", "unet.second")
        others[0].join()
    assert is_between.is_set()
    assert have_moved(before, toy.values()) == [True, True, False]
    assert [len(g["params"]) for g in optimizer.param_groups] == [3]


def test_a_loss_that_is_not_finite_updates_nothing() -> None:
    toy = Toy()
    before = toy.values()
    outcome = toy.step(0, toy.loss() * float("nan"))
    assert outcome.was_skipped
    assert outcome.loss is None
    assert have_moved(before, toy.values()) == [False] * 3
    assert not toy.stepper.optimizer.state
    assert not toy.stepper.is_moving


def test_an_error_during_the_pass_leaves_a_step_half_done(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = Toy()

    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(SlicedStep, "step", fails)
    with pytest.raises(RuntimeError, match="no memory"):
        toy.step(0)
    assert toy.stepper.is_moving


def test_a_part_of_a_step_is_refused() -> None:
    toy = Toy()
    with pytest.raises(ValueError, match="a whole step"):
        toy.stepper.backward(StepLoss(toy.loss(), num_samples=1, group_samples=2, is_last_micro_batch=False))
    group = toy.group
    options: dict[str, Any] = {"rate_factor": lambda step: 1.0, "ema": None, "is_fused": True}
    scaler = torch.amp.GradScaler("cpu", enabled=True)
    with pytest.raises(ValueError, match="does not support a gradient scaler"):
        Stepper([group], toy.stepper.optimizer, scaler=scaler, clip_grad_norm=None, **options)


def test_the_gradient_of_each_weight_is_clipped_alone(tmp_path: Path) -> None:
    """As OneTrainer and sd-scripts do: their files usually have both a fused backward pass and a limit of 1."""
    plain = Toy(fused=False)
    gradients = torch.autograd.grad(plain.loss(), list(plain.group.parameters.values()))
    norms = [float(g.norm()) for g in gradients]
    limit = sorted(norms)[1] * 0.9  # one of the three is below it
    toy = Toy(settings=Sgd(), clip_grad_norm=limit)
    before, outcome = toy.values(), toy.step(0)
    assert outcome.gradient_norm == pytest.approx(math.hypot(*norms))
    for weight, gradient, norm, moved in zip(before, gradients, norms, toy.values(), strict=True):
        torch.testing.assert_close(moved, weight - 1e-2 * gradient * min(1.0, limit / norm))
    config = config_of(tmp_path, tmp_path, tmp_path, name="adafactor", fused=True)
    (problem,) = problems_of(laid_over(config, {"training": {"clip_grad_norm": 1.0}}))
    assert (problem.path, problem.severity) == ("training.clip_grad_norm", "info")


def test_a_frozen_group_has_no_hooks_and_a_backward_pass_of_others_is_left_alone() -> None:
    toy = Toy()
    toy.loss().backward()
    gradients = [p.grad for p in toy.group.parameters.values()]
    assert all(g is not None for g in gradients)
    toy.stepper.discard()
    freeze(toy.group, toy.stepper.optimizer)
    assert not toy.group.hooks
    assert not toy.stepper.optimizer.state


def test_a_dry_run_keeps_the_requested_gradients_and_all_norms() -> None:
    toy, plain = Toy(), Toy(fused=False)
    before = toy.values()
    with toy.stepper.dry_run_step({"unet.second"}), plain.stepper.dry_run_step({"unet.second"}):
        toy.loss().backward()
        plain.loss().backward()
    assert [n for n, p in toy.group.parameters.items() if p.grad is not None] == ["unet.second"]
    assert toy.stepper.gradient_norms() == plain.stepper.gradient_norms()
    assert have_moved(before, toy.values()) == [False] * 3


def test_hooks_keep_nothing_alive() -> None:
    toy = Toy()
    toy.step(0)
    parameter = next(iter(named_parameters([toy.group]).values()))
    stepper, group = weakref.ref(toy.stepper), weakref.ref(toy.group)
    del toy
    gc.collect()
    assert stepper() is None
    assert group() is None
    parameter.square().sum().backward()
    assert parameter.grad is not None


def test_adafactor_may_be_sliced_into_single_weights() -> None:
    """It scales each tensor by itself alone, so that it makes no difference which are stepped together."""
    states = []
    for fused in (False, True):
        toy = Toy(fused=fused)
        optimizer = build_optimizer([toy.group], Adafactor(scale_parameter=True, beta1=0.9))
        options: dict[str, Any] = {"rate_factor": lambda step: 1.0, "ema": None, "is_fused": fused}
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        toy.stepper = Stepper([toy.group], optimizer, scaler=scaler, clip_grad_norm=None, **options)
        for step in range(3):
            toy.step(step)
        states.append(toy.values())
    assert have_moved(*states) == [False] * 3
