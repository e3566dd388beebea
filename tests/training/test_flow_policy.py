"""DDPO and GRPO on flow models: the first ratio is 1, the window, resuming, planted faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from modules.config.rules import problems_of
from modules.config.schema import Config
from modules.sampling import rollout as rollout_module
from modules.sampling.rollout import Rollout
from tests.builders.configs import laid_over
from tests.builders.flow_models import FLOW_MODELS
from tests.builders.matrix import matrix
from tests.builders.preference import draw_both, preference_config
from tests.builders.runs import Ran, assert_resumed, run, stop_at
from trainer.events import RunFailed, StepFinished, WarningRaised
from trainer.methods import rollouts
from trainer.methods.policy_batches import PolicyBatch
from trainer.methods.policy_gradient import PolicyGradient
from trainer.methods.protocol import StepContext, StepLoss

pytestmark = pytest.mark.usefixtures("one_thread")

WINDOW: dict[str, Any] = {"steps": 5, "timesteps": "window", "window_size": 2, "window_every": 1, "guidance": 1.0}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_both(tmp_path_factory.mktemp("drawn"))


def config_of(folder: Path, model: Path, drawn: Path, method: dict[str, Any], name: str = "grpo") -> Config:
    config = preference_config(folder, model=model, drawn=drawn, method=name)
    trained = {part.name: {"train": part.role == "denoiser"} for part in config.family.trainable_parts}
    return laid_over(config, {"training": {"method": method}, "parts": trained, "output": {"dtype": "float32"}})


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[PolicyBatch]:
    seen: list[PolicyBatch] = []
    plain = PolicyGradient.loss

    def loss(method: PolicyGradient, batch: PolicyBatch, context: StepContext) -> StepLoss:
        if not method.is_trial:
            seen.append(batch)
        return plain(method, batch, context)

    monkeypatch.setattr(PolicyGradient, "loss", loss)
    return seen


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    ("model", "name", "steps", "region"),
    matrix(FLOW_MODELS, ["grpo", "ddpo"], ["cps", "sde"], ["clip", "normalized", "divergence"]),
)
def test_the_first_ratio_is_exactly_1_and_the_model_moves(
    request: pytest.FixtureRequest, drawn: Path, tmp_path: Path, model: str, name: str, steps: str, region: str
) -> None:
    method = {"flow_steps": steps, "trust_region": region, "clip_range": 0.5, "divergence_limit": 0.5, "steps": 4}
    method |= {"inner_epochs": 2, "size": "64x64"}  # at the usual 1024 px, the shift of toys leaves only pure noise
    config = config_of(tmp_path, request.getfixturevalue(model), drawn, method, name)
    ran = run(config)
    first, second, *_ = ran.of(StepFinished)
    assert (first.metrics["ratio"], first.metrics["approx_kl"], first.metrics["clip_fraction"]) == (1.0, 0.0, 0.0)
    assert first.gradient_norm
    assert second.metrics["ratio"] != 1.0
    assert not [w for w in ran.of(WarningRaised) if "ratio" in w.message]


def test_only_the_steps_of_the_window_are_stochastic_and_trained(
    tiny_z_image: Path, drawn: Path, tmp_path: Path, batches: list[PolicyBatch]
) -> None:
    """It slides from the noisiest steps on; all others are the ODE's, to which no density belongs."""
    assert run(config_of(tmp_path, tiny_z_image, drawn, WINDOW)).finished.step == 2
    by_step = {step: {b.number for b in batches if b.step == step} for step in (0, 1)}
    assert by_step == {0: {0, 1}, 1: {1, 2}}
    for batch in batches:
        stochastic = {n for n, column in enumerate(batch.chunk.log_probs_BN.T) if bool(column.any())}
        assert stochastic == by_step[batch.step]
        assert batch.chunk.log_probs_BN.dtype == torch.float32


# ---- resuming

HARD: dict[str, Any] = {**WINDOW, "inner_epochs": 3, "trust_region": "normalized", "clip_range": 0.5}
LONG: dict[str, Any] = {
    "training": {
        "batch_size": 1,
        "accumulation_steps": 2,
        "learning_rate": 3e-3,
        "ema": {"mode": "train_device", "decay": 0.9},
    }
}


@pytest.fixture(scope="module")
def hard(tiny_z_image: Path, drawn: Path) -> Callable[[Path], Config]:
    return lambda folder: laid_over(config_of(folder, tiny_z_image, drawn, HARD), LONG)


@pytest.fixture(scope="module")
def straight(hard: Callable[[Path], Config], tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The uninterrupted run."""
    return run(hard(tmp_path_factory.mktemp("straight")))


@pytest.mark.daily(1)
@pytest.mark.parametrize("stop_after", [2, 1, 4])
def test_a_run_stopped_within_a_rollout_resumes_bit_equal_with_its_means(
    hard: Callable[[Path], Config], straight: Ran, tmp_path: Path, stop_after: int
) -> None:
    config = hard(tmp_path)
    first = run(config, on_event=stop_at(stop_after))
    backup = Path(first.finished.backup_path)
    assert any(".mean." in name for name in load_file(backup / "method.safetensors"))
    assert_resumed(straight, first, run(config, resume_from=backup))


# ---- planted faults, and what is warned of


@pytest.mark.parametrize(
    "region", ["clip", pytest.param("normalized", marks=pytest.mark.full), pytest.param("divergence")]
)
def test_states_and_means_stored_in_16_bits_are_found(
    tiny_z_image: Path, drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, region: str
) -> None:
    plain = rollout_module._States.add

    def rounded(self: Any, number: int, latents_BCHW: torch.Tensor) -> None:
        plain(self, number, latents_BCHW.bfloat16().float())

    monkeypatch.setattr(rollout_module._States, "add", rounded)
    ending = run(config_of(tmp_path, tiny_z_image, drawn, {"trust_region": region})).ending
    assert isinstance(ending, RunFailed)
    assert "the probability ratio differs from 1" in ending.message


def test_means_of_another_step_are_found(
    tiny_z_image: Path, drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ratios are 1, but the divergence from the model that sampled is not 0."""
    plain = rollouts.roll_out

    def shifted(*arguments: Any, **options: Any) -> Rollout:
        rollout = plain(*arguments, **options)
        return replace(rollout, means_BCHW={n: mean + 0.1 for n, mean in rollout.means_BCHW.items()})

    monkeypatch.setattr(rollouts, "roll_out", shifted)
    method = {**WINDOW, "trust_region": "divergence", "steps": 4, "window_size": 1}
    ending = run(config_of(tmp_path, tiny_z_image, drawn, method)).ending
    assert isinstance(ending, RunFailed)
    assert "the probability ratio differs from 1" in ending.message


def test_settings_of_the_other_kind_of_model_are_said(
    tiny_z_image: Path, tiny_sd: Path, drawn: Path, tmp_path: Path
) -> None:
    changed = {"eta": 0.5, "flow_eta": 0.5, "flow_steps": "sde"}

    def named(model: Path) -> set[str]:
        problems = problems_of(config_of(tmp_path, model, drawn, changed))
        assert not [p for p in problems if p.severity == "error"]
        return {p.path.rpartition(".")[2] for p in problems if "has no effect on" in p.message}

    assert named(tiny_z_image) == {"eta"}
    assert named(tiny_sd) == {"flow_eta", "flow_steps"}
