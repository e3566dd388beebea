"""A method with its own rollouts and several steps on each of them: its steps are counted exactly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from modules.config.schema import Config
from modules.optim.optimizers.factored import Adafactor
from modules.settings.edit import set_path
from tests.builders import toy_policy
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.runs import Ran, assert_equal_tensors, run, stop_at
from trainer import preflight
from trainer.commands import Stop
from trainer.events import PhaseChanged, RunFailed, RunStarted, StepFinished
from trainer.step.pauses import Pauses

# Two sizes, three micro-batches, two groups in an epoch: four steps, and two epochs.
SIZES = [(64, 64)] * 3 + [(96, 64)] * 2
HARD: dict[str, Any] = {
    "training": {
        "method": {"name": "toy_policy"},
        "epochs": 2,
        "batch_size": 2,
        "accumulation_steps": 2,
        "learning_rate": 3e-3,
        "schedule": {"name": "cosine", "warmup_steps": 2},
        "ema": {"mode": "train_device", "decay": 0.9},
    },
    "adapter": {"dropout": 0.2},
    "parts": {"unet": {"checkpointing": "block"}, "text_encoder": {"train": False}},
    "reward": {"models": [{"kind": "brightness"}], "measure_every": {"unit": "never"}},
}
STEPS = 8


@pytest.fixture(scope="module", autouse=True)
def toy() -> Iterator[None]:
    with toy_policy.registered():
        yield


@pytest.fixture(scope="module")
def config(toy: None, tiny_sd: Path, tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("inner_epochs")
    images = draw_folder(folder / "images", sizes=SIZES, captions=["a disc", "a red disc, small"])
    return small_config(folder, model=tiny_sd, images=images, **HARD)


@pytest.fixture(scope="module")
def straight(config: Config, one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The uninterrupted run."""
    return run(elsewhere(config, tmp_path_factory.mktemp("straight")))


def elsewhere(config: Config, folder: Path) -> Config:
    return laid_over(
        config,
        {
            "general": {"workspace_dir": str(folder)},
            "output": {"destination": str(folder / "lora.safetensors")},
        },
    )


def steps_of(ran: Ran) -> list[Any]:
    """The events of each step, without their speed."""
    return [(s.step, s.epoch, s.epoch_step, s.loss, s.gradient_norm, s.learning_rates) for s in ran.of(StepFinished)]


@pytest.mark.full
def test_every_count_of_steps_is_that_of_the_inner_epochs(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollouts: list[tuple[int, bool, bool]] = []
    plain = toy_policy.Policy._roll_out

    def watched(policy: Any, batch: Any, prompts: Any, seeds: Any, context: Any) -> Any:
        rollout = plain(policy, batch, prompts, seeds, context)
        trains = any(m.training for m in context.family.parts["unet"].module.modules())
        rollouts.append((batch.step, rollout.images_B3PP.requires_grad, trains))
        assert len(rollout.images_B3PP) == 2 * batch.num_samples
        return rollout

    monkeypatch.setattr(toy_policy.Policy, "_roll_out", watched)
    ran = run(elsewhere(config, tmp_path / "watched"))
    steps = ran.of(StepFinished)
    assert [s.step for s in steps] == list(range(1, STEPS + 1))
    assert [(s.epoch, s.epoch_step, s.epoch_steps) for s in steps] == [(e, n, 4) for e in (1, 2) for n in range(1, 5)]
    preview = preflight.check(config).preview
    assert preview is not None
    assert preview.total_steps == ran.of(RunStarted)[0].total_steps == steps[-1].total_steps == STEPS
    assert steps[-1].learning_rates["unet"] < 0.1 * max(s.learning_rates["unet"] for s in steps), "no whole cosine"
    in_run = rollouts[1:]  # the first is the dry run's
    # Each group is rolled out once, a micro-batch at a time, without gradient and without dropout.
    groups = sorted({step for step, _, _ in in_run})
    assert groups == [0, 2, 4, 6]
    assert len(in_run) == 6
    assert not any(has_gradient or trains for _, has_gradient, trains in rollouts)
    # The first inner epoch is on policy, except for dropout; by the second the weights have changed.
    without_dropout = laid_over(config, {"adapter": {"dropout": 0.0}})
    plain_run = run(elsewhere(without_dropout, tmp_path))
    ratios = [s.metrics["ratio"] for s in plain_run.of(StepFinished)]
    assert ratios[0::2] == pytest.approx([1.0] * 4, abs=1e-5)
    assert all(abs(ratio - 1.0) > 1e-7 for ratio in ratios[3::2])


@pytest.mark.daily(1)
@pytest.mark.parametrize("stop_after", [2, 5])
def test_a_run_stopped_within_a_rollout_resumes_bit_equal(
    config: Config, straight: Ran, tmp_path: Path, stop_after: int
) -> None:
    killed = elsewhere(config, tmp_path / "killed")

    first = run(killed, on_event=stop_at(stop_after))
    assert (first.finished.outcome, first.finished.step) == ("stopped", stop_after)
    backup = Path(first.finished.backup_path)
    assert (backup / "method.safetensors").exists() == (stop_after % 2 == 1), "only a rollout under way is kept"
    second = run(killed, resume_from=backup)
    assert steps_of(first) + steps_of(second) == steps_of(straight)
    assert_equal_tensors(straight.weights, second.weights)
    for name in ("ema", "optimizer"):
        files = [Path(r.finished.backup_path) / f"{name}.safetensors" for r in (straight, second)]
        assert_equal_tensors(load_file(files[0]), load_file(files[1]))


@pytest.mark.full
def test_a_stop_takes_effect_during_a_rollout(
    config: Config, straight: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = elsewhere(config, tmp_path / "killed")
    plain_check, plain_roll_out = Pauses.check, toy_policy.Policy._roll_out
    now: list[Any] = [None, 0]

    def roll_out(policy: Any, batch: Any, *rest: Any) -> Any:
        now[:] = [batch.step, 0]
        return plain_roll_out(policy, batch, *rest)

    def check(pauses: Pauses) -> None:
        now[1] += 1
        if now == [4, 2]:  # the second denoising step of the third group's rollout
            pauses._desk.put(Stop())
        plain_check(pauses)

    monkeypatch.setattr(toy_policy.Policy, "_roll_out", roll_out)
    monkeypatch.setattr(Pauses, "check", check)
    first = run(killed)
    monkeypatch.undo()
    assert (first.finished.outcome, first.finished.step) == ("stopped", 4)
    second = run(killed, resume_from=Path(first.finished.backup_path))
    assert steps_of(first) + steps_of(second) == steps_of(straight)
    assert_equal_tensors(straight.weights, second.weights)


@pytest.mark.daily(1)
@pytest.mark.parametrize("mode", ["off", "whole"])
def test_gradients_arrive_whatever_is_checkpointed(config: Config, straight: Ran, tmp_path: Path, mode: str) -> None:
    """The rollout runs the same checkpointed forward without gradient, between the steps that need one."""
    other = run(elsewhere(laid_over(config, {"parts": {"unet": {"checkpointing": mode}}}), tmp_path))
    assert all(s.gradient_norm for s in straight.of(StepFinished))
    assert steps_of(other) == steps_of(straight)
    assert_equal_tensors(other.weights, straight.weights)


@pytest.mark.full
def test_under_autocast_the_first_inner_epoch_is_on_policy(config: Config, tmp_path: Path) -> None:
    changes = {"adapter": {"dropout": 0.0}, "training": {"precision": "bfloat16"}}
    ratios = [s.metrics["ratio"] for s in run(elsewhere(laid_over(config, changes), tmp_path)).of(StepFinished)]
    assert ratios[0::2] == pytest.approx([1.0] * 4, abs=1e-5), "sampled in another precision than learned"


@pytest.mark.full
def test_the_dry_run_does_one_step_also_with_a_fused_backward_pass(config: Config, tmp_path: Path) -> None:
    changes = {"training": {"accumulation_steps": 1, "clip_grad_norm": None, "epochs": 1}}
    fused, problems = set_path(laid_over(config, changes), "training.optimizer", Adafactor(fused_back_pass=True))
    assert not problems
    ran = run(elsewhere(fused, tmp_path))
    assert ran.finished.step == 6
    assert "a training step" in [e.detail for e in ran.of(PhaseChanged) if e.phase == "dry_run"]


@pytest.mark.daily(1)
@pytest.mark.parametrize(("made", "declared"), [(1, 2), (3, 2)])
def test_a_method_with_other_steps_than_its_record_fails(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: int, declared: int
) -> None:
    plain = toy_policy.build
    assert config.training.method == toy_policy.ToyPolicy(inner_epochs=declared)

    def other(settings: toy_policy.ToyPolicy, *rest: Any) -> toy_policy.Policy:
        return plain(settings.model_copy(update={"inner_epochs": made}), *rest)

    monkeypatch.setattr(toy_policy, "build", other)
    ending = run(elsewhere(config, tmp_path)).ending
    assert isinstance(ending, RunFailed)
    assert "ValueError: " in Path(ending.details_path).read_text()
