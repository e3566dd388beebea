"""What all methods with rollouts have in common: SDXL's sizes, offloaded layers, and a reward that fails in mid-run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from modules.config.schema import Config
from modules.families.sdxl.model import SdxlConditioning, StableDiffusionXL
from modules.rewards import measures
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.runs import Ran, assert_equal_tensors, run
from trainer.events import RunFailed, StepFinished
from trainer.step.prediction_modes import require_no_reference

METHODS: dict[str, dict[str, Any]] = {
    "ddpo": {"name": "ddpo", "steps": 3, "samples_per_prompt": 2, "guidance": 2.0, "kl_weight": 0.1, "inner_epochs": 2},
    "grpo": {"name": "grpo", "steps": 3, "group_size": 2, "guidance": 1.0, "kl_weight": 0.1},
    "online_dpo": {"name": "online_dpo", "steps": 3, "candidates": 2, "beta": 100.0, "updates_per_rollout": 2},
    "refreshed": {
        "name": "online_dpo",
        "steps": 3,
        "candidates": 2,
        "beta": 100.0,
        "updates_per_rollout": 2,
        "reference": "refreshed",
        "refresh_every": 3,
    },
    "spo": {"name": "online_dpo", "pairs": "steps", "steps": 4, "candidates": 2, "updates_per_rollout": 2},
    "nft": {"name": "nft", "steps": 3, "group_size": 2, "timesteps_per_image": 2, "updates_per_rollout": 2},
    "dgpo": {"name": "dgpo", "steps": 3, "group_size": 2, "timesteps_per_image": 2, "updates_per_rollout": 2},
}


@pytest.fixture(scope="module")
def two_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_folder(tmp_path_factory.mktemp("two"), sizes=[(64, 64)] * 2, captions=["a disc", "a square, red"])


def config_of(folder: Path, model: Path, images: Path, method: dict[str, Any], **changes: Any) -> Config:
    config = small_config(
        folder,
        model=model,
        images=images,
        training={"method": method, "epochs": 2, "batch_size": 2},
        reward={"models": [{"kind": "brightness"}], "measure_every": {"unit": "never"}},
        output={"dtype": "float32", "model_format": "single_file"},
    )
    return laid_over(config, changes)


def steps_of(ran: Ran) -> list[Any]:
    return [(s.step, s.loss, s.gradient_norm, s.metrics) for s in ran.of(StepFinished)]


@pytest.mark.daily(1)
@pytest.mark.parametrize("method", METHODS)
def test_sdxl_gets_the_size_of_the_samples_while_sampling_in_the_loss_and_in_the_reference(
    tiny_sdxl: Path, two_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Never that of the images whose captions are the prompts."""
    seen: set[tuple[bool, tuple[int, ...]]] = set()
    plain = StableDiffusionXL.predict

    def predict(self: StableDiffusionXL, noisy: Any, timesteps: Any, conditioning: SdxlConditioning) -> torch.Tensor:
        assert conditioning.sizes_B6 is not None
        assert len(conditioning.sizes_B6) == len(conditioning.pooled_BE) == len(noisy)
        assert noisy.shape[-2:] == (8, 12)
        seen.update((torch.is_grad_enabled(), tuple(row)) for row in conditioning.sizes_B6.int().tolist())
        return plain(self, noisy, timesteps, conditioning)

    monkeypatch.setattr(StableDiffusionXL, "predict", predict)
    config = config_of(
        tmp_path,
        tiny_sdxl,
        two_images,
        {**METHODS[method], "size": "96x64"},
        training={"epochs": 1},
        parts={name: {"train": False} for name in ("text_encoder", "text_encoder_2")},
    )
    assert run(config).finished.outcome == "finished"
    assert seen == {(has_gradient, (64, 96, 0, 0, 64, 96)) for has_gradient in (True, False)}


@pytest.mark.full
@pytest.mark.parametrize(
    ("method", "trains", "precision"),
    [
        pytest.param("ddpo", "full", "float32", marks=pytest.mark.full),
        ("grpo", "adapter", "bfloat16"),
        ("refreshed", "full", "bfloat16"),
        pytest.param("spo", "full", "float32", marks=pytest.mark.full),
        ("nft", "full", "bfloat16"),
        ("dgpo", "full", "bfloat16"),
    ],
)
def test_offloaded_layers_and_activations_change_no_bit(
    tiny_sd: Path, two_images: Path, tmp_path: Path, method: str, trains: str, precision: str
) -> None:
    """Of the UNet and of a trained text encoder, whose layers move for rollouts, references and training alike."""
    training = {"trains": trains, "precision": precision}
    plain = run(config_of(tmp_path / "plain", tiny_sd, two_images, METHODS[method], training=training))
    saved = {"checkpointing": "block", "offload_fraction": 0.5, "offload_activations": True}
    guarded = config_of(
        tmp_path / "guarded",
        tiny_sd,
        two_images,
        METHODS[method],
        training=training,
        general={"temp_device": "cpu:1", "debug_checks": True},
        parts={"unet": saved, "text_encoder": saved},
    )
    offloaded = run(guarded)
    assert steps_of(plain) == steps_of(offloaded)
    assert_equal_tensors(plain.weights, offloaded.weights)


@pytest.mark.full
@pytest.mark.parametrize(
    "method", [n if n in ("grpo", "refreshed") else pytest.param(n, marks=pytest.mark.full) for n in METHODS]
)
def test_a_reward_that_fails_in_mid_run_loses_no_step(
    tiny_sd: Path, two_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """In the rollout after the first one: the run ends with its reason, and resumes from the last step bit for bit."""
    straight = run(config_of(tmp_path / "straight", tiny_sd, two_images, METHODS[method]))
    config = config_of(tmp_path / "failing", tiny_sd, two_images, METHODS[method])
    has_stepped: list[StepFinished] = []
    plain = measures.brightness

    def failing(images_B3PP: torch.Tensor) -> torch.Tensor:
        if has_stepped:
            raise RuntimeError("the reward is broken")
        return plain(images_B3PP)

    with monkeypatch.context() as patched:
        patched.setattr(measures, "brightness", failing)
        failed = run(
            config, on_event=lambda event, send: has_stepped.extend([event] if isinstance(event, StepFinished) else [])
        )
    assert isinstance(failed.ending, RunFailed)
    assert "the reward is broken" in failed.ending.message
    assert torch.is_grad_enabled()
    require_no_reference()
    resumed = run(config, resume_from=Path(failed.ending.backup_path))
    assert steps_of(failed) + steps_of(resumed) == steps_of(straight)
    assert_equal_tensors(straight.weights, resumed.weights)
