"""AlignProp: the reward rises, alone and mixed with denoising; runs stop, resume, save memory and fail early."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from modules.config.schema import Config
from modules.system.paths import PROGRAM_ROOT
from tests.builders.configs import USUAL_LAYERS, laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.matrix import matrix
from tests.builders.old_autocast import old_autocast_cache
from tests.builders.runs import Ran, assert_equal_tensors, run
from trainer.commands import Stop
from trainer.events import PhaseChanged, RewardMeasured, RunFailed, StepFinished
from trainer.step.pauses import Pauses
from trainer.step.stepper import Stepper

BRIGHTER: dict[str, Any] = {"models": [{"kind": "brightness"}], "measure_every": {"unit": "never"}}
METHOD: dict[str, Any] = {"name": "alignprop", "steps": 4, "backprop_steps": 2, "guidance": 2.0}


def reward_config(folder: Path, model: Path, images: Path, **method: Any) -> Config:
    """A run that trains on brightness, with few denoising steps."""
    return small_config(folder, model=model, images=images, training={"method": {**METHOD, **method}}, reward=BRIGHTER)


def ways_of(ran: Ran) -> list[bool]:
    """Whether each step followed the reward."""
    return ["reward" in step.metrics for step in ran.of(StepFinished)]


# ---- the reward rises


def demo_config(folder: Path, *, trains: str, checkpointing: str, seed: int) -> Config:
    """Twenty updates of two images each on the demo model."""
    shapes = PROGRAM_ROOT / "demo" / "shapes"
    return small_config(
        folder,
        model=PROGRAM_ROOT / "demo" / "model",
        images=shapes,
        general={"seed": seed},
        concepts=[{"path": str(shapes), "repeats": 40 / 24}],
        parts={"unet": {"checkpointing": checkpointing}, "text_encoder": {"train": False}},
        data={"bucket_step_px": 64},
        training={
            "trains": trains,
            "epochs": 1,
            "learning_rate": 3e-3 if trains == "adapter" else 3e-4,
            "method": {
                "name": "alignprop",
                "steps": 8,
                "gradient_truncation": "fixed",
                "backprop_steps": 2,
                "guidance": 3.0,
            },
        },
        adapter={"rank": 4, "alpha": 4.0, **USUAL_LAYERS},
        reward={"models": [{"kind": "brightness"}], "measure_every": {"n": 20, "unit": "step"}, "num_images": 8},
    )


@pytest.mark.full
@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("checkpointing", ["off", "whole"])
@pytest.mark.parametrize("trains", ["adapter", "full"])
def test_twenty_updates_raise_the_reward_on_eight_fixed_seeds(
    tmp_path: Path, one_thread: None, trains: str, checkpointing: str, seed: int
) -> None:
    ran = run(demo_config(tmp_path, trains=trains, checkpointing=checkpointing, seed=seed))
    assert len(ran.of(StepFinished)) == 20, ran.ending
    before, after = (m.followed for m in ran.of(RewardMeasured))
    assert before is not None
    assert after is not None
    assert after > before + 0.05
    assert [m.num_images for m in ran.of(RewardMeasured)] == [8, 8]


# ---- mixed runs


@pytest.mark.full
def test_a_mixed_run_trains_on_the_reward_in_some_steps(any_model: Path, images: Path, tmp_path: Path) -> None:
    """All other features: caches, a second device, trained text encoders, accumulation, EMA."""
    config = laid_over(
        reward_config(tmp_path, any_model, images, probability=0.3),
        {
            "general": {"temp_device": "cpu:1", "debug_checks": True},
            "training": {"epochs": 2, "batch_size": 1, "accumulation_steps": 2, "ema": {"mode": "temp_device"}},
        },
    )
    ran = run(config)
    ways = ways_of(ran)
    assert True in ways, ran.ending
    assert False in ways
    assert ran.finished.outcome == "finished"
    dry_run_done = [e.detail for e in ran.of(PhaseChanged) if e.phase == "dry_run"]
    assert dry_run_done[:2] == ["a training step (reward)", "a training step (denoising)"]
    for step in ran.of(StepFinished):
        assert (set(step.metrics) == {"reward", "reward/brightness"}) == ("reward" in step.metrics)


def test_with_probability_1_every_step_follows_the_reward(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    assert set(ways_of(run(reward_config(tmp_path, tiny_sd, images, probability=1.0)))) == {True}


def test_with_probability_0_it_trains_like_denoising(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    plain = run(small_config(tmp_path / "plain", model=tiny_sd, images=images))
    never = run(reward_config(tmp_path / "never", tiny_sd, images, probability=0.0))
    assert set(ways_of(never)) == {False}
    assert_equal_tensors(plain.weights, never.weights)


@pytest.mark.full
def test_a_concepts_weight_also_applies_to_reward_steps(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    losses = []
    for weight in (1.0, 0.25):
        config = reward_config(tmp_path / str(weight), tiny_sd, images)
        weighed = {"concepts": [{"path": str(images), "loss_weight": weight}], "training": {"epochs": 1}}
        [first, *_] = run(laid_over(config, weighed)).of(StepFinished)
        losses.append((first.loss, first.metrics["reward"]))
    assert losses[1][0] == pytest.approx(0.25 * (losses[0][0] or 0.0))
    assert losses[1][1] == losses[0][1]


# ---- errors are found before the first step


def test_a_rare_branch_is_tried_at_the_start(
    tiny_sd: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OneTrainer#467, planted: an argument is missing in the reward branch, which runs in one step of a thousand."""

    def broken(*_arguments: object, **_options: object) -> None:
        raise TypeError("roll_out() missing 1 required keyword-only argument: 'size'")

    monkeypatch.setattr("trainer.methods.alignprop.roll_out", broken)
    ran = run(reward_config(tmp_path, tiny_sd, images, probability=0.001))
    assert isinstance(ran.ending, RunFailed)
    assert "failed at a training step (reward)" in ran.ending.message
    assert not ran.of(StepFinished)


# ---- stop and resume


@pytest.mark.full
def test_stopped_between_denoising_steps_and_resumed_ends_bit_equal(
    tiny_sd: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With random K, both branches, accumulation, EMA and dropout; the step in progress is discarded and repeated."""
    configs = [
        laid_over(
            reward_config(tmp_path / name, tiny_sd, images, probability=0.6),
            {
                "training": {"epochs": 3, "accumulation_steps": 2, "batch_size": 1, "ema": {"mode": "train_device"}},
                "adapter": {"dropout": 0.2},
                "data": {"caption_dropout": 0.2},
            },
        )
        for name in ("straight", "stopped")
    ]
    straight = run(configs[0])
    plain_check = Pauses.check
    rolled: list[int] = []

    def check(pauses: Pauses) -> None:
        # Within a rollout checks follow each other without a backward pass between them.
        rolled.append(1)
        if len(backwards) > 4 and len(rolled) >= 3:
            pauses._desk.put(Stop())
        plain_check(pauses)

    backwards: list[int] = []
    plain_backward = Stepper.backward

    def backward(stepper: Stepper, step_loss: Any) -> None:
        backwards.append(1)
        rolled.clear()
        plain_backward(stepper, step_loss)

    monkeypatch.setattr(Pauses, "check", check)
    monkeypatch.setattr(Stepper, "backward", backward)
    stopped = run(configs[1])
    monkeypatch.undo()
    assert stopped.finished.outcome == "stopped"
    assert 0 < stopped.finished.step < straight.finished.step
    resumed = run(configs[1], resume_from=Path(stopped.finished.backup_path))
    assert resumed.finished.outcome == "finished"
    assert_equal_tensors(straight.weights, resumed.weights)
    averages = [load_file(Path(r.finished.backup_path) / "ema.safetensors") for r in (straight, resumed)]
    assert_equal_tensors(*averages)


# ---- gradients and memory


@pytest.mark.full
@pytest.mark.parametrize(
    ("model", "precision", "is_cached"),
    matrix(["tiny_sd", "tiny_sd2", "tiny_sdxl"], ["float32", "bfloat16"], [True, False]),
)
def test_every_trained_parameter_gets_its_gradient(
    request: pytest.FixtureRequest,
    images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    precision: str,
    is_cached: bool,
) -> None:
    """Also under autocast, whose copies of the weights are first made where no gradient is kept (as torch 2.9 did)."""
    silent: list[list[str]] = []
    plain = Stepper.finish

    def finish(stepper: Stepper, step: int) -> Any:
        groups = stepper._groups.values()
        silent.append([n for g in groups for n, p in g.parameters.items() if p.grad is None or not p.grad.any()])
        return plain(stepper, step)

    monkeypatch.setattr(Stepper, "finish", finish)
    config = laid_over(
        reward_config(tmp_path, request.getfixturevalue(model), images, gradient_truncation="fixed"),
        {
            "training": {"trains": "full", "precision": precision, "epochs": 1},
            "data": {"latent_cache": is_cached, "text_cache": is_cached},
            "parts": {"unet": {"checkpointing": "whole" if is_cached else "block"}},
            "output": {"model_format": "single_file"},
        },
    )
    with old_autocast_cache(monkeypatch):
        ran = run(config)
    assert len(ran.of(StepFinished)) > 0, ran.ending
    # The first is the dry run's, of a few small copies.
    assert [names for names in silent[1:] if names] == []


@pytest.mark.full
def test_memory_savings_change_no_bit(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    config = reward_config(tmp_path, tiny_sd, images, gradient_truncation="fixed", backprop_steps=3)
    config = laid_over(config, {"training": {"epochs": 1}})
    plain = run(config)
    for unet in (
        {"checkpointing": "whole", "offload_activations": True},
        {"checkpointing": "block", "offload_fraction": 0.5},
    ):
        watched = {"general": {"temp_device": "cpu:1", "debug_checks": True}, "parts": {"unet": unet}}
        saving = run(laid_over(config, watched))
        assert saving.finished.outcome == "finished"
        assert_equal_tensors(plain.weights, saving.weights)


@pytest.mark.full
@pytest.mark.daily(1)
def test_selective_checkpointing_recomputes_casts_that_autocast_would_keep(
    tiny_sd: Path, images: Path, tmp_path: Path
) -> None:
    """Found by random runs: a second denoising step took the first one's casts, and its second pass had too many."""
    config = laid_over(
        reward_config(tmp_path, tiny_sd, images, guidance=1.0),
        {
            "training": {"trains": "full", "epochs": 1, "precision": "bfloat16", "learning_rate": 1e-5},
            "parts": {"unet": {"checkpointing": "selective"}, "text_encoder": {"train": False}},
        },
    )
    assert run(config).finished.outcome == "finished"


@pytest.mark.full
@pytest.mark.parametrize(
    ("model", "latent_cache", "text_cache"),
    matrix(["tiny_sd", "tiny_sdxl"], [True, False], [True, False], most_daily=2),
)
def test_no_part_is_offloaded_where_a_step_samples(
    request: pytest.FixtureRequest, tmp_path: Path, model: str, latent_cache: bool, text_cache: bool
) -> None:
    images = draw_folder(tmp_path / "two sizes", sizes=[(64, 64), (96, 64)])
    sample = {"prompt": "a disc", "width_px": 64, "height_px": 64, "steps": 2, "guidance": 3.0}
    config = laid_over(
        reward_config(tmp_path, request.getfixturevalue(model), images),
        {
            "general": {"temp_device": "cpu:1", "debug_checks": True},
            "data": {"latent_cache": latent_cache, "text_cache": text_cache},
            "parts": {key: {"train": False} for key in ("text_encoder", "text_encoder_2")},
            "training": {"epochs": 2},
            "concepts": [{"path": str(images)}, {"path": str(images), "kind": "validation"}],
            "validation": {"every": {"n": 1, "unit": "epoch"}, "num_timesteps": 1},
            "sampling": {"at_end": True, "prompts": [sample]},
            "reward": {"measure_every": {"n": 1, "unit": "epoch"}, "num_images": 1},
        },
    )
    ran = run(config)
    assert ran.finished.outcome == "finished"
    assert [m.step for m in ran.of(RewardMeasured)] == [0, 2, 4]


@pytest.mark.full
def test_the_dry_run_uses_the_maximum_of_backprop_steps(
    tiny_sd: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dry run tries the largest rollout of the run, and K is one random number per rollout."""
    from trainer.methods import alignprop

    plain, drawn = alignprop.roll_out, []

    def watched(*arguments: Any, **options: Any) -> Any:
        drawn.append(options["gradient_steps"])
        return plain(*arguments, **options)

    monkeypatch.setattr(alignprop, "roll_out", watched)
    config = reward_config(tmp_path, tiny_sd, images, backprop_steps=3)
    run(laid_over(config, {"training": {"epochs": 4}}))
    assert drawn[0] == 3
    assert set(drawn[1:]) == {1, 2, 3}
