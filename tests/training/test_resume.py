"""A run that is killed and resumed, twice, ends bit for bit like the uninterrupted one: real processes, SIGKILL."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from modules.config.codec import save_file
from modules.config.schema import Config
from modules.settings.edit import set_path
from modules.system.paths import PROGRAM_ROOT
from tests.builders.configs import USUAL_LAYERS, laid_over, small_config
from tests.builders.editing_models import EDITING_MODELS, with_references
from tests.builders.flow_models import FLOW_MODELS
from tests.builders.images import draw_folder
from tests.builders.runs import assert_equal_tensors, run
from trainer.commands import CommandDesk, Stop
from trainer.event_lines import to_line
from trainer.events import RunFailed, StepFinished, WarningRaised
from trainer.methods.protocol import StepLoss
from trainer.preflight import check
from trainer.preflight.moved_inputs import problems_of_inputs
from trainer.run_folder.backup import find_backup
from trainer.step.stepper import Stepper

# 20 steps in 4 epochs: two sizes, 13 micro-batches in windows of three, the last shorter, and each image twice.
SIZES = [(64, 64)] * 7 + [(96, 64)] * 6
HARD: dict[str, Any] = {
    "data": {"caption_dropout": 0.2},
    "training": {
        "epochs": 4,
        "batch_size": 2,
        "accumulation_steps": 3,
        "learning_rate": 3e-3,
        "schedule": {"name": "cosine", "warmup_steps": 3},
        "ema": {"mode": "train_device", "decay": 0.9},
    },
    "adapter": {"dropout": 0.2, **USUAL_LAYERS},
    "parts": {
        "unet": {"checkpointing": "block"},
        "transformer": {"checkpointing": "block"},
        "text_encoder": {"learning_rate": 1e-3},
    },
    "backup": {"every": {"n": 5, "unit": "step"}, "keep": 0},
}


# A LoRA, or the whole model in bfloat16 with stochastic rounding.
WHOLE: dict[str, Any] = {
    "training": {"trains": "full", "learning_rate": 1e-4, "low_precision_updates": "stochastic"},
    "parts": {name: {"dtype": "bfloat16"} for name in ("unet", "text_encoder", "text_encoder_2")},
}
KINDS = [
    "tiny_sd",
    *(
        pytest.param(kind, marks=pytest.mark.full)
        for kind in ("tiny_sdxl", "tiny_sd whole", "tiny_sdxl whole", *FLOW_MODELS, *EDITING_MODELS)
    ),
]


@pytest.fixture
def hard_config(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("resume")
    images = draw_folder(folder / "images", sizes=SIZES, captions=["a disc", "a red disc, small", "nothing"])
    model, _, is_whole = request.param.partition(" ")
    config = small_config(
        folder,
        model=request.getfixturevalue(model),
        images=images,
        **HARD,
        concepts=[{"path": str(images), "repeats": 2}],
    )
    return laid_over(config, WHOLE) if is_whole else with_references(config)


def process(*arguments: str, kill_after_step: int | None = None) -> tuple[int, list[dict[str, Any]]]:
    """Run the command line; kill it with SIGKILL as soon as it reports a step. Returns exit code and events."""
    command = [sys.executable, "-m", "trainer", *arguments, "--json-lines"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    events = []
    with subprocess.Popen(
        command, cwd=PROGRAM_ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            event = json.loads(line)
            events.append(event)
            if event["event"] == "StepFinished" and event["step"] == kill_after_step:
                child.send_signal(signal.SIGKILL)
                break
        child.wait()
    return child.returncode, events


def run_dir_of(config: Config) -> Path:
    [run_dir] = (Path(config.general.workspace_dir) / "runs").iterdir()
    return run_dir


def steps_of(events: list[dict[str, Any]]) -> dict[int, tuple[object, ...]]:
    """What each step reported, apart from how fast it was."""
    reported = ("epoch", "epoch_step", "epoch_steps", "loss", "smoothed_loss", "gradient_norm", "num_skipped")
    return {
        e["step"]: (*(e[name] for name in reported), tuple(e["learning_rates"].items()))
        for e in events
        if e["event"] == "StepFinished"
    }


@pytest.mark.full
@pytest.mark.parametrize("hard_config", KINDS, indirect=True)
def test_killed_twice_and_resumed_ends_bit_equal(hard_config: Config, tmp_path: Path) -> None:
    preview = check(hard_config).preview
    assert preview is not None
    of_16_px = {"64x64": 7, "80x48": 6}
    step_px = hard_config.data.bucket_step_px
    side_px = max(64, step_px)
    assert dict(preview.buckets) == (of_16_px if step_px == 16 else {f"{side_px}x{side_px}": 13})
    straight, killed = (
        laid_over(
            hard_config,
            {
                "general": {"workspace_dir": str(tmp_path / name)},
                "output": {"destination": str(tmp_path / name / "lora.safetensors")},
            },
        )
        for name in ("straight", "killed")
    )
    save_file(killed, tmp_path / "killed.json")
    uninterrupted = run(straight)
    assert uninterrupted.finished.outcome == "finished"
    expected = steps_of([json.loads(to_line(event)) for event in uninterrupted.events])
    assert len(expected) == 20

    first = process("train", str(tmp_path / "killed.json"), kill_after_step=12)
    run_dir = run_dir_of(killed)
    second = process("resume", str(run_dir), kill_after_step=17)
    third = run(killed, resume_from=find_backup(run_dir).path)
    assert (first[0], second[0], third.finished.outcome) == (-signal.SIGKILL, -signal.SIGKILL, "finished")
    last_steps = steps_of([json.loads(to_line(event)) for event in third.events])
    assert min(steps_of(second[1])) == 11
    assert min(last_steps) == 16
    assert steps_of(first[1]) | steps_of(second[1]) | last_steps == expected

    ours, theirs = (run_dir_of(c) / "backup" / "step-00000020" for c in (straight, killed))
    for name in ("weights", "ema", "optimizer"):
        assert_equal_tensors(load_file(ours / f"{name}.safetensors"), load_file(theirs / f"{name}.safetensors"))
    assert counters_of(ours) == counters_of(theirs)
    assert_equal_tensors(
        load_file(tmp_path / "straight" / "lora.safetensors"), load_file(tmp_path / "killed" / "lora.safetensors")
    )


def counters_of(backup: Path) -> dict[str, object]:
    counters = json.loads((backup / "state.json").read_text())["counters"]
    del counters["training_seconds"]
    return dict(counters)


@pytest.mark.daily(1)
@pytest.mark.parametrize("hard_config", ["tiny_sd", "tiny_sdxl", *FLOW_MODELS, *EDITING_MODELS], indirect=True)
def test_stopped_in_mid_window_and_resumed_ends_bit_equal(
    hard_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The window under way is forgotten and replayed."""
    configs = [
        laid_over(hard_config, {"general": {"workspace_dir": str(tmp_path / name)}, "training": {"epochs": 2}})
        for name in ("straight", "stopped")
    ]
    straight = run(configs[0])
    desks: list[CommandDesk] = []
    plain_check, plain_backward = CommandDesk.check, Stepper.backward
    num_backwards = 0

    def check(desk: CommandDesk, *arguments: Any) -> None:
        desks[:] = [desk]
        plain_check(desk, *arguments)

    def backward(stepper: Stepper, step_loss: StepLoss) -> None:
        nonlocal num_backwards
        num_backwards += 1
        plain_backward(stepper, step_loss)
        # One of the dry run, 13 micro-batches in the five steps of the first epoch, then two steps of three: 20.
        if num_backwards == 21:
            assert not step_loss.is_last_micro_batch
            desks[0].put(Stop())

    monkeypatch.setattr(CommandDesk, "check", check)
    monkeypatch.setattr(Stepper, "backward", backward)
    stopped = run(configs[1])
    monkeypatch.undo()
    assert (stopped.finished.outcome, stopped.finished.step) == ("stopped", 7)
    assert Path(stopped.finished.model_path).is_file()
    resumed = run(configs[1], resume_from=Path(stopped.finished.backup_path))
    assert_equal_tensors(straight.weights, resumed.weights)


@pytest.mark.full
def test_a_finished_run_reports_it_and_resumes_with_more_epochs(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    config = small_config(tmp_path, model=tiny_sd, images=images)
    finished = run(config).finished
    again = run(config, resume_from=Path(finished.backup_path))
    assert again.finished.outcome == "already_complete"
    assert "already complete" in again.finished.message
    assert not again.of(StepFinished)
    longer = laid_over(config, {"training": {"epochs": 3}})
    resumed = run(longer, resume_from=Path(finished.backup_path))
    assert resumed.finished.outcome == "finished"
    straight = run(laid_over(longer, {"general": {"workspace_dir": str(tmp_path / "straight")}}))
    assert_equal_tensors(straight.weights, resumed.weights)


@pytest.mark.full
def test_a_run_resumes_with_another_rate_schedule_and_weight_decay(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    """The optimizer's restored state used to be the only state: the options of its groups come from the settings."""
    config = laid_over(
        small_config(tmp_path, model=tiny_sd, images=images),
        {"training": {"epochs": 2, "learning_rate": 1e-3, "optimizer": {"name": "adamw", "weight_decay": 0.01}}},
    )
    before = run(config)
    backup = Path(before.finished.backup_path)
    first_step = before.finished.step
    longer: dict[str, Any] = {"epochs": 3}
    unchanged = run(laid_over(config, {"training": longer}), resume_from=backup)
    weights = unchanged.weights  # the next runs write to the same folder
    assert not [w for w in unchanged.of(WarningRaised) if "changed settings" in w.message]

    schedule = {"name": "points", "points": "0:0.5"}
    changes = {"learning_rate": 4e-3, "schedule": schedule}
    other = laid_over(config, {"training": {**longer, **changes}, "parts": {"text_encoder": {"learning_rate": 2e-3}}})
    resumed = run(other, resume_from=backup)
    step = resumed.of(StepFinished)[0]
    assert (step.step, step.learning_rates) == (first_step + 1, {"unet": 2e-3, "text_encoder": 1e-3})
    (report,) = [w.message for w in resumed.of(WarningRaised) if "changed settings" in w.message]
    assert "training.learning_rate is 0.004 (was 0.001)" in report
    assert "training.schedule.name is 'points' (was 'constant')" in report
    assert "parts.text_encoder.learning_rate is 0.002 (was null)" in report

    decayed = run(laid_over(config, {"training": {**longer, "optimizer": {"weight_decay": 9.0}}}), resume_from=backup)
    assert decayed.of(StepFinished)[0].learning_rates == unchanged.of(StepFinished)[0].learning_rates
    norm, norm_unchanged = (sum(float(t.square().sum()) for t in w.values()) for w in (decayed.weights, weights))
    assert norm < norm_unchanged


def test_a_run_may_not_be_resumed_with_another_optimizer(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    config = small_config(tmp_path, model=tiny_sd, images=images)
    finished = run(config).finished
    other = laid_over(config, {"training": {"learning_rate": 1e-3, "epochs": 4}})
    changed, _ = set_path(other, "training.optimizer", "sgd")
    ending = run(changed, resume_from=Path(finished.backup_path)).ending
    assert isinstance(ending, RunFailed)
    assert "training.optimizer" in ending.message
    assert "training.learning_rate" not in ending.message
    assert "training.epochs" not in ending.message


def test_a_run_whose_images_and_model_were_moved_resumes_bit_equal(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    """They counted as other images, so that the search for the best model began again; and other ones as the same.

    Another model at the new place was trained on without a word, and a fork from the weights was refused.
    """
    config = small_config(tmp_path, model=tiny_sd, images=images)
    for folder in ("images", "validation"):
        shutil.copytree(images, tmp_path / "old" / folder)
    shutil.copytree(tiny_sd, tmp_path / "old" / "model")

    def at(place: Path, *, epochs: int) -> Config:
        concepts = [{"path": str(place / "images")}, {"path": str(place / "validation"), "kind": "validation"}]
        validation = {"every": {"n": 1, "unit": "epoch"}}
        model = {"base_model": str(place / "model")}
        return laid_over(
            config, {"model": model, "concepts": concepts, "validation": validation, "training": {"epochs": epochs}}
        )

    backup = Path(run(at(tmp_path / "old", epochs=2)).finished.backup_path)
    straight = run(at(tmp_path / "old", epochs=3), resume_from=backup).weights
    (tmp_path / "old").rename(tmp_path / "new")
    moved = at(tmp_path / "new", epochs=3)
    resumed = run(moved, resume_from=backup)
    assert_equal_tensors(resumed.weights, straight)
    warnings = resumed.of(WarningRaised)
    assert [w.message for w in warnings if "have changed" in w.message or "has changed" in w.message] == []
    gone = [w for w in warnings if "which is gone, and resumes with" in w.message]
    assert [w.advice == "" for w in gone] == [True, False, False], "the model is compared with the recipe at once"

    other_seed = laid_over(moved, {"general": {"seed": 7}, "training": {"epochs": 1}})
    forked = run(other_seed, resume_from=backup, kind="fork_weights")
    assert forked.finished.outcome == "finished"
    assert [w.advice for w in forked.of(WarningRaised) if "which is gone" in w.message] == [""]

    other_vae = laid_over(other_seed, {"parts": {"vae": {"file": str(tmp_path / "new" / "model" / "vae")}}})
    [problem] = problems_of_inputs(find_backup(backup), other_vae, only_weights=True)
    assert problem.severity == "warning", "the files of the other VAE are not those of the base model that are missing"

    [weights] = (tmp_path / "new" / "model" / "unet").glob("*.safetensors")
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    message = (
        f"{tmp_path / 'new' / 'model'} is not what the run was started with: unet/{weights.name} "
        "(Base model) has another content."
    )
    for start, kind in ((moved, "resume"), (other_seed, "fork_weights")):
        [failed] = run(start, resume_from=backup, kind=kind).of(RunFailed)
        assert message in failed.message
    weights.write_bytes(content)

    next((tmp_path / "new" / "images").glob("*.txt")).write_text("something else")
    refused = run(moved, resume_from=backup).of(RunFailed)
    assert [failed.message for failed in refused] == [
        f"The run was started with other images or captions than those in {tmp_path / 'new' / 'images'}, "
        f"{tmp_path / 'new' / 'validation'}."
    ]


def test_a_damaged_backup_is_refused(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    config = small_config(tmp_path, model=tiny_sd, images=images)
    backup = Path(run(config).finished.backup_path)
    content = bytearray((backup / "weights.safetensors").read_bytes())
    content[-1] ^= 1
    (backup / "weights.safetensors").write_bytes(content)
    ending = run(laid_over(config, {"training": {"epochs": 3}}), resume_from=backup).ending
    assert isinstance(ending, RunFailed)
    assert "weights.safetensors" in ending.message


def test_images_that_changed_since_the_backup_are_reported(tiny_sd: Path, tmp_path: Path) -> None:
    folder = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 4)
    config = small_config(tmp_path, model=tiny_sd, images=folder)
    finished = run(config).finished
    draw_folder(folder, sizes=[(64, 64)] * 6)
    resumed = run(laid_over(config, {"training": {"epochs": 3}}), resume_from=Path(finished.backup_path))
    assert resumed.finished.outcome == "finished"
    assert any("changed since the backup" in w.message for w in resumed.of(WarningRaised))
