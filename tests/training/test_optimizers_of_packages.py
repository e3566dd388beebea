"""The optimizers of adv-optm and pytorch-optimizer, Muon and CAME: steps, state, backups, settings and formulas."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytorch_optimizer
import torch
from torch import nn

from modules.optim.build import build_optimizer
from modules.optim.optimizers.adam_variants import AdaBelief, AdEMAMix, Adopt, Aida, Yogi
from modules.optim.optimizers.advanced import AdamWAdv, AdoptAdv, LionAdv, ProdigyAdv, SignSgdAdv
from modules.optim.optimizers.factored import Came, Came8bit
from modules.optim.optimizers.muon import AdaMuonAdv, AuxiliaryAdam, Muon, MuonAdv
from modules.optim.optimizers.signs import Tiger
from modules.optim.param_groups import (
    TrainGroup,
    exact_parameters,
    freeze,
    named_parameters,
    optimizer_parameters,
    optimizer_state,
    restore_optimizer_state,
)
from modules.optim.registry import optimizer_spec
from modules.optim.spec import OptimizerSettings
from modules.optim.updates.master_weights import Rounding
from modules.optim.updates.sliced_step import SlicedStep
from modules.settings.field import records_of
from modules.system.errors import DarkroomError
from modules.system.seeds import derive_seed
from tests.builders.configs import small_config
from tests.builders.runs import assert_equal_tensors, run
from trainer.events import BackupSaved, RunFinished

# A kernel, matrices of hidden and of other layers, one like those of a LoRA, a vector.
SHAPES = {
    "blocks.kernel": (6, 4, 3, 3),
    "blocks.matrix": (12, 10),
    "blocks.down": (2, 16),
    "conv_in.matrix": (5, 7),
    "blocks.bias": (12,),
}
PLAIN: list[OptimizerSettings] = [
    AdamWAdv(),
    AdoptAdv(),
    ProdigyAdv(),
    LionAdv(),
    SignSgdAdv(),
    MuonAdv(muon_adam_lr=0.1),
    AdaMuonAdv(muon_adam_lr=0.1),
    Muon(muon_adam_lr=0.1),
    Came(),
    Came8bit(min_8bit_size=100, quant_block_size=64),
    AdEMAMix(),
    AdaBelief(),
    Adopt(),
    Aida(),
    Tiger(),
    Yogi(),
]
WITH_OPTIONS: list[OptimizerSettings] = [
    AdamWAdv(nnmf_factor=True, orthogonal_gradient=True, use_atan2=True),
    AdamWAdv(kourkoutas_beta=True, beta1=0.0),
    AdamWAdv(kourkoutas_beta=True, nnmf_factor=True),
    AdoptAdv(nnmf_factor=True, use_atan2=False, kourkoutas_beta=True),
    ProdigyAdv(d0=1e-3, nnmf_factor=True, kourkoutas_beta=True, d_limiter=True),
    ProdigyAdv(d0=1e-3, prodigy_steps=2),
    LionAdv(nnmf_factor=True),
    SignSgdAdv(nnmf_factor=True),
    SignSgdAdv(momentum=0.0),
    MuonAdv(muon_adam_lr=0.1, nnmf_factor=True, approx_mars=True, low_rank_ortho=True, ortho_rank=2),
    MuonAdv(muon_with_aux_adam=False, normuon_variant=False, low_rank_ortho=True, ortho_rank=2, accelerated_ns=True),
    AdaMuonAdv(muon_adam_lr=0.1, normuon_variant=False, nnmf_factor=True, nesterov=True),
    AdaMuonAdv(muon_adam_lr=0.1, normuon_variant=False, use_atan2=True, rms_rescaling=False),
    Muon(muon_with_aux_adam=False),
    Came(use_cautious=True),
    AdEMAMix(optim_bits="8", min_8bit_size=100),
    AdaBelief(rectify=False, amsgrad=True, weight_decay=0.1, decoupled_decay=False),
    AdaBelief(degenerated_to_sgd=False),
    Adopt(cautious=True, fixed_decay=True, decoupled_decay=True, weight_decay=0.01),
    Aida(rectify=True, ams_bound=True, adanorm=True, adam_debias=True),
]
# The defaults of all others are in test_every_optimizer.
ALL = [*(s for s in PLAIN if optimizer_spec(s).options_of), *WITH_OPTIONS]


def named(settings: OptimizerSettings | str) -> str:
    if isinstance(settings, str):
        return settings
    return " ".join([settings.name, *sorted(settings.model_fields_set)])


def unit(dtype: torch.dtype = torch.float32, rounding: Rounding | None = None, part: str = "unet") -> TrainGroup:
    generator = torch.Generator().manual_seed(0)
    weights = {f"{part}.{n}": nn.Parameter(torch.randn(s, generator=generator).to(dtype)) for n, s in SHAPES.items()}
    group = TrainGroup(part, weights, 0.1, part=part)
    if rounding is not None:
        group.master_weight(rounding)
    return group


def give_gradients(groups: list[TrainGroup], step: int, scale: float = 1.0) -> None:
    """Mostly uphill, so that there is progress to measure."""
    for name, parameter in named_parameters(groups).items():
        generator = torch.Generator().manual_seed(derive_seed(step, name))
        gradient = (torch.randn(parameter.shape, generator=generator) + 1.0) * scale
        parameter.grad = gradient.to(parameter.dtype) if parameter.requires_grad else None


def steps(optimizer: torch.optim.Optimizer, groups: list[TrainGroup], numbers: range) -> None:
    for number in numbers:
        give_gradients(groups, number)
        optimizer.step()


class NoHooks:
    def before_update(self, unit: str, parameters: Any) -> None: ...
    def after_update(self, unit: str) -> None: ...


def rounding_generator(name: str) -> torch.Generator:
    return torch.Generator().manual_seed(derive_seed(0, name))


@pytest.mark.full  # every day: test_every_optimizer
@pytest.mark.parametrize("settings", ALL, ids=named)
def test_steps_move_all_weights_and_the_state_is_as_large_as_the_record_says(
    settings: OptimizerSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = [unit(), unit(part="text_encoder")]
    before = {n: p.detach().clone() for n, p in named_parameters(groups).items()}
    random_state = torch.random.get_rng_state()
    optimizer = build_optimizer(groups, settings)
    assert not any(t.numel() for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor))
    steps(optimizer, groups[:1], range(2))
    spec = optimizer_spec(settings)
    weights = groups[0].parameters
    if not getattr(settings, "prodigy_steps", 0):
        tensors, _ = optimizer_state(optimizer, weights)
        owners = {n: sum(t.nbytes for k, t in tensors.items() if t.dim() and k.split("|")[0] == n) for n in weights}
        tables = 2 * 1024 if getattr(settings, "optim_bits", "32") == "8" else 0  # that all weights share
        for name, weight in weights.items():
            if "conv_in" not in name or not spec.options_of:  # a matrix with Adam
                small = 0 if weight.numel() < 100 else tables
                assert owners[name] == small + spec.state_bytes(settings, tuple(weight.shape)), name
    assert optimizer_state(optimizer, groups[1].parameters)[0] == {}, "what has no gradient has no state"
    steps(optimizer, groups[:1], range(2, 10))
    for name, weight in weights.items():
        assert weight.isfinite().all()
        assert not torch.equal(weight, before[name]), name
    freeze(groups[0], optimizer)
    assert {g["unit"] for g in optimizer.param_groups} == {"text_encoder"}
    assert not any(weight in optimizer.state for weight in weights.values())
    steps(optimizer, groups[1:], range(1))
    assert torch.equal(torch.random.get_rng_state(), random_state), "no global random numbers"
    assert capsys.readouterr().out == ""


@pytest.mark.full  # every day: test_every_optimizer
@pytest.mark.parametrize("settings", ALL, ids=named)
def test_state_survives_a_backup_to_the_bit(settings: OptimizerSettings) -> None:
    straight, resumed = [unit(), unit(part="text_encoder")], [unit(), unit(part="text_encoder")]
    one = build_optimizer(straight, settings)
    steps(one, straight, range(3))
    tensors, values = optimizer_state(one, named_parameters(straight))
    values = json.loads(json.dumps(values))  # as a backup keeps them
    with torch.no_grad():
        for name, parameter in named_parameters(resumed).items():
            parameter.copy_(named_parameters(straight)[name])
    other = build_optimizer(resumed, settings)
    if settings.name.startswith("muon") and getattr(settings, "low_rank_ortho", False):  # a run in between
        steps(build_optimizer([unit()], settings), [unit()], range(1))
    restore_optimizer_state(other, resumed, {k: v.clone() for k, v in tensors.items()}, values)
    steps(one, straight, range(3, 6))
    steps(other, resumed, range(3, 6))
    for name, parameter in named_parameters(straight).items():
        assert torch.equal(parameter, named_parameters(resumed)[name]), name


def after_slices(
    settings: OptimizerSettings, rounding: Rounding | None, sliced: Callable[[TrainGroup], Iterator[list[str]]]
) -> dict[str, torch.Tensor]:
    dtype = torch.float32 if rounding is None else torch.bfloat16
    groups = [unit(dtype, rounding)]
    optimizer = build_optimizer(groups, settings)
    sliced_step = SlicedStep(groups, optimizer, NoHooks())
    for number in range(4):
        give_gradients(groups, number)
        for names in sliced(groups[0]):
            sliced_step.step({"unet": names}, rounding_generator)
    assert optimizer_parameters(groups).keys() == named_parameters(groups).keys()
    return {n: p.detach().clone() for n, p in exact_parameters(groups).items()}


@pytest.mark.full  # every day: test_every_optimizer
@pytest.mark.parametrize(
    ("settings", "rounding"),
    [
        (s, r)
        for s in ALL
        if not optimizer_spec(s).steps_at_once
        for r in ((None, "stochastic") if s in PLAIN else (None,))
    ],
    ids=lambda v: named(v) if isinstance(v, OptimizerSettings) else str(v),
)
def test_weights_updated_one_at_a_time_end_where_all_at_once_do(
    settings: OptimizerSettings, rounding: Rounding | None
) -> None:
    """As the fused backward pass does, in its order; a master weight may be empty between steps."""
    at_once = after_slices(settings, rounding, lambda g: iter([list(g.parameters)]))
    alone = after_slices(settings, rounding, lambda g: ([n] for n in reversed(g.parameters)))
    assert optimizer_spec(settings).can_fuse
    for name, value in at_once.items():
        assert torch.equal(value, alone[name]), name


@pytest.mark.parametrize("rounding", ["master", "stochastic"])
def test_prodigy_sees_all_16_bit_weights_at_once(rounding: Rounding) -> None:
    assert optimizer_spec(ProdigyAdv()).steps_at_once
    assert not optimizer_spec(ProdigyAdv()).can_fuse
    moved = after_slices(ProdigyAdv(d0=0.01), rounding, lambda g: iter([list(g.parameters)]))
    assert all(not torch.equal(moved[n].float(), p.float()) for n, p in unit(torch.bfloat16).parameters.items())


@pytest.mark.parametrize("settings", [s for s in PLAIN if optimizer_spec(s).options_of], ids=named)
def test_the_rate_and_weight_decay_are_obeyed(settings: OptimizerSettings) -> None:
    """At a rate of 0 nothing moves; weight decay leaves smaller weights than none."""

    def ended(rate: float, weight_decay: float) -> dict[str, torch.Tensor]:
        rates = {"muon_adam_lr": rate} if "muon_adam_lr" in type(settings).model_fields else {}
        adam = {"muon_adam_config": AuxiliaryAdam(weight_decay=weight_decay)} if rates else {}
        groups = [unit()]
        groups[0].learning_rate = rate
        chosen = settings.model_copy(update={"weight_decay": weight_decay, **rates, **adam})
        optimizer = build_optimizer(groups, chosen)
        for number in range(10):
            give_gradients(groups, number, scale=1e-3 if number else 1.0)
            optimizer.step()
        return {n: p.detach() for n, p in groups[0].parameters.items()}

    for name, value in ended(0.0, 0.0).items():
        assert torch.equal(value, unit().parameters[name])
    rate = 1.0 if optimizer_spec(settings).finds_its_rate else 0.01
    plain, decayed = ended(rate, 0.0), ended(rate, 2.0)
    for name, start in unit().parameters.items():
        pulled = ((plain[name] - decayed[name]) * start.detach().sign()).mean()
        assert pulled > 0, name


# A value of each field that changes the result, with what it needs beside it.
CHANGED: dict[str, Any] = {
    **{"beta1": 0.5, "beta2": 0.5, "beta3": 0.5, "momentum": 0.3, "beta2_normuon": 0.5, "r": 0.5},
    **{"eps": 0.1, "eps2": 5.0, "xi": 1.0, "weight_decay": 0.5, "alpha": 0.5, "initial_accumulator": 0.5, "k": 1},
    **{"d0": 0.1, "d_coef": 2.0, "growth_rate": 1.01, "slice_p": 1, "prodigy_steps": 2, "n_sma_threshold": 50},
    **{"ns_steps": 2, "ortho_rank": 1, "muon_hidden_layers": "conv_in", "muon_adam_lr": 0.01, "optim_bits": "8"},
    **{"muon_te1_adam_lr": 0.01, "muon_te2_adam_lr": 0.01, "min_8bit_size": 1000, "quant_block_size": 128},
}
BESIDE: dict[str, dict[str, Any]] = {
    "cautious_wd": {"weight_decay": 0.5},
    "fixed_decay": {"weight_decay": 0.5, "decoupled_decay": True},
    "decoupled_decay": {"weight_decay": 0.5},
    "r": {"adanorm": True},
    "degenerated_to_sgd": {"rectify": True},
    "n_sma_threshold": {"rectify": True, "beta2": 0.99},
    "ortho_rank": {"low_rank_ortho": True},
    "muon_adam_regex": {"muon_hidden_layers": "matrix, kernel$"},
    "min_8bit_size": {"optim_bits": "8", "min_8bit_size": 100},
    "kourkoutas_beta": {"beta2": 0.95},
    "d_limiter": {"d_coef": 100.0},
}
OF_NUMBERS = {
    ("adamuon_adv", "use_atan2"): {"normuon_variant": False},
    ("adamuon_adv", "eps"): {"normuon_variant": False},
    ("adamw_adv", "eps"): {"use_atan2": False},
    ("adopt_adv", "eps"): {"use_atan2": False},
}
FIELDS = [(s, r.path) for s in PLAIN for r in records_of(type(s)) if r.name != "fused_back_pass"]


@pytest.mark.full  # every day: test_every_optimizer
@pytest.mark.parametrize(("settings", "path"), FIELDS, ids=lambda v: v if isinstance(v, str) else v.name)
def test_every_field_changes_the_step(settings: OptimizerSettings, path: str) -> None:
    name = path.rpartition(".")[2]
    beside = {k: v for k, v in BESIDE.get(name, {}).items() if k in type(settings).model_fields}
    beside |= OF_NUMBERS.get((settings.name, name), {})
    plain = settings.model_copy(update=beside)
    if "." in path:
        changed = plain.model_copy(update={"muon_adam_config": AuxiliaryAdam(**{name: CHANGED[name]})})
    else:
        given = getattr(plain, name)
        changed = plain.model_copy(update={name: not given if isinstance(given, bool) else CHANGED[name]})
    results = []
    for chosen in (plain, changed):
        parts = ("text_encoder", "text_encoder_2") if "_te" in name else ("unet",)
        groups = [unit(part=part) for part in parts]
        for group in groups if optimizer_spec(chosen).finds_its_rate else ():
            group.learning_rate = 1.0
        optimizer = build_optimizer(groups, chosen)
        for number, scale in enumerate((1.0, 30.0, *(1.0,) * (10 if optimizer_spec(chosen).finds_its_rate else 4))):
            give_gradients(groups, number, scale)
            optimizer.step()
        results.append(torch.cat([p.detach().flatten() for p in named_parameters(groups).values()]))
    assert not torch.equal(*results)


def gradient_at(step: int) -> torch.Tensor:
    return torch.randn(6, 5, generator=torch.Generator().manual_seed(step))


def ran(settings: OptimizerSettings, num_steps: int = 6) -> torch.Tensor:
    start = torch.randn(6, 5, generator=torch.Generator().manual_seed(99))
    group = TrainGroup("unet", {"unet.blocks.w": nn.Parameter(start)}, 0.1, part="unet")
    optimizer = build_optimizer([group], settings)
    for number in range(num_steps):
        group.parameters["unet.blocks.w"].grad = gradient_at(number)
        optimizer.step()
    return group.parameters["unet.blocks.w"].detach()


def formula(update: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor], num_steps: int = 6) -> torch.Tensor:
    """`update(weights, gradient, step)` returns the new weights, for a rate of 0.1; steps count from 1."""
    weights = torch.randn(6, 5, generator=torch.Generator().manual_seed(99))
    for number in range(num_steps):
        weights = update(weights, gradient_at(number), number + 1)
    return weights


def test_tiger_is_the_sign_of_the_average() -> None:
    m = torch.zeros(6, 5)

    def tiger(w: torch.Tensor, g: torch.Tensor, t: int) -> torch.Tensor:
        m.mul_(0.9).add_(0.1 * g)
        return w - 0.1 * (m.sign() + 0.2 * w)

    torch.testing.assert_close(ran(Tiger(beta1=0.9, weight_decay=0.2)), formula(tiger))


@pytest.mark.parametrize("settings", [LionAdv(beta2=0.8, weight_decay=0.2), SignSgdAdv(momentum=0.9, weight_decay=0.2)])
def test_lion_and_signsgd_are_the_papers(settings: OptimizerSettings) -> None:
    """Chen et al. 2023, algorithm 2; Bernstein et al. 2018, algorithm 2 (Signum)."""
    m = torch.zeros(6, 5)

    def signed(w: torch.Tensor, g: torch.Tensor, t: int) -> torch.Tensor:
        sign = (0.9 * m + 0.1 * g).sign()
        m.lerp_(g, 0.2 if settings.name == "lion_adv" else 0.1)
        return w - 0.1 * (sign + 0.2 * w)

    torch.testing.assert_close(ran(settings), formula(signed))


def test_yogi_adds_squares_by_the_sign_of_their_difference() -> None:
    m, v = torch.full((6, 5), 0.3), torch.full((6, 5), 0.3)

    def yogi(w: torch.Tensor, g: torch.Tensor, t: int) -> torch.Tensor:
        m.mul_(0.9).add_(0.1 * g)
        v.sub_(0.05 * (v - g * g).sign() * g * g)
        return w - 0.1 / (1 - 0.9**t) * m / ((v / (1 - 0.95**t)).sqrt() + 1e-3)

    torch.testing.assert_close(ran(Yogi(beta2=0.95, initial_accumulator=0.3)), formula(yogi))


def test_adabelief_divides_by_the_deviation_from_the_average() -> None:
    m, s = torch.zeros(6, 5), torch.zeros(6, 5)

    def adabelief(w: torch.Tensor, g: torch.Tensor, t: int) -> torch.Tensor:
        m.mul_(0.9).add_(0.1 * g)
        s.mul_(0.95).add_(0.05 * (g - m) ** 2 + 1e-8)
        return w - 0.1 / (1 - 0.9**t) * m / ((s / (1 - 0.95**t)).sqrt() + 1e-8)

    torch.testing.assert_close(ran(AdaBelief(beta2=0.95, eps=1e-8, rectify=False)), formula(adabelief))


def test_ademamix_adds_a_slow_average() -> None:
    fast, slow, v = torch.zeros(6, 5), torch.zeros(6, 5), torch.zeros(6, 5)

    def ademamix(w: torch.Tensor, g: torch.Tensor, t: int) -> torch.Tensor:
        fast.lerp_(g, 0.1)
        slow.lerp_(g, 0.01)
        v.lerp_(g * g, 0.05)
        update = (fast / (1 - 0.9**t) + 5.0 * slow) / ((v / (1 - 0.95**t)).sqrt() + 1e-8)
        return w - 0.1 * (update + 0.2 * w)

    torch.testing.assert_close(ran(AdEMAMix(beta2=0.95, beta3=0.99, weight_decay=0.2)), formula(ademamix))


@pytest.mark.parametrize("settings", [Adopt(beta2=0.95), AdoptAdv(beta2=0.95, use_atan2=False)], ids=lambda s: s.name)
def test_adopt_divides_by_the_squares_before(settings: OptimizerSettings) -> None:
    m, v = torch.zeros(6, 5), torch.zeros(6, 5)

    def adopt(w: torch.Tensor, g: torch.Tensor, t: int) -> torch.Tensor:
        if t > 1:
            limit = (t if settings.name == "adopt" else t - 1) ** 0.25
            m.lerp_((g / v.sqrt().clamp(min=1e-6)).clamp(-limit, limit), 0.1)
            w = w - 0.1 * m
        v.lerp_(g * g, 1.0 if t == 1 else 0.05)
        return w

    torch.testing.assert_close(ran(settings), formula(adopt), rtol=1e-4, atol=1e-5)


def test_the_advanced_adamw_is_torchs_without_options() -> None:
    weights = nn.Parameter(torch.randn(6, 5, generator=torch.Generator().manual_seed(99)))
    theirs = torch.optim.AdamW([weights], lr=0.1, betas=(0.9, 0.95), weight_decay=0.2)
    for number in range(6):
        weights.grad = gradient_at(number)
        theirs.step()
    torch.testing.assert_close(ran(AdamWAdv(beta2=0.95, weight_decay=0.2)), weights.detach())


def test_kourkoutas_beta_lowers_beta_2_after_a_large_gradient() -> None:
    """Kassinos 2025: a norm r times its average gives beta 2 at r / (1 + r) of the way down to 0.9."""
    m, v = torch.zeros(6, 5), torch.zeros(6, 5)
    norms = [0.0] + [gradient_at(n).norm().item() for n in range(6)]
    average = 0.0

    def adamw(w: torch.Tensor, g: torch.Tensor, t: int) -> torch.Tensor:
        nonlocal average
        average = 0.95 * average + 0.05 * norms[t - 1]
        raw = norms[t - 1] / (average + 1e-9)
        beta2 = 0.99 - 0.09 * raw / (1 + raw)
        m.lerp_(g, 0.1)
        v.mul_(beta2).add_((1 - beta2) * g * g)
        return w - 0.1 / (1 - 0.9**t) * m / (v.sqrt() / math.sqrt(1 - 0.99**t) + 1e-8)

    torch.testing.assert_close(ran(AdamWAdv(kourkoutas_beta=True)), formula(adamw))


@pytest.mark.parametrize("shape", [(6, 5), (7,), (4, 3, 3, 3)])
def test_came_is_that_of_pytorch_optimizer(shape: tuple[int, ...]) -> None:
    def gradient(number: int) -> torch.Tensor:
        return torch.randn(shape, generator=torch.Generator().manual_seed(number))

    ours, theirs = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.ones(shape))
    settings = Came(beta2=0.9, beta3=0.95, weight_decay=0.2)
    one = build_optimizer([TrainGroup("unet", {"w": ours}, 0.1)], settings)
    other = pytorch_optimizer.CAME(
        [theirs], lr=0.1, betas=(0.9, 0.9, 0.95), weight_decay=0.2, eps1=1e-30, eps2=1e-16, foreach=False
    )
    for number in range(6):
        ours.grad, theirs.grad = gradient(number), gradient(number)
        one.step()
        other.step()
    torch.testing.assert_close(ours, theirs)


def test_8_bits_change_the_average_of_came_a_little_and_a_zero_gradient_is_no_harm() -> None:
    def ended(settings: OptimizerSettings) -> torch.Tensor:
        weights = nn.Parameter(torch.zeros(64, 64))
        optimizer = build_optimizer([TrainGroup("unet", {"w": weights}, 0.1)], settings)
        for number in range(8):
            weights.grad = torch.randn(64, 64, generator=torch.Generator().manual_seed(number)) * (number > 0)
            optimizer.step()
        return weights.detach()

    exact, rounded = ended(Came()), ended(Came8bit(min_8bit_size=64, quant_block_size=256))
    assert rounded.isfinite().all()
    assert 0 < (rounded - exact).norm() < 0.05 * exact.norm()


def test_muon_is_torchs_for_matrices_and_adamw_for_the_others() -> None:
    ours = unit()
    settings = Muon(momentum=0.9, weight_decay=0.2, muon_adam_lr=0.03, muon_adam_config=AuxiliaryAdam(weight_decay=0.3))
    one = build_optimizer([ours], settings)
    theirs = unit()
    hidden = {n: p for n, p in theirs.parameters.items() if "blocks" in n and p.dim() >= 2}
    flat = {n: nn.Parameter(p.detach().flatten(1).clone()) for n, p in hidden.items()}
    rest = {n: p for n, p in theirs.parameters.items() if n not in hidden}
    muon = torch.optim.Muon(flat.values(), lr=0.1, momentum=0.9, weight_decay=0.2)
    adamw = torch.optim.AdamW(rest.values(), lr=0.03, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.3)
    assert len(hidden) == 3
    for number in range(5):
        give_gradients([ours], number)
        give_gradients([theirs], number)
        for name, parameter in flat.items():
            gradient = hidden[name].grad
            assert gradient is not None
            parameter.grad = gradient.flatten(1)
        for optimizer in (one, muon, adamw):
            optimizer.step()
    for name, parameter in ours.parameters.items():
        expected = flat[name].view_as(parameter) if name in flat else rest[name]
        torch.testing.assert_close(parameter, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("settings", [Muon(), MuonAdv(), AdaMuonAdv()], ids=lambda s: s.name)
def test_the_auxiliary_adam_has_rates_of_its_own(settings: OptimizerSettings) -> None:
    rates = {"muon_adam_lr": 0.03, "muon_te1_adam_lr": 0.02, "muon_te2_adam_lr": None}
    units = [unit(part=part) for part in ("unet", "text_encoder", "text_encoder_2")]
    optimizer = build_optimizer(units, settings.model_copy(update=rates))
    found = {(g["unit"], g["use_muon"]): (g["lr"], len(g["params"])) for g in optimizer.param_groups}
    assert found == {(p, True): (0.1, 3) for p in ("unet", "text_encoder", "text_encoder_2")} | {
        ("unet", False): (0.03, 2),
        ("text_encoder", False): (0.02, 2),
        ("text_encoder_2", False): (0.03, 2),
    }
    alone = build_optimizer(units, settings.model_copy(update={"muon_with_aux_adam": False, **rates}))
    assert {(g["use_muon"], g["lr"], len(g["params"])) for g in alone.param_groups} == {(True, 0.1, 4), (False, 0.1, 1)}


@pytest.mark.parametrize(
    ("layers", "is_regex", "expected"),
    [
        ("", False, {"kernel", "matrix", "down"}),
        ("blocks.m, conv_in", False, {"matrix", "conv_in"}),
        (r"blocks\.(k|d)", True, {"kernel", "down"}),
        ("", True, {"kernel", "matrix", "down"}),
    ],
)
def test_muons_layers_are_chosen_by_name(layers: str, is_regex: bool, expected: set[str]) -> None:
    group = unit()
    optimizer = build_optimizer([group], Muon(muon_hidden_layers=layers, muon_adam_regex=is_regex))
    chosen = {id(p) for g in optimizer.param_groups if g["use_muon"] for p in g["params"]}
    names = {
        "conv_in" if "conv_in" in n else n.rpartition(".")[2] for n, p in group.parameters.items() if id(p) in chosen
    }
    assert names == expected


@pytest.mark.parametrize("settings", [Muon(), MuonAdv(), AdaMuonAdv()], ids=lambda s: s.name)
def test_a_filter_that_matches_nothing_is_an_error(settings: OptimizerSettings) -> None:
    with pytest.raises(DarkroomError, match="Muon has no weights"):
        build_optimizer([unit()], settings.model_copy(update={"muon_hidden_layers": "no_such_layer"}))


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        (Muon(muon_hidden_layers="(", muon_adam_regex=True), "muon_hidden_layers"),
        (AdamWAdv(kourkoutas_beta=True, beta2=0.9), "beta2"),
        (ProdigyAdv(kourkoutas_beta=True, beta2=0.5), "beta2"),
        (Came8bit(quant_block_size=100), "quant_block_size"),
    ],
    ids=named,
)
def test_settings_that_the_libraries_refuse_are_problems(settings: OptimizerSettings, field: str) -> None:
    (problem,) = optimizer_spec(settings).problems(settings)
    assert (problem.path, problem.severity) == (field, "error")
    assert problem.advice


@pytest.mark.parametrize("settings", PLAIN, ids=lambda s: s.name)
def test_usual_settings_are_no_problem(settings: OptimizerSettings) -> None:
    assert not list(optimizer_spec(settings).problems(type(settings)()))


WHOLE_RUNS = [
    MuonAdv(low_rank_ortho=True),
    ProdigyAdv(d0=1e-4, kourkoutas_beta=True),
    Yogi(),
    Came8bit(min_8bit_size=64, quant_block_size=64),
    AdoptAdv(nnmf_factor=True, kourkoutas_beta=True),
    Muon(),
]


@pytest.mark.full
@pytest.mark.parametrize("trains", ["adapter", "full"])
@pytest.mark.parametrize(
    ("settings", "is_fused"),
    [(s, is_fused) for s in WHOLE_RUNS for is_fused in (False, True) if optimizer_spec(s).can_fuse or not is_fused],
    ids=lambda v: v.name if isinstance(v, OptimizerSettings) else "fused" if v else "plain",
)
def test_a_resumed_run_ends_bit_for_bit_the_same(
    settings: OptimizerSettings, is_fused: bool, trains: str, tiny_sd: Path, images: Path, tmp_path: Path
) -> None:
    """With an average, and a part that stops between the backup and the end."""
    spec = optimizer_spec(settings)
    config = small_config(
        tmp_path,
        model=tiny_sd,
        images=images,
        parts={"unet": {"train": True}, "text_encoder": {"train": True, "stop_after": {"n": 2, "unit": "epoch"}}},
        training={
            "epochs": 3,
            "learning_rate": 1.0 if spec.finds_its_rate else 1e-3,
            "trains": trains,
            "accumulation_steps": 1 if is_fused else 2,
            "optimizer": {**settings.model_dump(), **({"fused_back_pass": True} if is_fused else {})},
            "ema": {"mode": "train_device", "decay": 0.5},
            **({"clip_grad_norm": None} if is_fused else {}),
        },
        backup={"every": {"n": 1, "unit": "epoch"}, "keep": 0},
    )
    ran = run(config)
    first = next(event.path for event in ran.of(BackupSaved))
    assert ran.of(RunFinished)
    assert_equal_tensors(ran.weights, run(config, resume_from=Path(first)).weights)
