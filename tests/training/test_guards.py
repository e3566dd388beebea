"""Guards against overoptimization: each ends a run that goes wrong, leaves a good one alone, and survives a stop."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from modules.config.rules.rewards import reward_limits
from modules.config.schema import Config
from modules.config.sections.reward import Reward
from modules.objectives.methods.denoise import Denoise
from modules.objectives.registry import METHODS
from modules.rewards.composite import diversity
from modules.sampling.ddim_step import ddim_steps
from modules.settings.edit import set_path
from modules.system.paths import PROGRAM_ROOT
from tests.builders import toy_policy
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.runs import Ran, assert_equal_tensors, run, stop_at
from trainer.callbacks.guards import Guards
from trainer.callbacks.rewards import RewardCallback
from trainer.commands import Command
from trainer.data.datasets import datasets_of
from trainer.events import Event, ModelSaved, RewardMeasured, RunFailed, StepFinished, WarningRaised
from trainer.methods.measured_prompts import measured_prompts
from trainer.methods.protocol import StepContext, StepLoss
from trainer.preflight import check
from trainer.step.callback import StepView
from trainer.step.counters import Counters
from trainer.step.outcome import StepOutcome

pytestmark = pytest.mark.usefixtures("one_thread")

# ---- diversity


def test_diversity_is_the_distance_of_all_pairs_of_a_prompt() -> None:
    generator = np.random.default_rng(1)
    images = [generator.integers(0, 256, (4, 5, 3), dtype=np.uint8) for _ in range(6)]
    prompts = ["a", "b", "a", "a", "b", "c"]
    pairs = [(0, 2), (0, 3), (2, 3), (1, 4)]
    squares = [np.mean(((images[i].astype(float) - images[j]) / 255) ** 2) for i, j in pairs]
    assert diversity(images, prompts) == pytest.approx(np.sqrt(np.mean(squares)))
    assert diversity(images[:1] * 3, ["a", "a", "a"]) == 0.0
    assert diversity([np.zeros((2, 2, 3), np.uint8), np.full((2, 2, 3), 255, np.uint8)], ["a", "a"]) == 1.0
    assert diversity(images[:2], ["a", "b"]) is None


# ---- the limits, from numbers


def view(**metrics: float) -> StepView:
    outcome = StepOutcome(0.1, 1.0, 2, False, {}, metrics)
    return StepView(Counters(), Counters(), outcome, 1.0, 9, ("unet",))


def fed(settings: Reward, name: str, values: list[float]) -> Guards:
    guards = Guards(settings)
    for value in values:
        guards.after_step(view(**{name: value}))
    return guards


@pytest.mark.parametrize(
    ("values", "stops"),
    [
        ([0.1, 0.2, 0.1, 0.2, 0.1], False),
        ([0.1, 0.1, 0.9, 0.1, 0.1], False),  # a single outlier
        ([0.1, 0.5, 0.6, 0.7, 0.8], True),
        ([0.9, 0.9], False),  # too few to tell
        ([0.1, float("inf"), 0.1], True),
        ([0.1, float("nan"), 0.1, 0.1], False),
    ],
)
def test_the_kl_is_limited_on_average(values: list[float], stops: bool) -> None:
    guards = fed(Reward(max_kl=0.5, guard_steps=3), "kl", values)
    assert bool(guards.reason) is stops
    assert fed(Reward(guard_steps=3), "kl", values).reason == ""


def test_the_diversity_is_compared_with_its_start() -> None:
    settings = Reward(min_diversity=0.5, guard_steps=2)
    falling = [1.0, 0.8, 0.7, 0.6, 0.5, 0.35]
    reasons = [fed(settings, "diversity", falling[:n]).reason for n in range(len(falling) + 1)]
    assert [bool(r) for r in reasons] == [False] * 6 + [True]
    assert reasons[-1].startswith("the diversity of a prompt's images fell to 0.425, 47% of 0.9 at the start")
    assert "(limit: 50%)" in reasons[-1]
    assert not fed(settings, "diversity", [0.1, 0.1, 0.1, 0.1]).reason
    assert not fed(settings, "diversity", [0.0, 0.0, 0.0, 0.0]).reason, "equal images from the start are no collapse"


def measured(step: int, **values: Any) -> RewardMeasured:
    return RewardMeasured(step, 4, **{"followed": 0.0, **values})


def test_the_diversity_of_measurements_is_compared_with_the_first_on_the_same_prompts() -> None:
    guards = Guards(Reward(min_diversity=0.5))
    guards.after_measurement(measured(0, diversity=0.4), "these")
    guards.after_measurement(measured(5, diversity=0.19), "these")
    assert "48% of 0.4" in guards.reason
    guards.after_measurement(measured(5, diversity=0.19), "others")
    assert not guards.reason
    guards.after_measurement(measured(9, diversity=None), "others")
    assert not guards.reason


def test_the_reward_target_counts_after_the_first_step() -> None:
    guards = Guards(Reward(stop_at_reward=0.5))
    guards.after_measurement(measured(0, followed=0.9), "these")
    assert not guards.reason
    guards.after_measurement(measured(2, followed=None), "these")
    assert not guards.reason
    guards.after_measurement(measured(4, followed=0.5), "these")
    assert guards.reason == "the measured reward reached 0.5 (target: 0.5)."


def test_the_state_is_complete_and_json_safe() -> None:
    settings = Reward(max_kl=0.5, min_diversity=0.5, stop_at_reward=3.0, guard_steps=2)
    guards, again = Guards(settings), Guards(settings)
    for value in (0.4, 0.2, 0.05):
        guards.after_step(view(kl=value, diversity=value))
    guards.after_measurement(measured(3, followed=2.0, diversity=0.2), "these")
    again.load_state_dict(json.loads(json.dumps(guards.state_dict())))
    assert again.state_dict() == guards.state_dict()
    assert again.reason == guards.reason != ""
    again.load_state_dict({})  # a backup of an older version
    assert again.state_dict() == guards.state_dict()


# ---- a run that collapses


def collapsing(folder: Path, **reward: Any) -> Config:
    """A fine-tune of the demo model that follows the brightness until all images are white."""
    demo = PROGRAM_ROOT / "demo"
    return small_config(
        folder,
        model=demo / "model",
        images=demo / "shapes",
        training={
            "trains": "full",
            "method": {
                "name": "alignprop",
                "steps": 4,
                "backprop_steps": 1,
                "guidance": 2.0,
                "gradient_truncation": "fixed",
            },
            "learning_rate": 1e-3,
            "epochs": 2,
        },
        parts={"text_encoder": {"train": False}},
        reward={
            "models": [{"kind": "brightness"}],
            "measure_every": {"n": 4, "unit": "step"},
            "num_images": 6,
            **reward,
        },
    )


def changed(config: Config, folder: Path, **changes: Any) -> Config:
    """The same run elsewhere, with other settings."""
    places = {"general": {"workspace_dir": str(folder)}, "output": {"destination": str(folder / "it.safetensors")}}
    return laid_over(laid_over(config, places), changes)


def diversities(ran: Ran) -> list[float]:
    found = [m.diversity for m in ran.of(RewardMeasured)]
    return [d for d in found if d is not None]


@pytest.mark.full
@pytest.mark.slow
def test_a_collapsing_run_is_stopped_by_its_diversity_and_a_good_one_is_not(tmp_path: Path) -> None:
    config = collapsing(tmp_path / "guarded", min_diversity=0.6)
    guarded = run(config)
    assert guarded.finished.outcome == "stopped_early"
    assert "the diversity of a prompt's images fell to" in guarded.finished.message
    assert "(limit: 60%)" in guarded.finished.message
    assert Path(guarded.finished.model_path).exists()
    *before, last = diversities(guarded)
    assert all(d >= 0.6 * before[0] for d in before)
    assert last < 0.6 * before[0]

    # Resumed, the start is still that of the run, so it ends at once. With a lower limit it continues, and collapses.
    backup = Path(guarded.finished.backup_path)
    again = run(config, resume_from=backup)
    assert (again.finished.outcome, again.finished.step) == ("stopped_early", guarded.finished.step)
    assert again.finished.message == guarded.finished.message
    unguarded = run(laid_over(config, {"reward": {"min_diversity": 0.01}}), resume_from=backup)
    assert unguarded.finished.outcome == "finished"
    assert diversities(unguarded)[-1] < 0.35 * before[0], "the planted collapse did not happen"

    slow = {"learning_rate": 3e-5, "epochs": 1}
    calm = run(changed(config, tmp_path / "calm", training=slow, reward={"stop_at_reward": 5.0}))
    assert calm.finished.outcome == "finished"
    rewards = [m.followed or 0.0 for m in calm.of(RewardMeasured)]
    assert rewards[-1] > rewards[0]


@pytest.mark.full
def test_the_run_ends_where_the_measured_reward_reaches_its_target(tmp_path: Path) -> None:
    ran = run(collapsing(tmp_path, stop_at_reward=0.75))
    assert ran.finished.outcome == "stopped_early"
    rewards = [m.followed or 0.0 for m in ran.of(RewardMeasured)]
    assert all(r < 0.75 for r in rewards[:-1])
    assert rewards[-1] >= 0.75
    assert f"the measured reward reached {rewards[-1]:.4g} (target: 0.75)." in ran.finished.message


# ---- a method with rollouts


SPEC_WITH_KL: Any = replace(toy_policy.SPEC, reports=lambda s: {"kl"}, needs_reference=lambda s: True)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The toy policy method, which here also reports its KL to the reference."""
    plain = toy_policy.Policy.loss

    def loss(policy: toy_policy.Policy, batch: Any, context: StepContext) -> StepLoss:
        kl = kl_of(batch, context)
        given = plain(policy, batch, context)
        return replace(given, metrics={**given.metrics, "kl": kl})

    monkeypatch.setattr(toy_policy.Policy, "loss", loss)
    with toy_policy.registered():
        monkeypatch.setitem(METHODS, "toy_policy", SPEC_WITH_KL)
        yield


@torch.no_grad()
def kl_of(batch: Any, context: StepContext) -> torch.Tensor:
    """The KL to the original model, in the first denoising step of the samples."""
    family = context.family
    step = ddim_steps(family.process, family.scheduler_config(), num_steps=2, eta=1.0)[0]
    prompts = [caption for caption in batch.batch.captions for _ in range(toy_policy.SAMPLES_PER_PROMPT)]
    conditioning = toy_policy._whole(context.encode(prompts), batch.batch, context)
    latents_BCHW = batch.sampled.latents_BSCHW[:, 0]
    timesteps_B = torch.full((len(prompts),), step.timestep)

    def mean() -> torch.Tensor:
        return step.mean(family.predict(latents_BCHW, timesteps_B, conditioning), latents_BCHW)

    with context.prior():
        reference_BCHW = mean()
    return step.kl(mean(), reference_BCHW).mean()


def policy_config(folder: Path, model: Path, **changes: Any) -> Config:
    images = draw_folder(folder / "images", sizes=[(64, 64)] * 4, captions=["a disc", "a red disc, small"])
    config = small_config(
        folder,
        model=model,
        images=images,
        training={"method": {"name": "toy_policy"}, "epochs": 3, "learning_rate": 0.02},
        parts={"text_encoder": {"train": False}},
        reward={"models": [{"kind": "brightness"}], "measure_every": {"unit": "never"}, "guard_steps": 2},
    )
    return laid_over(config, changes)


def kls(ran: Ran) -> list[float]:
    return [s.metrics["kl"] for s in ran.of(StepFinished)]


@pytest.mark.full
def test_a_run_that_moves_away_from_the_reference_is_stopped(toy: None, tiny_sd: Path, tmp_path: Path) -> None:
    unguarded = run(policy_config(tmp_path / "unguarded", tiny_sd))
    moved = kls(unguarded)
    assert moved[0] < 1e-9, "the run starts at the reference"
    limit = (moved[3] + moved[4]) / 2 * 0.999
    assert limit > 1e-6

    config = policy_config(tmp_path / "guarded", tiny_sd, reward={"max_kl": limit})
    guarded = run(config)
    assert (guarded.finished.outcome, guarded.finished.step) == ("stopped_early", 5)  # in the middle of a rollout
    assert f"the KL to the reference reached {(moved[3] + moved[4]) / 2:.3g} (limit: {limit:g})" in (
        guarded.finished.message
    )
    wider = laid_over(config, {"reward": {"max_kl": 1e6}})
    resumed = run(wider, resume_from=Path(guarded.finished.backup_path))
    assert resumed.finished.outcome == "finished"
    assert_equal_tensors(resumed.weights, unguarded.weights)
    assert kls(guarded) + kls(resumed) == moved

    slow = changed(config, tmp_path / "slow", training={"learning_rate": 1e-4})
    assert run(slow).finished.outcome == "finished"


def test_a_prediction_of_the_original_that_the_record_does_not_state_fails(
    toy: None, tiny_sd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would otherwise be a prediction of the trained model, and the KL always 0."""
    monkeypatch.setitem(METHODS, "toy_policy", toy_policy.SPEC)  # type: ignore[arg-type]
    ending = run(policy_config(tmp_path, tiny_sd)).ending
    assert isinstance(ending, RunFailed)
    assert "needs_reference" in ending.message


@pytest.mark.full
def test_a_run_stopped_by_the_user_keeps_the_state_of_its_guards(toy: None, tiny_sd: Path, tmp_path: Path) -> None:
    changes = {"reward": {"max_kl": 1e6, "measure_every": {"n": 2, "unit": "step"}, "num_images": 2}}
    straight = run(policy_config(tmp_path / "straight", tiny_sd, **changes))
    halves = policy_config(tmp_path / "halves", tiny_sd, **changes)

    first = run(halves, on_event=stop_at(3))
    second = run(halves, resume_from=Path(first.finished.backup_path))
    states = [json.loads((Path(r.finished.backup_path) / "state.json").read_text()) for r in (straight, second)]
    assert states[0]["rewards"]["guards"] == states[1]["rewards"]["guards"]
    assert len(states[0]["rewards"]["guards"]["kl"]["newest"]) == 2


@pytest.mark.daily(1)
@pytest.mark.parametrize("method", [{"name": "ddpo", "samples_per_prompt": 2}, {"name": "grpo", "group_size": 2}])
def test_the_policy_methods_report_what_the_guards_need(method: dict[str, Any], tiny_sd: Path, tmp_path: Path) -> None:
    """Also with several rewards: each is reported by its name, in every step and every measurement."""
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 2, captions=["a disc", "a red disc, small"])
    config = small_config(
        tmp_path,
        model=tiny_sd,
        images=images,
        training={"method": {**method, "steps": 3, "kl_weight": 0.1}, "epochs": 2},
        parts={"text_encoder": {"train": False}},
        reward={
            "models": [{"kind": "brightness"}, {"kind": "compressibility", "weight": 0.5}],
            "measure_every": {"n": 1, "unit": "step"},
            "num_images": 2,
            "max_kl": 1e6,
            "min_diversity": 0.01,
            "guard_steps": 1,
        },
    )
    assert not check(config).errors
    ran = run(config)
    assert ran.finished.outcome == "finished"
    for step in ran.of(StepFinished):
        assert step.metrics.keys() >= {"kl", "diversity", "reward", "reward/brightness", "reward/compressibility"}
    for m in ran.of(RewardMeasured):
        assert m.by_reward_model.keys() == {"brightness", "compressibility"}
        total = m.by_reward_model["brightness"] + 0.5 * m.by_reward_model["compressibility"]
        assert m.followed == pytest.approx(total)
    state = json.loads((Path(ran.finished.backup_path) / "state.json").read_text())["rewards"]["guards"]
    assert all(state[name]["newest"] for name in ("kl", "diversity"))
    without = laid_over(config, {"training": {"method": {"kl_weight": 0.0}}})
    assert rules(without) == [("reward.max_kl", "error")]


def play(monkeypatch: pytest.MonkeyPatch, rewards: dict[int, float]) -> None:
    """Let measurements return given held-out rewards."""

    def scored(_callback: RewardCallback, step: int) -> RewardMeasured:
        return RewardMeasured(step, 2, followed=float(step), held_out=None, by_reward_model={"brightness": 0.5})

    monkeypatch.setattr(RewardCallback, "_score_images", lambda c, s: replace(scored(c, s), followed=rewards[s]))


def test_a_method_with_rollouts_stops_early_and_ends_with_its_best_model(
    toy: None, tiny_sd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, {0: 9.0, 1: 0.3, 2: 0.5, 3: 0.7, 4: 0.4, 5: 0.5, 6: 0.1})
    reward = {
        "measure_every": {"n": 1, "unit": "step"},
        "early_stopping_patience": 2,
        "keep_best": True,
        "result": "best",
    }
    ran = run(policy_config(tmp_path, tiny_sd, reward=reward))
    assert (ran.finished.outcome, ran.finished.step) == ("stopped_early", 5)
    assert "2 reward evaluations in a row did not improve on step 3." in ran.finished.message
    assert ran.finished.message.endswith("The result is the best model by reward, from step 3 (reward 0.7).")
    saves = [s for s in ran.of(ModelSaved) if "-best-reward" in s.path]
    assert [s.step for s in saves] == [1, 2, 3]
    assert Path(ran.finished.model_path).read_bytes() == Path(saves[-1].path).read_bytes()


def test_a_best_model_that_was_deleted_is_reported(
    toy: None, tiny_sd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, dict.fromkeys(range(9), 0.5))

    def delete(event: Event, send: Callable[[Command], None]) -> None:
        if isinstance(event, ModelSaved) and "-best-reward" in event.path:
            Path(event.path).unlink()

    reward = {"measure_every": {"n": 1, "unit": "step"}, "keep_best": True, "result": "best"}
    ran = run(policy_config(tmp_path, tiny_sd, training={"epochs": 1}, reward=reward), on_event=delete)
    assert any("The result is the last model" in w.message for w in ran.of(WarningRaised))
    assert Path(ran.finished.model_path).exists()


# ---- before the start


def rules(config: Config) -> list[tuple[str, str]]:
    return [(p.path, p.severity) for p in reward_limits(config)]


def test_limits_without_their_measurements_are_refused(toy: None, tiny_sd: Path, tmp_path: Path) -> None:
    config = policy_config(tmp_path, tiny_sd)
    assert rules(config) == []
    everything = {
        "early_stopping_patience": 1,
        "keep_best": True,
        "stop_at_reward": 1.0,
        "min_diversity": 0.5,
        "max_kl": 0.1,
    }
    blind = laid_over(config, {"reward": everything})
    names = ["early_stopping_patience", "keep_best", "stop_at_reward", "min_diversity"]
    assert rules(blind) == [(f"reward.{name}", "error") for name in names]
    assert rules(laid_over(blind, {"reward": {"measure_every": {"unit": "epoch"}}})) == []
    other, _ = set_path(blind, "training.method", Denoise())
    assert rules(other) == []


def test_a_kl_limit_needs_a_method_that_reports_it(
    toy: None, tiny_sd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "toy_policy", toy_policy.SPEC)  # type: ignore[arg-type]
    config = policy_config(tmp_path, tiny_sd, reward={"max_kl": 0.1})
    assert rules(config) == [("reward.max_kl", "error")]


def test_the_result_is_the_best_by_one_measure(toy: None, tiny_sd: Path, tmp_path: Path) -> None:
    best = {"keep_best": True, "result": "best"}
    reward = {**best, "measure_every": {"unit": "epoch"}}
    config = policy_config(tmp_path, tiny_sd, reward=reward, validation=best)
    assert rules(config) == [("reward.result", "error")]


def test_the_diversity_of_a_measurement_has_two_seeds_of_each_prompt(tiny_sd: Path, tmp_path: Path) -> None:
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 5, captions=["a", "b", "c", "d", "e"])

    def prompts(**reward: Any) -> list[tuple[str, int]]:
        config = small_config(
            tmp_path, model=tiny_sd, images=images, training={"method": {"name": "alignprop"}},
            reward={"models": [{"kind": "brightness"}], **reward},
        )  # fmt: skip
        found = datasets_of(config)
        return [(p.prompt, p.seed) for p in measured_prompts(config, found.validation, found.training)]

    assert prompts(num_images=4) == [("a", 0), ("b", 1), ("c", 2), ("d", 3)]
    assert prompts(num_images=4, min_diversity=0.5) == [("a", 0), ("b", 1), ("a", 1), ("b", 2)]
    assert prompts(num_images=1, min_diversity=0.5) == [("a", 0), ("a", 1)]


def test_measured_prompts_that_are_trained_on_are_named(tiny_sd: Path, tmp_path: Path) -> None:
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 2, captions=["a disc", "a cat"])
    unseen = draw_folder(tmp_path / "unseen", sizes=[(64, 64)] * 2, captions=["a dog", "a cat"])
    config = small_config(
        tmp_path, model=tiny_sd, images=images, training={"method": {"name": "alignprop", "steps": 2}},
        reward={"models": [{"kind": "brightness"}], "measure_every": {"n": 1, "unit": "step"}},
    )  # fmt: skip

    def said(**changes: Any) -> list[str]:
        return [p.message for p in check(laid_over(config, changes)).problems if p.path == "reward.measure_every"]

    [message] = said()
    assert "prompts that are also trained on (all), such as 'a disc'" in message
    [message] = said(concepts=[{"path": str(images)}, {"path": str(unseen), "kind": "validation"}])
    assert "(1 of 2), such as 'a cat'" in message
    assert said(sampling={"prompts": [{"prompt": "a tree"}]}) == []
    assert said(sampling={"prompts": [{"prompt": "a disc "}]})
    assert said(reward={"measure_every": {"unit": "never"}}) == []
