"""Elementwise losses, weightings, learned weights, scalers and the limit of the norms, each against its formula."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional

from modules.config.sections.loss import Loss
from modules.config.sections.training import Training
from modules.diffusion.flow import FlowProcess
from modules.diffusion.flow_convention import flow_matching
from modules.diffusion.process import DDPMProcess, NoiseProcess
from modules.diffusion.process_spec import DDPM, PredictionType
from modules.diffusion.schedule import cumulative_alphas
from modules.diffusion.weightings import (
    WEIGHTINGS,
    debiased_weights,
    min_snr_weights,
    p2_weights,
    soft_min_snr_weights,
    weighting_labels,
    weightings_for,
)
from modules.families.registry import FAMILIES
from modules.objectives.denoise import Prior, squared_errors, timestep_weights, weighted_errors
from modules.objectives.learned_weighting import LearnedWeighting
from modules.objectives.loss_mix import LossMix, loss_mix_of
from modules.objectives.losses import LOSSES, DeltaSettings, huber_deltas
from modules.optim.scaling import SCALER_LABELS, loss_factor, rate_factor
from modules.system.errors import DarkroomError
from trainer.methods.denoise import denoise_of

GENERATOR = torch.Generator().manual_seed(7)
OUTPUT, TARGET, OTHER = (3.0 * torch.randn(4, 4, 5, 6, generator=GENERATOR) for _ in range(3))
DIFFERENCES = OUTPUT - TARGET
TIMESTEPS = torch.tensor([0, 300, 600, 999])


def process_of(prediction_type: PredictionType = "epsilon", *, has_zero_snr: bool = False) -> DDPMProcess:
    alphas = cumulative_alphas().clone()
    if has_zero_snr:
        alphas[-1] = 0.0
    return DDPMProcess(alphas, prediction_type)


def log_cosh(d: torch.Tensor, delta: float) -> torch.Tensor:
    return d.double().cosh().log().float()


def pseudo(d: torch.Tensor, delta: float) -> torch.Tensor:
    return (2 * delta * ((d.double() ** 2 + delta**2).sqrt() - delta)).float()


REFERENCES: dict[tuple[str, str], Callable[[torch.Tensor, float], torch.Tensor]] = {
    ("mse", "huber"): lambda d, delta: d**2,
    ("mae", "huber"): lambda d, delta: d.abs(),
    ("log_cosh", "huber"): log_cosh,
    ("huber", "huber"): lambda d, delta: functional.huber_loss(d, 0 * d, reduction="none", delta=delta),
    ("smooth_l1", "huber"): lambda d, delta: functional.smooth_l1_loss(d, 0 * d, reduction="none", beta=delta),
    ("huber", "pseudo_huber"): pseudo,
    ("smooth_l1", "pseudo_huber"): lambda d, delta: pseudo(d, delta) / delta,
}


def mix(**settings: Any) -> LossMix:
    """The losses with these settings alone; the squared error has none unless it is given."""
    return loss_mix_of(type(Loss().mix).model_validate({"mse": {"strength": 0.0}, **settings}))


def with_delta(name: str, delta: float, form: str) -> dict[str, Any]:
    """The settings of a loss that turns at a delta, empty for the others."""
    return {"delta": delta, "form": form} if issubclass(LOSSES[name].settings, DeltaSettings) else {}


@pytest.mark.parametrize("delta", [0.1, 1.0, 4.0])
@pytest.mark.parametrize(("name", "form"), REFERENCES)
def test_each_loss_is_its_formula(name: str, form: Any, delta: float) -> None:
    errors = mix(**{name: {"strength": 2.5, **with_delta(name, delta, form)}}).at(process_of(), TIMESTEPS)
    errors = errors(OUTPUT, TARGET)
    torch.testing.assert_close(errors, 2.5 * REFERENCES[name, form](DIFFERENCES, delta), rtol=1e-5, atol=1e-6)


def test_every_loss_has_a_reference() -> None:
    assert {name for name, _ in REFERENCES} == LOSSES.keys()


@pytest.mark.parametrize(("name", "form"), REFERENCES)
def test_gradients_are_those_of_the_formula_and_0_at_0(name: str, form: Any) -> None:
    points = torch.tensor([-200.0, -1.5, -0.2, 0.0, 1e-4, 0.3, 2.0, 90.0], dtype=torch.float64)
    points.requires_grad_()
    spec = LOSSES[name]
    bound = spec.bind(spec.settings.model_validate(with_delta(name, 0.5, form)), process_of(), TIMESTEPS[:1])

    def loss(d: torch.Tensor) -> torch.Tensor:
        return bound(d[None, None, None])[0, 0, 0]

    away = points.detach()[[0, 1, 2, 5, 6]].requires_grad_()
    assert torch.autograd.gradcheck(loss, (away,))
    [gradient] = torch.autograd.grad(loss(points).sum(), points)
    assert bool(gradient.isfinite().all())
    assert gradient[3] == 0


def test_strengths_mix_and_the_default_is_the_squared_error_to_the_bit() -> None:
    strengths = {"mse": {"strength": 0.5}, "mae": {"strength": 2.0}, "huber": {"strength": 0.0}}
    mixed = mix(**strengths).at(process_of(), TIMESTEPS)(OUTPUT, TARGET)
    torch.testing.assert_close(mixed, 0.5 * DIFFERENCES**2 + 2.0 * DIFFERENCES.abs())
    plain = loss_mix_of(Loss().mix).at(process_of(), TIMESTEPS)(OUTPUT, TARGET)
    assert torch.equal(plain, squared_errors(OUTPUT, TARGET))
    with pytest.raises(ValueError, match="strengths are 0"):
        mix().at(process_of(), TIMESTEPS)


def test_prior_preservation_uses_the_same_losses() -> None:
    errors = mix(mae={"strength": 1.0}).at(process_of(), TIMESTEPS)
    weights = torch.rand(4, 1, 5, 6, generator=GENERATOR)
    found = weighted_errors(OUTPUT, TARGET, weights, Prior(OTHER, (), 1 - weights), errors)
    expected = (OUTPUT - TARGET).abs() * weights + (OUTPUT - OTHER).abs() * (1 - weights)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("has_zero_snr", [False, True])
@pytest.mark.parametrize("schedule", ["constant", "snr", "exponential"])
def test_huber_deltas_are_the_papers(schedule: Any, has_zero_snr: bool) -> None:
    process = process_of("v_prediction", has_zero_snr=has_zero_snr)
    found = huber_deltas(process, TIMESTEPS, delta=0.1, schedule=schedule).tolist()
    for timestep, delta in zip(TIMESTEPS.tolist(), found, strict=True):
        abar = process.alphas_cumprod_T[timestep].item()
        sigma = math.sqrt((1 - abar) / abar) if abar else math.inf
        expected = {
            "constant": 0.1,
            "snr": (1 - 0.1) / (1 + sigma) ** 2 + 0.1,
            "exponential": math.exp(math.log(0.1) / 1000 * timestep),
        }[schedule]
        assert delta == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("name", "form"), REFERENCES)
@pytest.mark.parametrize("schedule", ["constant", "exponential", "snr"])
def test_each_loss_of_a_flow_is_its_formula_or_refused_by_name(name: str, form: Any, schedule: Any) -> None:
    """The schedule by SNR is published for DDPM alone; sd-scripts refuses it for flow models, too."""
    process, levels = FlowProcess(), torch.tensor([0.0, 20.0, 500.0, 1000.0])
    is_scheduled = issubclass(LOSSES[name].settings, DeltaSettings)
    settings = {"strength": 1.0, **with_delta(name, 0.1, form), **({"schedule": schedule} if is_scheduled else {})}
    losses = mix(**{name: settings})
    if is_scheduled and schedule == "snr":
        assert list(losses.refusals(process.spec)) == [f"{name}.schedule"]
        with pytest.raises(DarkroomError, match="SNR of the Huber losses is not defined for flow matching models"):
            losses.require(process)
        losses.require(process_of())
        return
    losses.require(process)
    deltas = 0.1 ** (levels / 1000) if schedule == "exponential" else torch.full((4,), 0.1)
    rows = [REFERENCES[name, form](d[None], float(delta)) for d, delta in zip(DIFFERENCES, deltas, strict=True)]
    torch.testing.assert_close(losses.at(process, levels)(OUTPUT, TARGET), torch.cat(rows), rtol=1e-5, atol=1e-6)


WEIGHTS: dict[str, Callable[[float, float, bool], float]] = {  # by SNR, gamma, and whether the model predicts v
    "none": lambda snr, gamma, is_v: 1.0,
    "min_snr": lambda snr, gamma, is_v: min(snr, gamma) / (snr + is_v),
    "soft_min_snr": lambda snr, gamma, is_v: snr * gamma / (snr + gamma) / (snr + is_v),
    "debiased": lambda snr, gamma, is_v: 1 / math.sqrt(min(snr, 1000) + is_v),
    "p2": lambda snr, gamma, is_v: (1 + snr + is_v) ** -gamma,
    "sigma": lambda snr, gamma, is_v: 1 / (1 + math.sqrt(snr)),
}


FLOW_WEIGHTS: dict[str, Callable[[float], float]] = {  # by sigma
    "none": lambda sigma: 1.0,
    "sigma": lambda sigma: sigma,
    "sigma_sqrt": lambda sigma: max(sigma, 1e-3) ** -2,
    "cosmap": lambda sigma: 2 / math.pi / (1 - 2 * sigma + 2 * sigma**2),
}


@pytest.mark.parametrize("prediction_type", ["epsilon", "v_prediction"])
@pytest.mark.parametrize("name", WEIGHTS)
def test_each_weighting_is_its_formula(name: str, prediction_type: PredictionType) -> None:
    process = process_of(prediction_type)
    weights = timestep_weights(process, TIMESTEPS, weighting=name, gamma=1.5)
    found = [1.0] * 4 if weights is None else weights.tolist()
    expected = [WEIGHTS[name](s, 1.5, prediction_type == "v_prediction") for s in process.snr(TIMESTEPS).tolist()]
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", FLOW_WEIGHTS)
def test_each_weighting_of_a_flow_is_its_formula(name: str) -> None:
    sigmas = [0.0, 0.02, 0.25, 0.9, 1.0]
    weights = timestep_weights(FlowProcess(), torch.tensor(sigmas) * 1000, weighting=name, gamma=5.0)
    found = [1.0] * 5 if weights is None else weights.tolist()
    assert found == pytest.approx([FLOW_WEIGHTS[name](sigma) for sigma in sigmas], rel=1e-4)


@pytest.mark.parametrize("name", WEIGHTINGS)
def test_a_weighting_without_a_formula_for_the_process_is_refused_by_name(name: str) -> None:
    """It has a reference in this file for each prediction type that its record names, and is refused for the others."""
    spec = WEIGHTINGS[name]
    assert (name in WEIGHTS, name in FLOW_WEIGHTS) == ("epsilon" in spec.predictions, "flow" in spec.predictions)
    processes: list[tuple[bool, NoiseProcess]] = [
        (name in WEIGHTS, process_of()),
        (name in WEIGHTS, process_of("v_prediction")),
        (name in FLOW_WEIGHTS, FlowProcess()),
    ]
    for is_defined, process in processes:
        if is_defined:
            timestep_weights(process, TIMESTEPS, weighting=name, gamma=5.0)
            continue
        with pytest.raises(DarkroomError, match=f"{spec.label} is not defined for .* models") as refused:
            timestep_weights(process, TIMESTEPS, weighting=name, gamma=5.0)
        assert "Sigma" in refused.value.advice


@pytest.mark.parametrize(
    "formula",
    [
        partial(min_snr_weights, gamma=5.0),
        partial(soft_min_snr_weights, gamma=5.0),
        partial(p2_weights, gamma=5.0),
        debiased_weights,
    ],
)
def test_no_formula_takes_a_flow_for_v_prediction(formula: Callable[..., torch.Tensor]) -> None:
    with pytest.raises(ValueError, match="'flow'"):
        formula(torch.ones(2), prediction_type="flow")


def test_the_weightings_of_the_families_processes_are_offered() -> None:
    assert set(weightings_for(frozenset(DDPM.predictions))) == set(WEIGHTS)
    assert set(weightings_for(frozenset(flow_matching().predictions))) >= set(FLOW_WEIGHTS)
    processes = [spec.process for spec in FAMILIES.values()]
    offered = frozenset(prediction for process in processes for prediction in process.predictions)
    assert set(weighting_labels()) == set(weightings_for(offered))


@pytest.mark.parametrize("prediction_type", ["epsilon", "v_prediction"])
@pytest.mark.parametrize("name", WEIGHTS)
def test_each_weighting_is_finite_at_zero_terminal_snr(name: str, prediction_type: PredictionType) -> None:
    process = process_of(prediction_type, has_zero_snr=True)
    weights = timestep_weights(process, torch.arange(1000), weighting=name, gamma=5.0)
    assert weights is None or (bool(weights.isfinite().all()) and bool((weights >= 0).all()))


def trained(learned: LearnedWeighting, first: int, last: int) -> None:
    """Train on losses that depend on the noise level, with some noise of their own, in two micro-batches a step."""
    process = process_of()
    for step in range(first, last):
        generator = torch.Generator().manual_seed(step)
        for _ in range(2):
            learned.begin(step)
            snr = process.snr(torch.randint(0, 1000, (8,), generator=generator))
            learned.add(snr, typical_loss(snr) * (0.5 + torch.rand(8, generator=generator)))


def typical_loss(snr: torch.Tensor) -> torch.Tensor:
    return 0.02 + 0.5 * (snr / (1 + snr))


def test_learned_weights_find_the_loss_of_each_noise_level() -> None:
    """Karras et al. 2024, eq. 21: the minimum over u is exp(u) = E[L | sigma]."""
    learned, snr = LearnedWeighting(0.01), process_of().snr(torch.tensor([20, 200, 500, 800, 980]))
    assert learned.log_scales(snr).tolist() == [0.0] * 5
    trained(learned, 0, 600)
    found = learned.log_scales(snr).exp()
    torch.testing.assert_close(found, typical_loss(snr), rtol=0.2, atol=0.0)


def test_the_gradient_of_learned_weights_is_that_of_the_papers_loss() -> None:
    """The first step of Adam moves each weight by the rate against the sign of the gradient of eq. 21."""
    learned = LearnedWeighting(0.01)
    snr, losses, weights = torch.tensor([0.01, 1.0, 40.0]), torch.tensor([0.9, 0.2, 3.0]), torch.tensor([1.0, 2.0, 0.5])
    learned.begin(0)
    learned.add(snr, losses, weights)
    learned.begin(1)
    linear = torch.zeros(128, requires_grad=True)
    uncertainty = learned._features(snr) @ linear
    (weights * (losses / uncertainty.exp() + uncertainty)).mean().backward()
    assert linear.grad is not None
    torch.testing.assert_close(learned.state_dict(0)["learned_weighting.weights"], -0.01 * linear.grad.sign())


def test_learned_weights_resume_to_the_bit_and_forget_an_unfinished_step() -> None:
    snr = process_of().snr(TIMESTEPS)
    whole, first, second = (LearnedWeighting(0.01) for _ in range(3))
    trained(whole, 0, 20)
    trained(first, 0, 9)
    first.begin(9)  # a micro-batch of a step that is discarded
    first.add(snr, torch.ones(4))
    state = first.state_dict(9)
    assert not any(key in state for key in ("pending",))
    second.load_state_dict(state)
    trained(second, 9, 20)
    assert all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(whole.state_dict(20).values(), second.state_dict(20).values(), strict=True)
    )


def test_a_copy_for_the_dry_run_leaves_the_learned_weights_alone() -> None:
    method = denoise_of(Training(loss=Loss(learned_weighting=True)))
    assert method.learned is not None
    before = method.state_dict(0)
    [branch] = method.branches().values()
    trained(branch.learned, 0, 3)  # type: ignore[attr-defined]
    after = method.state_dict(3)
    assert torch.equal(before["learned_weighting.weights"], after["learned_weighting.weights"])


def test_losses_that_are_0_or_not_finite_teach_the_learned_weights_nothing() -> None:
    learned = LearnedWeighting(0.01)
    learned.begin(0)
    learned.add(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, math.nan, math.inf]))
    learned.begin(1)
    assert learned.log_scales(torch.tensor([1.0, 0.0])).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("scaler", SCALER_LABELS)
def test_scalers_follow_the_batch(scaler: Any) -> None:
    expected = {"none": 1, "batch": 3, "accumulation": 4, "both": 12}[scaler.removeprefix("global_")]
    assert loss_factor(scaler, batch_size=3, accumulation_steps=4) == expected
    assert rate_factor(scaler, batch_size=3, accumulation_steps=4) == math.sqrt(expected)
    training = Training(batch_size=3, accumulation_steps=4, loss=Loss(scaler=scaler))
    assert denoise_of(training).factor == expected
