"""Every supported optimizer on a toy of two parts: it moves weights, resumes to the bit, and obeys its settings."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import bitsandbytes
import prodigyplus
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from modules.optim import rates
from modules.optim.build import build_optimizer
from modules.optim.optimizers.adam import Adam
from modules.optim.optimizers.adam_variants import Aida
from modules.optim.optimizers.adamw import AdamW
from modules.optim.optimizers.factored import Adafactor
from modules.optim.optimizers.schedule_free import ProdigyPlusScheduleFree
from modules.optim.optimizers.sums import Adagrad, Lamb, Lars, RmsProp, Sgd, Sgd8bit
from modules.optim.param_groups import (
    TrainGroup,
    exact_parameters,
    freeze,
    named_parameters,
    optimizer_parameters,
    optimizer_state,
    restore_optimizer_state,
)
from modules.optim.registry import OPTIMIZERS, optimizer_spec
from modules.optim.spec import DARKROOM, OptimizerSettings, is_fused
from modules.optim.updates.master_weights import Rounding
from modules.settings.edit import get_path
from modules.settings.every import Every, Moment
from modules.settings.field import FieldRecord, records_of
from modules.system.seeds import derive_seed
from trainer.methods.protocol import StepLoss
from trainer.step.evaluation import optimizer_in_evaluation
from trainer.step.freezing import freeze_finished_units
from trainer.step.stepper import Stepper

pytestmark = pytest.mark.daily(16)  # of the rows of each test: all of them in the full suite

SHAPES = {
    "a": {"matrix": (40, 12), "kernel": (4, 3, 3, 3), "bias": (12,)},
    "b": {"matrix": (6, 5), "bias": (5,)},
}
WITH_RATIO = ("matrix", "kernel")
NUM_SMALL = 256  # the matrix of part a has 8-bit state, everything else 32-bit state


def toy_sized(settings: OptimizerSettings) -> OptimizerSettings:
    """Settings for the sizes of the toy, and for its names, among which are no hidden layers for Muon to choose."""
    own = {"min_8bit_size": NUM_SMALL, "muon_with_aux_adam": False}
    return settings.model_copy(update={k: v for k, v in own.items() if k in type(settings).model_fields})


DEFAULTS = [toy_sized(spec.settings()) for spec in OPTIMIZERS.values()]
WITH_MORE_STATE = [
    *DEFAULTS,
    Sgd(momentum=0.9),
    toy_sized(Sgd8bit(momentum=0.9)),
    RmsProp(momentum=0.9),
    RmsProp(momentum=0.9, centered=True),
    toy_sized(RmsProp(optim_bits="8")),
    toy_sized(Adagrad(optim_bits="8")),
    toy_sized(Lamb(optim_bits="8")),
    toy_sized(Lars(optim_bits="8")),
    AdamW(amsgrad=True),
    Adam(amsgrad=True),
    Adam(fused=False),
    Adafactor(beta1=0.9),
    Adafactor(scale_parameter=True),
    Aida(adanorm=True),
    ProdigyPlusScheduleFree(use_schedulefree=False),
    ProdigyPlusScheduleFree(split_groups=False),
    ProdigyPlusScheduleFree(split_groups_mean=True, use_speed=True, factored=False),
]


def case(settings: object) -> str:
    changed = {k: v for k, v in settings if k != "min_8bit_size" and v != type(settings).model_fields[k].default}  # type: ignore[attr-defined]
    return " ".join([settings.name, *(f"{k}={v}" for k, v in changed.items())])  # type: ignore[attr-defined]


every = pytest.mark.parametrize("settings", WITH_MORE_STATE, ids=case)
every_default = pytest.mark.parametrize("settings", DEFAULTS, ids=case)


ELEMENTWISE = [s for s in DEFAULTS if optimizer_spec(s).is_elementwise]


@pytest.mark.parametrize("settings", [*ELEMENTWISE, Sgd(momentum=0.9), AdamW(amsgrad=True)], ids=case)
def test_an_elementwise_optimizer_moves_the_rows_of_a_weight_as_it_moves_the_whole(settings: OptimizerSettings) -> None:
    generator = torch.Generator().manual_seed(0)
    weight, gradients = torch.rand(5, 3, generator=generator), torch.randn(4, 5, 3, generator=generator)

    def moved(rows: slice) -> tuple[torch.Tensor, set[tuple[int, ...]]]:
        parameter = nn.Parameter(weight[rows].clone())
        optimizer = build_optimizer([TrainGroup("unet", {"unet.a": parameter}, 0.1)], settings)
        for gradient in gradients:
            parameter.grad = gradient[rows].clone()
            optimizer.step()
        return parameter.detach(), {tuple(t.shape) for t in optimizer.state[parameter].values() if t is not None}

    parts = [slice(0, 3), slice(3, 5), slice(5, 5)]  # a small weight has no rows in some processes
    whole, shapes = moved(slice(None))
    torch.testing.assert_close(torch.cat([moved(rows)[0] for rows in parts]), whole, rtol=1e-6, atol=0.0)
    assert shapes <= {(5, 3), ()}


class Toy:
    """Two parts with weights around 1.5; the gradients of a step are functions of its number."""

    def __init__(
        self,
        settings: OptimizerSettings,
        *,
        rounding: Rounding | None = None,
        rate: float | None = None,
        scale: float = 1.0,
        rate_factor: Callable[[int], float] = lambda step: 1.0,
        rate_ratio: float = 1.0,
        loss_scale: float | None = None,
        clip_grad_norm: float | None = None,
        device: str = "cpu",
    ) -> None:
        """With a `rate_ratio`, as of LoRA+, for some weights of each part, every part is several parameter groups."""
        generator = torch.Generator().manual_seed(0)
        dtype = torch.float32 if rounding is None else torch.bfloat16
        self.spec = optimizer_spec(settings)
        if rate is None:
            rate = 1.0 if self.spec.finds_its_rate else 0.5 if self.spec.rates is rates.PLAIN else 0.02
        weights = {
            part: {f"{part}.{n}": self._weight(s, generator, dtype, scale, device) for n, s in shapes.items()}
            for part, shapes in SHAPES.items()
        }
        self.groups = [TrainGroup(part, parameters, rate) for part, parameters in weights.items()]
        for group in self.groups if rate_ratio != 1.0 else ():
            group.rate_ratios = {n: rate_ratio for n in group.parameters if n.endswith(WITH_RATIO)}
        if rounding is not None:
            for group in self.groups:
                group.master_weight(rounding)
        self.stepper = Stepper(
            self.groups,
            build_optimizer(self.groups, settings),
            scaler=torch.amp.GradScaler("cpu", enabled=loss_scale is not None, init_scale=loss_scale or 1.0),
            clip_grad_norm=clip_grad_norm,
            rate_factor=rate_factor,
            ema=None,
            rounding_generators=lambda step, name: torch.Generator(device).manual_seed(derive_seed(step, name)),
            is_fused=is_fused(settings),
            effective_rate=self.spec.effective_rate,
        )
        self.effective_rates: Mapping[str, float] = {}

    @staticmethod
    def _weight(
        shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype, scale: float, device: str
    ) -> nn.Parameter:
        return nn.Parameter(((1.0 + torch.rand(shape, generator=generator)) * scale).to(device, dtype))

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self.stepper.optimizer

    def take(
        self, steps: Iterable[int], *, parts: Iterable[str] = SHAPES, uphill: float = 1.0, loss_factor: float = 1.0
    ) -> None:
        """Take steps; gradients point more often uphill than not, as in training."""
        trained = {n: p for g in self.groups if g.name in parts and g.is_training for n, p in g.parameters.items()}
        for step in steps:
            losses = []
            for name, parameter in trained.items():
                noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(derive_seed(step, name)))
                losses.append((parameter.float() * (noise + uphill).to(parameter.device)).sum())
            self.stepper.begin(step)
            loss = torch.stack(losses).sum() * loss_factor
            self.stepper.backward(StepLoss(loss, num_samples=1, group_samples=1, is_last_micro_batch=True))
            outcome = self.stepper.finish(step)
            assert outcome.was_skipped == math.isnan(loss_factor)
            self.effective_rates = outcome.effective_rates

    def resumed(self, settings: OptimizerSettings, **options: Any) -> Toy:
        """Return another toy that continues with a backup of this one, whose frozen parts are frozen there, too."""
        other = Toy(settings, **options)
        tensors, values = optimizer_state(self.optimizer, optimizer_parameters(self.groups))
        values = json.loads(json.dumps(values))  # as a backup has them
        with torch.no_grad():
            for name, parameter in exact_parameters(other.groups).items():
                parameter.copy_(exact_parameters(self.groups)[name])
        restore_optimizer_state(other.optimizer, other.groups, {k: v.clone() for k, v in tensors.items()}, values)
        for group, own in zip(other.groups, self.groups, strict=True):
            if not own.is_training:
                freeze(group, other.optimizer)
        return other

    def values(self) -> dict[str, torch.Tensor]:
        return {n: p.detach().clone() for n, p in exact_parameters(self.groups).items()}


class Reads(TorchDispatchMode):
    """Counts how often the host reads a value of a tensor, except for those at given addresses."""

    def __init__(self, ignored: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not type it
        self.count = 0
        self._ignored = ignored

    def add(self) -> None:
        self.count += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        reads = func.overloadpacket in (torch.ops.aten._local_scalar_dense, torch.ops.aten.is_nonzero)
        self.count += reads and args[0].data_ptr() not in self._ignored
        return func(*args, **(kwargs or {}))


def changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    return {name for name, value in before.items() if not torch.equal(value, after[name])}


@every
@pytest.mark.parametrize("rounding", [None, "stochastic"])
def test_weights_move_and_a_resumed_run_ends_the_same_to_the_bit(
    settings: OptimizerSettings, rounding: Rounding | None
) -> None:
    if rounding and optimizer_spec(settings).finds_its_rate:  # its first rate, 1e-6, is too small for 16 bits
        settings = settings.model_copy(update={"d0": 0.1})
    options: dict[str, Any] = {"rounding": rounding}
    if not optimizer_spec(settings).has_one_rate:
        options["rate_ratio"] = 2.0
    toy = Toy(settings, **options)
    start = toy.values()
    toy.take(range(3))
    other = toy.resumed(settings, **options)
    toy.take(range(3, 6))
    other.take(range(3, 6))
    assert changed(start, toy.values()) == set(start)
    assert changed(toy.values(), other.values()) == set()


@every
def test_the_record_has_the_size_of_the_state_and_its_facts(settings: OptimizerSettings) -> None:
    toy = Toy(settings)
    toy.take(range(2))
    weights = optimizer_parameters(toy.groups)
    tensors, _ = optimizer_state(toy.optimizer, weights)
    measured = {
        name: sum(
            t.nbytes for key, t in tensors.items() if key.startswith(f"{name}|") and t.dim() and "qmap" not in key
        )
        for name in weights
    }
    assert measured == {n: toy.spec.state_bytes(settings, tuple(w.shape)) for n, w in weights.items()}
    assert all(key in toy.optimizer.param_groups[0] for key in toy.spec.group_state) or settings not in DEFAULTS
    assert not toy.spec.has_evaluation_mode(settings) or callable(getattr(toy.optimizer, "eval", None))
    if toy.spec.finds_its_rate or toy.spec.has_evaluation_mode(settings):
        assert toy.effective_rates.keys() == SHAPES.keys()
        assert all(math.isfinite(rate) and rate > 0 for rate in toy.effective_rates.values())
    made_by = next(c.__module__.partition(".")[0] for c in type(toy.optimizer).__mro__ if "modules" not in c.__module__)
    is_own = type(toy.optimizer).__module__.startswith("modules") and made_by == "torch"
    packages = {p.name for p in toy.spec.packages_of(settings)}
    named = {toy.spec.library or toy.spec.factory.partition(".")[0].partition(":")[0], *packages}
    assert (made_by in named) or (is_own and DARKROOM in named), (made_by, named)
    assert not (toy.spec.can_fuse and toy.spec.steps_at_once), "a fused step is handed each weight alone"


@every
def test_the_step_waits_for_the_device_as_often_as_the_record_says(
    settings: OptimizerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a fused backward pass, too, where there is one. A count of steps is on the CPU: reading it is no wait."""
    spec = optimizer_spec(settings)
    toy = Toy(settings.model_copy(update={"fused_back_pass": True}) if spec.can_fuse else settings)
    toy.take(range(2))
    counts = {s["step"].data_ptr() for s in toy.optimizer.state.values() if isinstance(s.get("step"), torch.Tensor)}
    with Reads(counts) as reads:
        monkeypatch.setattr(bitsandbytes.optim.optimizer, "sync_gpu", lambda _: reads.add())
        toy.take([2])
    num_weights = len(named_parameters(toy.groups))
    if spec.waits_per_weight(settings):
        assert reads.count >= num_weights
    else:
        assert reads.count == 0 or (reads.count < num_weights and not spec.can_fuse)


@pytest.mark.parametrize("settings", [s for s in DEFAULTS if not optimizer_spec(s).has_one_rate], ids=case)
def test_weights_with_a_ratio_take_larger_steps_and_a_resumed_run_has_another_weight_decay(
    settings: OptimizerSettings,
) -> None:
    if optimizer_spec(settings).finds_its_rate:
        settings = settings.model_copy(update={"d0": 1e-3})
    one, other = Toy(settings, rate_ratio=1.0), Toy(settings, rate_ratio=2.0)
    start = one.values()
    num_steps = 2 if settings.name.startswith("adopt") else 1  # its first step moves nothing
    for toy in (one, other):
        toy.take(range(num_steps))
    for name, value in start.items():
        distances = [float((toy.values()[name].double() - value.double()).norm()) for toy in (one, other)]
        assert distances[1] == pytest.approx(distances[0] * (2.0 if name.endswith(WITH_RATIO) else 1.0), rel=0.01), name
    if "weight_decay" not in type(settings).model_fields:
        return
    decays = [other.resumed(settings.model_copy(update={"weight_decay": d}), rate_ratio=2.0) for d in (0.0, 0.5)]
    for toy in decays:
        toy.take([num_steps])
    expected = {n for n in start if n.endswith(WITH_RATIO) or not optimizer_spec(settings).options_of}
    assert changed(decays[0].values(), decays[1].values()) == expected


@every_default
def test_a_scaled_loss_ends_the_same_and_a_step_that_overflows_leaves_no_trace(settings: OptimizerSettings) -> None:
    """With float16, and with clipped gradients; of several groups of a part each gradient is unscaled once."""
    ratio = 1.0 if optimizer_spec(settings).has_one_rate else 2.0
    plain, scaled = (Toy(settings, rate_ratio=ratio, loss_scale=s, clip_grad_norm=0.5) for s in (None, 256.0))
    plain.take(range(3))
    scaled.take(range(2))
    scaled.take([2], loss_factor=math.nan)
    scaled.take([2])
    assert changed(plain.values(), scaled.values()) == set()


@every_default
def test_a_learning_rate_of_zero_moves_nothing(settings: OptimizerSettings) -> None:
    toy = Toy(settings, rate_factor=lambda step: 0.0)
    start = toy.values()
    toy.take(range(3))
    assert changed(start, toy.values()) == set()


def test_no_two_optimizers_take_the_same_steps() -> None:
    ended: dict[bytes, str] = {}
    for settings in [*(s for s in DEFAULTS if s.name != "sgd_8bit"), toy_sized(Sgd8bit(momentum=0.9))]:
        toy = Toy(settings)
        toy.take(range(3))
        values = torch.cat([v.reshape(-1) for v in toy.values().values()]).numpy().tobytes()
        assert ended.setdefault(values, settings.name) == settings.name


@every_default
def test_a_larger_learning_rate_takes_larger_steps(settings: OptimizerSettings) -> None:
    rate = 1.0 if optimizer_spec(settings).finds_its_rate else 0.002
    distances = []
    for factor in (0.25, 1.0):
        toy = Toy(settings, rate=rate * factor)
        start = toy.values()
        toy.take(range(3))
        distances.append(sum(float((v.double() - start[n].double()).norm()) for n, v in toy.values().items()))
    assert distances[1] > 2 * distances[0]


@pytest.mark.parametrize("settings", [s for s in DEFAULTS if "weight_decay" in type(s).model_fields], ids=case)
def test_weight_decay_pulls_weights_towards_zero(settings: OptimizerSettings) -> None:
    """The weights are between 1 and 2, and the gradients small and without a direction."""
    means = []
    for weight_decay in (0.0, 0.5):
        toy = Toy(settings.model_copy(update={"weight_decay": weight_decay, "eps": 1e-3}))
        toy.take(range(10), uphill=0.0)
        means.append(float(torch.cat([v.double().reshape(-1) for v in toy.values().values()]).mean()))
    assert means[1] < means[0]


@every_default
def test_a_frozen_part_holds_no_state_and_a_part_without_gradients_does_not_move(settings: OptimizerSettings) -> None:
    toy = Toy(settings)
    toy.take(range(2))
    before = toy.values()
    toy.take(range(2, 4), parts=["b"])
    assert changed(before, toy.values()) == {n for n in before if n.startswith("b.")}
    freeze(toy.groups[0], toy.optimizer)
    before = toy.values()
    toy.take(range(4, 6))
    other = toy.resumed(settings)
    for continued in (toy, other):
        continued.take(range(6, 8))
    assert changed(toy.values(), other.values()) == set()
    assert changed(before, toy.values()) == {n for n in before if n.startswith("b.")}
    assert {id(p) for p in toy.optimizer.state} <= {id(p) for p in toy.groups[1].parameters.values()}


@pytest.mark.parametrize("rounding", [None, "master", "stochastic"])
@pytest.mark.parametrize(
    "settings", [AdamW(), *(s for s in WITH_MORE_STATE if optimizer_spec(s).has_evaluation_mode(s))], ids=case
)
def test_a_part_that_stops_keeps_the_values_that_a_save_would_have(
    settings: OptimizerSettings, rounding: Rounding | None
) -> None:
    """A schedule-free optimizer trains at another point; a weight of 16 bits is the rounded copy of its master."""
    if rounding and optimizer_spec(settings).finds_its_rate:
        settings = settings.model_copy(update={"d0": 0.1})
    toy, straight = Toy(settings, rounding=rounding), Toy(settings, rounding=rounding)
    for one in (toy, straight):
        one.take(range(4))
    with optimizer_in_evaluation(toy.optimizer, toy.groups):
        saved = toy.values()
    toy.groups[0].stop_after = Every(n=4, unit="step")
    [stopped] = freeze_finished_units(toy.groups, toy.optimizer, Moment(4, 0, 0.0))
    assert stopped is toy.groups[0]
    toy.take(range(4, 7))
    straight.take(range(4, 7))
    with optimizer_in_evaluation(toy.optimizer, toy.groups):
        later = toy.values()
    assert changed({n: t for n, t in saved.items() if n.startswith("a.")}, later) == set()
    for name, parameter in stopped.parameters.items():  # what is left of the training computes with them
        assert torch.equal(parameter, saved[name].to(parameter.dtype))
    if not toy.spec.steps_at_once:  # the other part is trained as if nothing had happened
        assert changed({n: t for n, t in straight.values().items() if n.startswith("b.")}, toy.values()) == set()


@pytest.mark.parametrize("rounding", [None, "master", "stochastic"])
@pytest.mark.parametrize("settings", [s for s in WITH_MORE_STATE if optimizer_spec(s).has_evaluation_mode(s)], ids=case)
def test_evaluation_has_other_weights_and_restores_the_trained_ones(
    settings: OptimizerSettings, rounding: Rounding | None
) -> None:
    toy, straight = Toy(settings, rounding=rounding), Toy(settings, rounding=rounding)
    finds_its_rate = toy.spec.finds_its_rate
    toy.take(range(4))
    straight.take(range(4))
    own = toy.values(), {n: p.detach().clone() for n, p in named_parameters(toy.groups).items()}
    with optimizer_in_evaluation(toy.optimizer, toy.groups):
        inside = {n: p.detach().clone() for n, p in named_parameters(toy.groups).items()}
        assert changed(own[1], inside) or (finds_its_rate and rounding)
        for name, parameter in exact_parameters(toy.groups).items():
            torch.testing.assert_close(parameter.detach().to(inside[name].dtype), inside[name], rtol=0, atol=0)
    assert changed(own[0], toy.values()) == set()
    assert changed(own[1], {n: p.detach() for n, p in named_parameters(toy.groups).items()}) == set()
    toy.take(range(4, 6))
    straight.take(range(4, 6))
    assert changed(straight.values(), toy.values()) == set()


@pytest.mark.parametrize("rounding", [None, "stochastic"])
@pytest.mark.parametrize("settings", [s for s in WITH_MORE_STATE if optimizer_spec(s).can_fuse], ids=case)
def test_a_fused_backward_pass_ends_the_same_and_a_broken_step_leaves_no_trace(
    settings: OptimizerSettings, rounding: Rounding | None
) -> None:
    plain, fused = (
        Toy(settings.model_copy(update={"fused_back_pass": is_on}), rounding=rounding) for is_on in (False, True)
    )
    plain.take(range(3))
    fused.take([0], loss_factor=math.nan)
    fused.take(range(2))
    fused.take([2], loss_factor=math.nan)
    fused.take([2])
    assert changed(plain.values(), fused.values()) == set()


def test_the_sums_of_prodigy_plus_are_on_the_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the first weight is offloaded: sums on the CPU cannot add numbers of an accelerator ("meta" here)."""
    settings = ProdigyPlusScheduleFree()
    toy = Toy(settings)
    monkeypatch.setattr(prodigyplus.ProdigyPlusScheduleFree, "step", lambda *_: None)
    group = toy.optimizer.param_groups[0]
    group["params"][1] = nn.Parameter(group["params"][1].to("meta"))
    toy.optimizer.step()
    sums = toy.optimizer.get_running_values_for_group(group)  # type: ignore[attr-defined]
    assert [s.device.type for s in sums] == ["meta", "meta"]


# -- every field

# Options of how a step is computed, not of its result.
OF_THE_MACHINE = {"fused", "foreach", "fused_back_pass"}
CHANGED: dict[str, Any] = {
    "min_8bit_size": 1000,
    "growth_rate": 1.01,
    "prodigy_steps": 2,
    "clip_threshold": 50.0,
    "beta2_decay": -0.1,
}
# A field that has an effect only with others.
BESIDE: dict[tuple[str, str], dict[str, Any]] = {
    ("adafactor", "eps2"): {"scale_parameter": True},
    ("sgd", "dampening"): {"momentum": 0.9},
    ("sgd", "nesterov"): {"momentum": 0.9},
    ("sgd_8bit", "min_8bit_size"): {"momentum": 0.9},
    ("prodigy", "decouple"): {"weight_decay": 0.5},
    ("dadapt_adam", "decouple"): {"weight_decay": 0.5},
    ("dadapt_adan", "no_prox"): {"weight_decay": 0.5, "d0": 0.1},
    ("prodigy_plus_schedule_free", "weight_decay_by_lr"): {"weight_decay": 0.1},
    ("prodigy_plus_schedule_free", "split_groups_mean"): {"d0": 1e-3},
    ("prodigy_plus_schedule_free", "beta3"): {"d_limiter": False},
    ("dadapt_lion", "beta1"): {"d0": 1.0, "beta2": 0.5},
    ("dadapt_lion", "beta2"): {"d0": 1.0},
}
# The settings whose fields test_optimizers_of_packages walks.
FIELDS_ELSEWHERE = {
    *("adamw_adv", "adopt_adv", "prodigy_adv", "lion_adv", "signsgd_adv", "muon_adv", "adamuon_adv", "muon"),
    *("came", "came_8bit", "ademamix", "adabelief", "adopt", "aida", "tiger", "yogi"),
}
FIELDS = [
    (settings, record)
    for settings in DEFAULTS
    for record in records_of(type(settings))
    if settings.name not in FIELDS_ELSEWHERE
    and record.name not in OF_THE_MACHINE
    and not record.setting.not_yet
    and not record.setting.not_yet_choices
]


def other_value(record: FieldRecord) -> Any:
    if record.name in CHANGED:
        return CHANGED[record.name]
    match record.kind:
        case "bool":
            return not record.default
        case "choice":
            return next(c for c in record.choices if c != record.default)
        case "int":
            return 3 if record.default != 3 else 4
        case _:
            return 0.5 if record.default != 0.5 else 0.25


@pytest.mark.full
@pytest.mark.parametrize(("settings", "record"), FIELDS, ids=lambda v: v.name)
def test_every_field_changes_the_step(settings: OptimizerSettings, record: FieldRecord) -> None:
    beside = dict(BESIDE.get((settings.name, record.name), {}))
    if record.setting.applies_when is not None:
        condition = record.setting.applies_when
        beside[condition.path] = condition.is_any_of[0]
    if optimizer_spec(settings).finds_its_rate and record.name != "d0":
        beside = {"d0": 1e-3, **beside}
    settings = settings.model_copy(update=beside)
    value = not get_path(settings, record.path) if record.kind == "bool" else other_value(record)
    results = []
    for chosen in (settings, _with(settings, record.path, value)):
        toy = Toy(chosen, scale=0.01, rate_factor=lambda step: (step + 1) / 4)
        for step, uphill in enumerate([1.0] * 8 if toy.spec.finds_its_rate else [1.0, 30.0, -1.0, 0.0, 0.0]):
            toy.take([step], uphill=uphill)
        results.append(toy.values())
    assert changed(*results)


def _with(settings: OptimizerSettings, path: str, value: Any) -> OptimizerSettings:
    tree = settings.model_dump()
    *folders, name = path.split(".")
    inner = tree
    for folder in folders:
        inner = inner[folder]
    inner[name] = value
    return type(settings).model_validate(tree)
