"""Reward models in a run: their scores, the held-out reward, early stopping, missing files, user code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from modules.config.codec import load_file
from modules.config.schema import Config
from modules.rewards.address import parse_address
from modules.rewards.settings import Scorer
from modules.rewards.user_code_file import approve, approved_hashes, hash_of
from modules.system.errors import DarkroomError
from modules.system.paths import approvals_file
from tests.builders import toy_policy
from tests.builders.clip import aesthetic_head, write_aesthetic_head, write_clip_folder
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.runs import assert_equal_tensors, run
from trainer import phases
from trainer.callbacks.rewards import RewardCallback
from trainer.cli.runs import RunSettings
from trainer.data.datasets import datasets_of
from trainer.events import RewardMeasured, RunFailed, StepFinished, WarningRaised
from trainer.jobs.config import allowed_code
from trainer.methods.measured_prompts import measured_prompts
from trainer.methods.reward_models import identity_of
from trainer.preflight import check
from trainer.run.allowed_code import unapproved_code

METHOD: dict[str, Any] = {"name": "alignprop", "steps": 3, "backprop_steps": 1, "guidance": 1.0}


def reward_config(folder: Path, model: Path, images: Path, *scorers: dict[str, Any], **method: Any) -> Config:
    return small_config(
        folder,
        model=model,
        images=images,
        training={"method": {**METHOD, **method}, "epochs": 1},
        reward={"models": list(scorers), "measure_every": {"n": 1, "unit": "step"}, "num_images": 2},
    )


# ---- measurements


@pytest.mark.full
def test_the_held_out_reward_is_logged_and_never_trained_on(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    brightness, contrast = {"kind": "brightness"}, {"kind": "contrast", "weight": 50.0}
    alone = run(reward_config(tmp_path / "alone", tiny_sd, images, brightness))
    watched = run(
        reward_config(tmp_path / "watched", tiny_sd, images, brightness, contrast, held_out_reward="contrast")
    )
    both = run(reward_config(tmp_path / "both", tiny_sd, images, brightness, contrast))
    assert_equal_tensors(alone.weights, watched.weights)
    assert any(not one.equal(both.weights[name]) for name, one in alone.weights.items())
    steps = len(watched.of(StepFinished))
    measured = watched.of(RewardMeasured)
    assert [m.step for m in measured] == list(range(steps + 1))
    for m in measured:
        assert m.held_out_by == "contrast"
        assert m.held_out == m.by_reward_model["contrast"]
        assert m.followed == m.by_reward_model["brightness"]
    assert [m.followed for m in measured] == [m.followed for m in alone.of(RewardMeasured)]
    assert all("contrast" not in name for s in watched.of(StepFinished) for name in s.metrics)


@pytest.mark.full
def test_measuring_changes_nothing(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    config = reward_config(tmp_path / "often", tiny_sd, images, {"kind": "brightness"})
    never = laid_over(config, {"reward": {"measure_every": {"unit": "never"}}})
    quiet = run(never)
    assert not quiet.of(RewardMeasured)
    assert_equal_tensors(run(config).weights, quiet.weights)


def test_the_run_ends_once_the_held_out_reward_no_longer_rises(
    tiny_sd: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewards = {0: 9.0, 1: 0.3, 2: 0.5, 3: 0.4, 4: 0.5}

    def scored(_callback: RewardCallback, step: int) -> RewardMeasured:
        return RewardMeasured(step, 2, followed=float(step), held_out=rewards[step], held_out_by="contrast")

    monkeypatch.setattr(RewardCallback, "_score_images", scored)
    config = laid_over(
        reward_config(tmp_path, tiny_sd, images, {"kind": "brightness"}, held_out_reward="contrast"),
        {"training": {"epochs": 9, "batch_size": 1}, "reward": {"early_stopping_patience": 2}},
    )
    ran = run(config)
    assert (ran.finished.outcome, ran.finished.step) == ("stopped_early", 4)
    assert "2 reward evaluations in a row did not improve on step 2." in ran.finished.message
    assert [m.best_step for m in ran.of(RewardMeasured)] == [None, 1, 2, 2, 2]
    again = run(config, resume_from=Path(ran.finished.backup_path))
    assert (again.finished.outcome, again.finished.step) == ("stopped_early", 4)


@pytest.mark.full
def test_other_reward_models_restart_the_search_for_the_best(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    config = reward_config(tmp_path, tiny_sd, images, {"kind": "brightness"})
    first = run(config)
    longer = laid_over(
        config,
        {
            "training": {"epochs": 2},
            "sampling": {"prompts": [{"prompt": "a disc", "width_px": 64, "height_px": 64, "steps": 2}]},
        },
    )
    second = run(longer, resume_from=Path(first.finished.backup_path))
    assert any("The search for the best model starts again" in w.message for w in second.of(WarningRaised))
    assert all(m.best_step is None or m.best_step > first.finished.step for m in second.of(RewardMeasured))


def test_older_backups_stay_comparable() -> None:
    scorers = [
        Scorer(kind="pickscore", weight=2.0),
        Scorer(kind="colour_target", colour="#00ff00"),
        Scorer(kind="user_code", file="r.py:score"),
    ]
    assert identity_of(scorers) == "5ea7f94e0c0b32a409f4466f"  # before reward servers and their settings
    assert identity_of([s.model_copy(update={"timeout_seconds": 5.0}) for s in scorers]) == identity_of(scorers)
    server = Scorer(kind="vision_model", address="http://127.0.0.1:8000/v1", model_name="one")
    assert identity_of([server]) != identity_of([server.model_copy(update={"rubric": "Red is better."})])


def test_the_images_of_a_measurement(tiny_sd: Path, tmp_path: Path) -> None:
    seen = draw_folder(tmp_path / "seen", sizes=[(64, 64)], captions=["seen"])
    unseen = draw_folder(tmp_path / "unseen", sizes=[(96, 64), (64, 64)], captions=["one", "two"])
    config = laid_over(
        reward_config(tmp_path, tiny_sd, seen, {"kind": "brightness"}, guidance=4.0),
        {"reward": {"num_images": 5}},
    )

    def prompts_of(config: Config) -> list[tuple[str, int, int]]:
        found = datasets_of(config)
        training, validation = found.training, found.validation
        return [(p.prompt, p.width_px, p.seed) for p in measured_prompts(config, validation, training)]

    assert prompts_of(config) == [("seen", 64, seed) for seed in range(5)]
    validated = laid_over(config, {"concepts": [{"path": str(seen)}, {"path": str(unseen), "kind": "validation"}]})
    assert prompts_of(validated) == [("one", 80, 0), ("two", 64, 1), ("one", 80, 1), ("two", 64, 2), ("one", 80, 2)]
    found = datasets_of(validated)
    training, validation = found.training, found.validation
    own = {"training": {"method": {"gradient_truncation": "direct", "clean_images": "own"}}}
    for measured in (validated, laid_over(validated, own)):
        assert {(p.steps, p.guidance) for p in measured_prompts(measured, validation, training)} == {(3, 4.0)}
    samples = [{"prompt": "a", "seed": 7}, {"prompt": "b", "enabled": False}]
    assert prompts_of(laid_over(validated, {"sampling": {"prompts": samples}})) == [("a", 512, 7 + n) for n in range(5)]


# ---- problems before the start


def test_a_missing_file_is_reported_with_its_field(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    config = reward_config(tmp_path, tiny_sd, images, {"kind": "hps", "file": str(tmp_path / "nowhere.pt")})
    [error] = check(config).errors
    assert error.path == "reward.models.0.file"
    assert "nowhere.pt" in error.message
    ending = run(config).ending
    assert isinstance(ending, RunFailed)
    assert "nowhere.pt" in ending.message


def test_downloads_are_reported_before_the_start(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    config = reward_config(tmp_path, tiny_sd, images, {"kind": "pickscore"})
    report = check(config)
    assert not report.errors
    assert report.preview is not None
    [line] = report.preview.reward_models
    assert "PickScore" in line
    assert "3.9 GB" in line
    offline = check(laid_over(config, {"model": {"offline": True}}))
    assert [e.path for e in offline.errors] == ["reward.models.0.file"]


def test_an_early_stop_needs_measurements(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    config = laid_over(
        reward_config(tmp_path, tiny_sd, images, {"kind": "brightness"}),
        {"reward": {"measure_every": {"unit": "never"}, "early_stopping_patience": 2}},
    )
    assert [e.path for e in check(config).errors] == ["reward.early_stopping_patience"]


def test_many_backprop_steps_without_checkpointing_are_reported(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    config = reward_config(tmp_path, tiny_sd, images, {"kind": "brightness"}, backprop_steps=3)
    hints = [p for p in check(config).problems if p.path == "parts.unet.checkpointing"]
    assert [p.severity for p in hints] == ["info"]
    assert "3 passes" in hints[0].message
    saving = laid_over(config, {"parts": {"unet": {"checkpointing": "whole"}}})
    assert not [p for p in check(saving).problems if p.path == "parts.unet.checkpointing"]


def test_the_decoder_is_on_the_device_where_a_step_samples(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    from modules.families.registry import FAMILIES

    rewarded = reward_config(tmp_path, tiny_sd, images, {"kind": "brightness"})
    plain = small_config(tmp_path, model=tiny_sd, images=images)
    for config, phase, is_needed in (
        (rewarded, phases.TRAIN, True),
        (rewarded, phases.VALIDATE, False),
        (plain, phases.TRAIN, False),
    ):
        needed = phases.needed_parts(phase, FAMILIES["sd"], phases.phase_facts(config))
        assert ("vae" in needed) == is_needed


# ---- user code

GREEN = "def green(images, prompts):\n    return images[:, 1].mean(dim=(1, 2))\n"
BLIND = "import numpy\n\n\ndef blind(images, prompts):\n    return images.detach().mean(dim=(1, 2, 3))\n"


def test_code_runs_only_where_it_was_approved(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(GREEN)
    config = reward_config(tmp_path, tiny_sd, images, {"kind": "user_code", "file": f"{file}:green"})
    [code] = unapproved_code(config)
    assert (code.path, code.function, code.digest) == (file, "green", hash_of(file))
    refused = run(config).ending
    assert isinstance(refused, RunFailed)
    assert "is not approved" in refused.message
    approve(code.digest, code.path)
    assert unapproved_code(config) == ()
    ran = run(config)
    assert all("reward/user_code" in s.metrics for s in ran.of(StepFinished)), ran.ending
    assert ran.of(StepFinished)
    assert any("runs as a program" in w.message for w in ran.of(WarningRaised))
    file.write_text(GREEN + "\n")  # another file now
    assert isinstance(run(config).ending, RunFailed)


def test_the_command_line_allows_code_for_one_run(tiny_sd: Path, images: Path, tmp_path: Path) -> None:

    file = tmp_path / "mine.py"
    file.write_text(GREEN)
    config = reward_config(tmp_path, tiny_sd, images, {"kind": "user_code", "file": f"{file}:green"})
    assert allowed_code(config, RunSettings()) == frozenset()
    allowed = allowed_code(config, RunSettings(allow_code=True))
    assert allowed == {hash_of(file)}
    assert not check(config, approved_code=allowed).errors
    address = parse_address("https://example.com/score")
    assert allowed_code(config, RunSettings(allow_address=("https://EXAMPLE.com:443/score",))) == {address.digest}
    with pytest.raises(DarkroomError, match="not the address of a server"):
        allowed_code(config, RunSettings(allow_address=("example.com",)))
    assert approved_hashes() == frozenset()


def test_approvals_that_cannot_be_read_approve_nothing() -> None:
    file = approvals_file()
    assert approved_hashes() == frozenset()
    file.parent.mkdir(parents=True, exist_ok=True)
    for content in ("{", "[]", '"x"'):
        file.write_text(content)
        assert approved_hashes() == frozenset()
    approve("abc", Path("mine.py"))
    assert json.loads(file.read_text()) == {"abc": "mine.py"}


@pytest.mark.full
def test_a_reward_that_is_not_differentiable_is_named(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(BLIND)
    approve(hash_of(file), file)
    config = reward_config(tmp_path, tiny_sd, images, {"kind": "user_code", "file": f"{file}:blind"})
    silent = run(config)
    assert isinstance(silent.ending, RunFailed)
    assert "The scores of the reward blind of mine.py cannot be traced back" in silent.ending.message
    file.write_text(BLIND + "\n\nblind.is_differentiable = False\n")
    approve(hash_of(file), file)
    honest = run(config)
    assert isinstance(honest.ending, RunFailed)
    assert "a gradient to the images, which user_code does not have" in honest.ending.message
    assert not honest.of(StepFinished)
    beside = laid_over(
        config,
        {
            "reward": {"models": [{"kind": "brightness"}, {"kind": "user_code", "file": f"{file}:blind"}]},
            "training": {"method": {**METHOD, "held_out_reward": "user_code"}},
        },
    )
    assert run(beside).of(RewardMeasured)[-1].held_out is not None


def without_gradient(folder: Path, model: Path, images: Path, *scorers: dict[str, Any]) -> Config:
    """A run whose method samples images and needs no gradient of its rewards."""
    return small_config(
        folder,
        model=model,
        images=images,
        training={"method": {"name": "toy_policy"}, "epochs": 2, "batch_size": 2},
        reward={"models": list(scorers), "measure_every": {"n": 1, "unit": "epoch"}, "num_images": 2},
    )


@pytest.mark.full
def test_methods_without_reward_gradient_take_any_reward(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import numpy\n\n\ndef blind(images, prompts):\n"
        "    return [None if p.startswith('b') else numpy.median(i) for i, p in zip(images.numpy(), prompts)]\n\n\n"
        "blind.is_differentiable = False\n"
    )
    approve(hash_of(file), file)
    scorers = [{"kind": "compressibility"}, {"kind": "user_code", "file": f"{file}:blind"}]
    with toy_policy.registered():
        config = without_gradient(tmp_path, tiny_sd, images, *scorers)
        assert not check(config).errors
        ran = run(config)
        assert ran.finished.outcome == "finished"
        measured = ran.of(RewardMeasured)
        assert all(m.by_reward_model["compressibility"] < 0 for m in measured)
        assert len(measured) == 3
    refused = check(reward_config(tmp_path, tiny_sd, images, {"kind": "compressibility"})).errors
    assert [e.message for e in refused] == ["AlignProp needs gradients, which JPEG compressibility does not have."]


@pytest.mark.full
def test_a_failing_reward_ends_the_run_and_nothing_is_lost(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    # The dry run calls it once and each group of two steps once more, so it fails in the second group.
    file.write_text(
        "calls = []\n\n\ndef score(images, prompts):\n    calls.append(1)\n    if len(calls) == 3:\n"
        "        raise KeyError('lost')\n    return [float(i.mean()) for i in images]\n\n\n"
        "score.is_differentiable = False\n"
    )
    approve(hash_of(file), file)
    with toy_policy.registered():
        config = without_gradient(tmp_path, tiny_sd, images, {"kind": "user_code", "file": f"{file}:score"})
        config = laid_over(config, {"reward": {"measure_every": {"unit": "never"}}})
        ran = run(config)
        assert isinstance(ran.ending, RunFailed)
        assert "The reward score of mine.py failed in line " in ran.ending.message
        steps = [s.step for s in ran.of(StepFinished)]
        assert steps
        resumed = run(config, resume_from=Path(ran.ending.backup_path))
        assert next(s.step for s in resumed.of(StepFinished)) == steps[-1] + 1


# ---- OneTrainer


@pytest.mark.full
def test_an_onetrainer_config_with_a_reward_trains(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    """OneTrainer died here after 31 steps on a missing argument (OneTrainer#467)."""
    data = {
        "__version": 0,
        "training_method": "LORA",
        "model_type": "STABLE_DIFFUSION_15",
        "base_model_name": str(tiny_sd),
        "workspace_dir": str(tmp_path / "workspace"),
        "cache_dir": str(tmp_path / "cache"),
        "output_model_destination": str(tmp_path / "lora.safetensors"),
        "concepts": [{"path": str(images)}],
        "resolution": "64",
        "train_device": "cpu",
        "temp_device": "cpu",
        "train_dtype": "FLOAT_32",
        "epochs": 2,
        "tensorboard": False,
        "align_prop": True,
        "align_prop_probability": 0.5,
        "align_prop_loss": "AESTHETIC",
        "align_prop_weight": 0.01,
        "align_prop_steps": 4,
        "align_prop_truncate_steps": 0.5,
        "align_prop_cfg_scale": 3.0,
    }
    file = tmp_path / "old.json"
    file.write_text(json.dumps(data))
    config = load_file(file).config
    assert config.training.method.name == "alignprop"
    [scorer] = config.reward.models
    assert scorer.kind == "aesthetic"
    own = {
        "clip_model": str(write_clip_folder(tmp_path / "clip")),
        "file": str(write_aesthetic_head(tmp_path / "head.pth", aesthetic_head())),
    }
    ran = run(
        laid_over(
            config,
            {
                "reward": {"models": [{**scorer.model_dump(), **own}], "num_images": 1},
                "sampling": {"every": {"unit": "never"}, "at_start": False, "at_end": False},
                "validation": {"every": {"unit": "never"}},
            },
        )
    )
    ways = {"reward" in step.metrics for step in ran.of(StepFinished)}
    assert ways == {True, False}, ran.ending
    assert ran.finished.outcome == "finished"
