"""DiffusionNFT, AWM and DGPO: what samples, the first step, resuming."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from modules.config.schema import Config
from modules.objectives import forward_fields as settings
from tests.builders.configs import laid_over
from tests.builders.preference import draw_both, preference_config
from tests.builders.runs import Ran, assert_resumed, run, stop_at, weights_of
from trainer.events import PhaseChanged, StepFinished
from trainer.methods import rollouts
from trainer.methods.forward_policy import ForwardPolicy
from trainer.methods.policy_batches import PolicyBatch
from trainer.methods.protocol import StepContext, StepLoss
from trainer.rollout_events import RolloutSampled

pytestmark = pytest.mark.usefixtures("one_thread")

TWO_ROLLOUTS: dict[str, Any] = {
    "batch_size": 1,
    "accumulation_steps": 2,
    "learning_rate": 3e-3,
    "schedule": {"name": "cosine", "warmup_steps": 2},
    "ema": {"mode": "train_device", "decay": 0.9},
    "method": {"updates_per_rollout": 3},
}
"""Two rollouts of three steps each, with a batch for each prompt."""


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_both(tmp_path_factory.mktemp("drawn"))


@pytest.fixture
def half_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old model keeps half of its weights at every rollout."""
    monkeypatch.setitem(settings._DECAYS, "linear", (0, 1.0, 0.5))


def config_of(
    folder: Path, model: Path, drawn: Path, training: dict[str, Any] = TWO_ROLLOUTS, *, name: str = "nft"
) -> Config:
    config = preference_config(folder, model=model, drawn=drawn, method=name)
    trained = {part.name: {"train": part.role == "denoiser"} for part in config.family.trainable_parts}
    return laid_over(config, {"output": {"dtype": "float32"}, "training": training, "parts": trained})


@pytest.mark.daily(1)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("trains", ["adapter", "full"])
def test_the_old_model_samples_and_the_trained_one_trains(
    tiny_sd: Path,
    drawn: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    half_way: None,
    trains: str,
    precision: str,
) -> None:
    """Its weights are in place while it samples, and in autocast no cast of the trained ones is left of them."""
    trained: dict[int, dict[str, torch.Tensor]] = {}  # at the first micro-batch of a step
    sampling: dict[int, dict[str, torch.Tensor]] = {}
    plain_loss, plain_rollout = ForwardPolicy.loss, rollouts._roll_out_chunk

    def loss(method: ForwardPolicy, batch: PolicyBatch, context: StepContext) -> StepLoss:
        if not method.is_trial:
            trained.setdefault(batch.step, weights_of(context.family))
        return plain_loss(method, batch, context)

    def roll_out(prompts: Any, sample: int, step: int, context: StepContext, *rest: Any) -> Any:
        rollout = plain_rollout(prompts, sample, step, context, *rest)
        torch.clear_autocast_cache()
        again = plain_rollout(prompts, sample, step, context, *rest)
        assert all(torch.equal(again.states_BCHW[n], state) for n, state in rollout.states_BCHW.items())
        sampling[step] = weights_of(context.family)
        return rollout

    monkeypatch.setattr(ForwardPolicy, "loss", loss)
    monkeypatch.setattr(rollouts, "_roll_out_chunk", roll_out)
    changes = {**TWO_ROLLOUTS, "trains": trains, "precision": precision}
    assert run(config_of(tmp_path, tiny_sd, drawn, changes)).finished.outcome == "finished"
    assert sampling.keys() == {0, 3}
    for name, value in sampling[3].items():
        assert torch.equal(sampling[0][name], trained[0][name])
        assert torch.equal(value, torch.lerp(trained[3][name], trained[0][name], 0.5)), name
    assert any(not torch.equal(trained[3][name], value) for name, value in sampling[3].items())


@pytest.mark.full
@pytest.mark.parametrize("model", ["tiny_sd", "tiny_sdxl_v", "tiny_z_image"])
@pytest.mark.parametrize("method", ["nft", "awm", "dgpo"])
def test_the_first_step_starts_from_equal_models(
    request: pytest.FixtureRequest, drawn: Path, tmp_path: Path, method: str, model: str
) -> None:
    """To the bit: the original, the old and the trained model predict the same, and the model then moves away."""
    ran = run(config_of(tmp_path, request.getfixturevalue(model), drawn, name=method))
    first, *rest = ran.of(StepFinished)
    assert len(rest) == 5
    assert first.metrics["kl"] == 0.0
    assert all(step.metrics["kl"] > 0 for step in rest)
    assert all(step.gradient_norm for step in (first, *rest[:2]))
    if method != "nft":
        assert (first.metrics["ratio"], first.metrics["approx_kl"], first.metrics["clip_fraction"]) == (1.0, 0.0, 0.0)
        assert rest[0].metrics["ratio"] != 1.0
    assert [event.step for event in ran.of(RolloutSampled)] == [0, 3]
    phases = [e.detail for e in ran.of(PhaseChanged) if e.phase == "sampling"]
    assert phases == ["4 images to train on"] * 2


# ---- resuming


@pytest.fixture(scope="module", params=[("nft", "adapter"), ("nft", "full"), ("dgpo", "adapter")], ids="-".join)
def resumable(request: pytest.FixtureRequest, tiny_sd: Path, drawn: Path) -> Callable[[Path], Config]:
    name, trains = request.param
    return lambda folder: config_of(folder, tiny_sd, drawn, {**TWO_ROLLOUTS, "trains": trains}, name=name)


@pytest.fixture(scope="module")
def straight(resumable: Callable[[Path], Config], tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The uninterrupted run."""
    return run(resumable(tmp_path_factory.mktemp("straight")))


@pytest.mark.daily(1)
@pytest.mark.parametrize("stop_after", [1, 2, 3, 4])
def test_a_stopped_run_resumes_bit_equal_with_its_old_model(
    resumable: Callable[[Path], Config], straight: Ran, tmp_path: Path, stop_after: int
) -> None:
    """Within a rollout, and between two, where the old model follows."""
    config = resumable(tmp_path)
    first = run(config, on_event=stop_at(stop_after))
    assert (first.finished.outcome, first.finished.step) == ("stopped", stop_after)
    backup = Path(first.finished.backup_path)
    kept = load_file(backup / "method.safetensors")
    assert any(name.startswith("reference.") for name in kept)
    assert any(".state." in name for name in kept) == (stop_after % 3 != 0), "only a rollout in use is kept"
    assert_resumed(straight, first, run(config, resume_from=backup))
