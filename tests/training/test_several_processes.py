"""A run on two processes is the run on one: the same images, noise and timesteps in every step."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from modules.config.codec import save_file
from modules.config.schema import Config
from modules.families.kinds.identify import identify
from modules.system.paths import PROGRAM_ROOT
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.pairs import draw_pairs
from tests.builders.ranks import OtherProcess, run_on_two
from tests.builders.runs import Ran, run
from trainer.child.run import launch_as_set
from trainer.commands import Command, CommandDesk, Pause, Resume, Stop, StopRequested
from trainer.events import (
    Event,
    PhaseChanged,
    RunFailed,
    RunFinished,
    RunStarted,
    SampleReady,
    StepFinished,
    ValidationFinished,
    WarningRaised,
)
from trainer.launch import RunRequest
from trainer.ranks import OneProcess, SeveralProcesses
from trainer.rollout_events import RolloutSampled
from trainer.run.execute import execute_guarded
from trainer.run.export_backup import export_backup
from trainer.run.reading import has_encoders_to_drop
from trainer.run_folder.backup import find_backup, verify
from trainer.run_folder.image_report import newest_report
from trainer.run_folder.shards import read_whole

# Two sizes and batches of three: the processes share micro-batches of odd sizes, and some of a single image.
SIZES = [(64, 64)] * 7 + [(96, 64)] * 4
HARD: dict[str, Any] = {
    "training": {
        "epochs": 2,  # 10 steps
        "batch_size": 3,
        "learning_rate": 3e-3,
        "ema": {"mode": "train_device", "decay": 0.9},
    },
    "parts": {
        "unet": {"stop_after": {"n": 7, "unit": "step"}},
        "text_encoder": {"train": True, "learning_rate": 1e-3},
    },
    "validation": {"every": {"n": 5, "unit": "step"}},
}


@pytest.fixture(scope="module")
def other() -> Iterator[OtherProcess]:
    process = OtherProcess()
    yield process
    process.close()


@pytest.fixture(scope="module")
def config(tiny_sd: Path, tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("ranks")
    long = ", ".join(f"a disc number {n}" for n in range(25))  # two chunks: shorter captions are padded
    images = draw_folder(folder / "images", sizes=SIZES, captions=["a <zog> disc", long, "nothing"])
    measured = draw_folder(folder / "measured", sizes=[(64, 64)] * 2, captions=["a disc"])
    concepts = [{"path": str(images)}, {"path": str(measured), "kind": "validation"}]
    return small_config(folder, model=tiny_sd, images=images, **HARD, concepts=concepts)


def in_folder(config: Config, folder: Path, **changes: Any) -> Config:
    places = {
        "general": {"workspace_dir": str(folder / "workspace"), "cache_dir": str(folder / "cache")},
        "output": {"destination": str(folder / "out" / "a.safetensors")},
    }
    return laid_over(laid_over(config, places), changes)


def losses_of(*parts: Ran) -> list[float]:
    """Return the losses of the steps of a run in one or more parts, and of its validations."""
    steps = [step.loss for ran in parts for step in ran.of(StepFinished)]
    validations = [v.loss for ran in parts for v in ran.of(ValidationFinished)]
    assert validations, "before the first step, and every five steps"
    assert None not in steps
    return [*steps, *validations]  # type: ignore[list-item]


def assert_same_weights(one: Ran, two: Ran) -> None:
    """Adam divides small gradients by their size, so that weights differ by more than losses do."""
    weights, others = one.weights, two.weights
    assert weights.keys() == others.keys()
    assert max(float((weights[name] - others[name]).abs().max()) for name in weights) < 1e-4


def commanding(at_step: dict[int, Command]) -> Callable[[Event, Callable[[Command], None]], None]:
    """Return a listener that sends commands at steps, and continues a run that has paused."""

    def listen(event: Event, send: Callable[[Command], None]) -> None:
        if isinstance(event, StepFinished) and event.step in at_step:
            send(at_step[event.step])
        if event == PhaseChanged("paused"):
            send(Resume())

    return listen


def test_a_run_on_two_processes_that_stops_and_continues_on_one_is_the_run_on_one(
    other: OtherProcess, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = run(in_folder(config, tmp_path / "one"))
    two = in_folder(config, tmp_path / "two")
    messages: list[int] = []
    sent, start = list[int](), SeveralProcesses.start_sums

    def start_counted(ranks: SeveralProcesses, values: Sequence[float]) -> Callable[[], list[float]]:
        sent.append(len(values))
        return start(ranks, values)

    monkeypatch.setattr(SeveralProcesses, "start_sums", start_counted)
    commands = commanding({2: Pause(), 6: Stop()})

    def listen(event: Event, send: Callable[[Command], None]) -> None:
        if isinstance(event, StepFinished):
            messages.append(len(sent))
        commands(event, send)

    first, ending = run_on_two(other, two, on_event=listen)
    assert messages[3] - messages[2] == 2  # one with the gradients and one between steps
    assert first.finished.outcome == "stopped"
    assert ending == {"event": "RunFinished", "outcome": "stopped", "step": 6, "message": ""}
    assert PhaseChanged("paused") in first.events
    assert first.of(StepFinished)[-1].step == 6  # not within a step, which the processes share
    rest = run(two, resume_from=Path(first.finished.backup_path).parent.parent)
    assert losses_of(first, rest) == pytest.approx(losses_of(one), abs=1e-5, rel=0)
    assert_same_weights(one, rest)
    stopped = [w.message for w in rest.of(WarningRaised) if "stopped as set" in w.message]
    assert stopped == ["Training of UNet has stopped as set, at step 7."]
    assert len(list((tmp_path / "two" / "workspace" / "runs").iterdir())) == 1  # only the main process has a folder


SHARDED: dict[str, Any] = {
    "training": {"trains": "full", "learning_rate": 1e-4, "epochs": 1, "clip_grad_norm": 0.5},  # 5 steps
    "parts": {"unet": {"stop_after": {"n": 4, "unit": "step"}}, "text_encoder": {"learning_rate": 1e-4}},
    "validation": {"every": {"n": 3, "unit": "step"}},
    "sampling": {
        "at_start": True,
        "prompts": [{"prompt": f"a disc, {n}", "width_px": 64, "height_px": 64, "steps": 1} for n in range(3)],
    },
}


def samples_of(ran: Ran) -> list[bytes]:
    return [Path(sample.path).read_bytes() for sample in ran.of(SampleReady)]


def assert_reports_of_two_and_one_are_equal(other: OtherProcess, config: Config, run_dir: Path) -> None:
    """Of the trained model and of the one before training; both processes stop together in the middle."""

    def stop(event: Event, send: Callable[[Command], None]) -> None:
        if isinstance(event, PhaseChanged) and event.detail.endswith("before training"):
            send(Stop())

    stopped, ending = run_on_two(other, config, resume_from=run_dir, kind="report", on_event=stop)
    assert (stopped.finished.outcome, ending["outcome"]) == ("stopped", "stopped")
    reports: list[list[float]] = []
    for on in (1, 2):
        if on == 2:
            _, ending = run_on_two(other, config, resume_from=run_dir, kind="report")
            assert ending["outcome"] == "reported"
        else:
            run(config, resume_from=run_dir, kind="report")
        report = newest_report(run_dir)
        assert report is not None
        images = sorted(report.images, key=lambda image: image.path)
        assert all(len({image.losses, image.before, image.without_caption}) == 3 for image in images)
        reports.append([loss for i in images for loss in (*i.losses, *i.before, *i.without_caption)])
    assert reports[1] == pytest.approx(reports[0], abs=1e-5, rel=0)


@pytest.mark.full
def test_a_fine_tune_that_two_processes_shard_is_that_of_one(
    other: OtherProcess, config: Config, tmp_path: Path
) -> None:
    one = run(in_folder(config, tmp_path / "one", **SHARDED))
    two = in_folder(config, tmp_path / "two", **SHARDED)
    first, ending = run_on_two(other, two, on_event=commanding({3: Stop()}))
    assert ending == {"event": "RunFinished", "outcome": "stopped", "step": 3, "message": ""}
    assert samples_of(first) == samples_of(one)
    assert len(samples_of(one)) == 3
    backup = Path(first.finished.backup_path)
    assert len(list((backup / "shards").glob("*.safetensors"))) == 2  # each process wrote its rows
    assert load_file(backup / "weights.safetensors").keys() == {
        name for name in one.weights if name.startswith("text_encoder.")
    }
    assert_reports_of_two_and_one_are_equal(other, two, backup.parent.parent)
    rest = run(two, resume_from=backup.parent.parent)
    assert losses_of(first, rest) == pytest.approx(losses_of(one), abs=1e-5, rel=0)
    assert_same_weights(one, rest)
    assert first.of(RunStarted)[0].num_trainable_parameters == one.of(RunStarted)[0].num_trainable_parameters


def failing_at(step: int) -> Callable[[Event, Callable[[Command], None]], None]:
    """Return a listener that fails after a step, as a callback may: on a full disk, for example."""

    def listen(event: Event, send: Callable[[Command], None]) -> None:
        if isinstance(event, StepFinished) and event.step == step:
            raise ValueError("a planted fault")

    return listen


@pytest.mark.full
def test_processes_that_shard_a_model_write_a_last_backup_together(
    other: OtherProcess, config: Config, tmp_path: Path
) -> None:
    never = {"every": {"unit": "never"}}
    own = in_folder(config, tmp_path, **{**SHARDED, "validation": never, "sampling": {"at_start": False}})
    failed, ending = run_on_two(other, own, on_event=failing_at(2))
    assert isinstance(failed.ending, RunFailed)
    assert (ending["event"], ending["message"]) == ("RunFailed", f"The process 1 of 2 failed: {failed.ending.message}")
    backup = find_backup(Path(failed.ending.backup_path))
    verify(backup)
    assert backup.step == 2
    assert len(list((backup.path / "shards").glob("*.safetensors"))) == 2
    exported = export_backup(backup, tmp_path / "exported.safetensors", now=datetime.now())
    kind, weights = identify(exported.path), load_file(exported.path)
    assert (exported.step, kind.is_whole, kind.model) == (2, True, "sd1")
    own_weights = read_whole(backup.path, "ema")
    stored = weights["model.diffusion_model.input_blocks.0.0.weight"]
    assert torch.equal(stored, own_weights["unet.conv_in.weight"].to(stored.dtype))


@pytest.mark.full
def test_a_new_run_starts_from_what_two_processes_sharded(other: OtherProcess, config: Config, tmp_path: Path) -> None:
    own = in_folder(config, tmp_path, **SHARDED)
    first, _ = run_on_two(other, own, on_event=commanding({2: Stop()}))
    backup = Path(first.finished.backup_path)
    for request in (
        RunRequest(own, "fork", backup, in_window=False),
        RunRequest(own, "fork_weights", backup, in_window=False),
    ):
        ran = Ran()
        execute_guarded(request, emit=ran.events.append, desk=CommandDesk())
        assert ran.finished.outcome == "finished"
        assert [s.step for s in ran.of(StepFinished)] == list(range(3 if request.kind == "fork" else 1, 6))


@pytest.mark.full
def test_a_process_that_fails_within_a_step_ends_a_sharded_run(
    other: OtherProcess, config: Config, tmp_path: Path
) -> None:
    ran, ending = run_on_two(other, in_folder(config, tmp_path, **SHARDED), fault="training")
    assert isinstance(ran.ending, RunFailed)
    assert "a planted fault" in ran.ending.message
    assert ending["event"] == "RunFailed"


def test_a_process_that_fails_ends_the_run_with_its_words(other: OtherProcess, config: Config, tmp_path: Path) -> None:
    ran, ending = run_on_two(other, in_folder(config, tmp_path), fault="RunStarted")
    assert isinstance(ran.ending, RunFailed)
    assert ran.ending.message == "The process 2 of 2 failed: An unexpected error occurred: a planted fault."
    assert ending["event"] == "RunFailed"


@pytest.mark.parametrize(("raised", "last"), [(StopRequested(), "RunFinished"), (ValueError("a fault"), "RunFailed")])
def test_the_other_process_ends_with_the_scan_of_the_main_one(
    other: OtherProcess,
    config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    raised: Exception,
    last: str,
) -> None:
    def scan(*arguments: object) -> None:
        raise raised

    monkeypatch.setattr("trainer.preflight.checks.datasets_of", scan)
    ran, ending = run_on_two(other, in_folder(config, tmp_path))
    assert (type(ran.ending).__name__, ending["event"]) == (last, last)
    if last == "RunFailed":
        assert ending["message"] == "The process 1 of 2 failed: a fault"


class AfterAnother(OneProcess):
    """A process that torchrun stops because another one has failed."""

    def messages_of_others(self) -> str:
        """Return why the other one has failed."""
        return "The process 2 of 2 failed: There is no model."


@pytest.mark.parametrize("ranks", [AfterAnother(), OneProcess()])
def test_a_stop_after_another_process_has_failed_is_its_failure(
    ranks: OneProcess, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise StopRequested

    monkeypatch.setattr("trainer.run.execute._connect_ranks", lambda general: ranks)
    monkeypatch.setattr("trainer.run.execute.execute", stopped)
    ending = run(config).ending
    if isinstance(ranks, AfterAnother):
        assert isinstance(ending, RunFailed)
        assert ending.message == "The process 2 of 2 failed: There is no model."
    else:
        assert isinstance(ending, RunFinished)
        assert ending.message == "Stopped before the first step."


def full(checkpointing: str = "block", **training: Any) -> dict[str, Any]:
    """Changes for a fine-tune, which the processes shard."""
    parts = {"unet": {"checkpointing": checkpointing}, "text_encoder": {"learning_rate": 1e-4}}
    return {"training": {"trains": "full", "learning_rate": 1e-4, **training}, "parts": parts}


CASES: dict[str, dict[str, Any]] = {
    "whole model": {**full(), "multi_gpu": {"sharding": "off"}},
    **{f"sharded, {mode}": full(mode) for mode in ("off", "block", "transformer", "selective", "whole")},
    "sharded, accumulation": full(accumulation_steps=3, clip_grad_norm=0.1),
    "sharded, no EMA": full(ema={"mode": "off"}),
    "sharded, some layers": full(layer_filter="attention"),
    "sharded, few images": full(batch_size=1),
    "gradients at the end": {"multi_gpu": {"fused_reduce": False}},
    "gradients one by one": {"multi_gpu": {"async_reduce": False}},
    "accumulation": {"training": {"accumulation_steps": 3}},
    "dropout": {"training": {"accumulation_steps": 2, "batch_size": 2}, "adapter": {"dropout": 0.2}},
    "uncached": {"data": {"latent_cache": False, "text_cache": False}},
    "in memory": {"data": {"cache_location": "memory"}},
    "frozen encoder": {"parts": {"text_encoder": {"train": False}}, "data": {"caption_dropout": 0.3}},
    "noise": {
        "training": {
            "noise": {
                "offset_weight": 0.1,
                "offset_random_strength": True,
                "pyramid_iterations": 3,
                "input_perturbation": 0.1,
                "stratification": "antithetic",
            }
        }
    },
    "float16": {"training": {"precision": "float16"}},
    "bfloat16": {"parts": {"unet": {"dtype": "bfloat16"}}, "training": {"trains": "full", "learning_rate": 1e-4}},
    "embedding": {
        "training": {"trains": "embedding", "learning_rate": 1e-2},
        "embeddings": {"words": [{"placeholder": "<zog>", "initial_text": "cat", "token_count": 2}]},
    },
    "vae": {"training": {"trains": "vae", "learning_rate": 1e-4, "vae": {"decoder_only": False}}},
    "clipped": {"training": {"clip_grad_norm": 0.01}},
}


@pytest.mark.full
@pytest.mark.parametrize("case", CASES)
def test_whatever_is_trained(other: OtherProcess, config: Config, tmp_path: Path, case: str) -> None:
    longer = laid_over(config, {"training": {"epochs": 4}})  # 20 steps, unless they are accumulated
    ran = [in_folder(longer, tmp_path / str(number), **CASES[case]) for number in (1, 2)]
    one, (two, _) = run(ran[0]), run_on_two(other, ran[1])
    exact = case not in ("float16", "bfloat16")
    assert losses_of(two) == pytest.approx(losses_of(one), abs=1e-5 if exact else 2e-2, rel=0)
    if exact:
        assert_same_weights(one, two)


BRIGHTER: dict[str, Any] = {
    "models": [{"kind": "brightness"}],
    "measure_every": {"n": 3, "unit": "step"},
    "num_images": 2,
}


# A step of GRPO may have gradients of the size of rounding, which Adam would otherwise divide by their size.
DAMPED: dict[str, Any] = {"optimizer": {"eps": 1e-3}}


def policy(optimizer: Mapping[str, Any] = MappingProxyType({}), **method: Any) -> dict[str, Any]:
    """Changes for policy gradients on rollouts of three denoising steps."""
    settings = {"steps": 3, "guidance": 1.0, "inner_epochs": 2, **method}
    settings = {name: value for name, value in settings.items() if value is not None}
    training = {"method": settings, "accumulation_steps": 2, **optimizer}
    return {"training": training, "reward": BRIGHTER, "parts": {"text_encoder": {"train": False}}}


METHODS: dict[str, dict[str, Any]] = {
    "ddpo": policy(name="ddpo", samples_per_prompt=3, tracker_min_count=2),
    "grpo": policy(name="grpo", group_size=3, kl_weight=0.1, steps=4, optimizer=DAMPED),
    "nft": policy(name="nft", inner_epochs=None, group_size=3, timesteps_per_image=2, updates_per_rollout=2),
    "dgpo": policy(name="dgpo", inner_epochs=None, group_size=3, timesteps_per_image=2, updates_per_rollout=2),
    "online dpo": policy(name="online_dpo", inner_epochs=None, candidates=3, updates_per_rollout=2, beta=20.0),
    "online dpo of steps": policy(name="online_dpo", inner_epochs=None, pairs="steps", candidates=3, steps=4),
    "dpo": {"training": {"method": {"name": "dpo", "beta": 20.0}}},  # a larger one multiplies rounding, too
    "dpo of a whole model": full(method={"name": "dpo", "loss": "mapo"}),
    "alignprop": {
        "training": {"method": {"name": "alignprop", "steps": 3, "backprop_steps": 2, "probability": 0.5}},
        "reward": BRIGHTER,
    },
}


@pytest.mark.full
@pytest.mark.parametrize("method", METHODS)
def test_what_is_learned_from_preferences(other: OtherProcess, config: Config, tmp_path: Path, method: str) -> None:
    pairs = draw_pairs(tmp_path / "pairs", sizes=[(64, 64)] * 5 + [(96, 64)] * 4)
    changes = METHODS[method]
    if method.startswith("dpo"):
        changes = {**changes, "concepts": [{"path": str(pairs), "kind": "pairs"}]}
        changes["validation"] = {"every": {"unit": "never"}}
    ran = [in_folder(config, tmp_path / str(n), **changes) for n in (1, 2)]
    one, (two, _) = run(ran[0]), run_on_two(other, ran[1])
    assert_same_weights(one, two)
    for alone, shared in zip(one.of(StepFinished), two.of(StepFinished), strict=True):
        assert shared.loss == pytest.approx(alone.loss, abs=1e-5, rel=0)
        assert shared.metrics == pytest.approx(alone.metrics, abs=1e-3, rel=1e-3)  # errors times beta
    rollouts = [[image for event in events.of(RolloutSampled) for image in event.images] for events in (one, two)]
    assert len(rollouts[0]) == len(rollouts[1])
    assert [(i.prompt, i.mark) for i in rollouts[0]] == [(i.prompt, i.mark) for i in rollouts[1]]


@pytest.mark.full
@pytest.mark.parametrize("first_on", ["one", "two"])
def test_two_processes_shard_what_was_saved(other: OtherProcess, config: Config, tmp_path: Path, first_on: str) -> None:
    one = run(in_folder(config, tmp_path / "one", **SHARDED))
    own = in_folder(config, tmp_path / "two", **SHARDED)
    stopping = commanding({3: Stop()})
    first = run(own, on_event=stopping) if first_on == "one" else run_on_two(other, own, on_event=stopping)[0]
    rest, _ = run_on_two(other, own, resume_from=Path(first.finished.backup_path))
    assert losses_of(first, rest) == pytest.approx(losses_of(one), abs=1e-5, rel=0)
    assert_same_weights(one, rest)
    results = [load_file(ran.finished.model_path) for ran in (one, rest)]
    assert results[0].keys() == results[1].keys()
    assert max(float((results[0][n] - results[1][n]).abs().max()) for n in results[0]) < 1e-4


def torchrun(config_file: Path, *, max_restarts: int = 0, stderr: int | None = None) -> subprocess.Popen[str]:
    """Start a run of two processes as a user does."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", str(max_restarts), "-m", "trainer", "train", str(config_file), "--json-lines"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(
        command,
        cwd=PROGRAM_ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )


@pytest.mark.full
@pytest.mark.slow
def test_a_config_for_several_devices_starts_its_processes(config: Config, tmp_path: Path) -> None:
    one = run(in_folder(config, tmp_path / "one"))
    own = in_folder(config, tmp_path / "two", multi_gpu={"enabled": True, "device_indexes": "0, 1"})
    child = launch_as_set(RunRequest(own))
    events: list[Event] = []
    while not events or not isinstance(events[-1], RunFinished | RunFailed):
        events.append(child.events.get(timeout=120))
    two = Ran(events)
    assert losses_of(two) == pytest.approx(losses_of(one), abs=1e-5, rel=0)
    assert_same_weights(one, two)


@pytest.mark.full
@pytest.mark.slow
def test_the_windows_stop_reaches_all_processes(config: Config, tmp_path: Path) -> None:
    own = in_folder(config, tmp_path, multi_gpu={"enabled": True, "device_indexes": "0, 1"}, **full(epochs=20))
    child = launch_as_set(RunRequest(own))
    events: list[Event] = []
    while not events or not isinstance(events[-1], RunFinished | RunFailed):
        events.append(child.events.get(timeout=120))
        if isinstance(events[-1], StepFinished) and events[-1].step == 2:
            child.send(Stop())
    ran = Ran(events)
    assert ran.finished.outcome == "stopped"
    assert find_backup(Path(ran.finished.backup_path)).step == ran.of(StepFinished)[-1].step


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_a_run_on_several_devices_stops_it(config: Config, tmp_path: Path, number: signal.Signals) -> None:
    file = tmp_path / "config.json"
    changes = {"multi_gpu": {"enabled": True, "device_indexes": "0, 1"}, "training": {"epochs": 20}}
    save_file(in_folder(config, tmp_path, **changes), file)
    command = [sys.executable, "-m", "trainer", "train", str(file), "--json-lines"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(
        command, cwd=PROGRAM_ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        for event in events_of(process):
            if event["event"] == "StepFinished" and event["step"] == 2:
                process.send_signal(number)
            last = event
    assert (last["event"], last["outcome"]) == ("RunFinished", "stopped")
    assert process.returncode == 0


@pytest.mark.full
@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_gpus_train_as_one(other: OtherProcess, config: Config, tmp_path: Path) -> None:
    changes = {"general": {"train_device": "cuda"}, "training": {"precision": "float32"}}
    one = run(in_folder(config, tmp_path / "one", **changes))
    two, _ = run_on_two(other, in_folder(config, tmp_path / "two", **changes))
    assert losses_of(two) == pytest.approx(losses_of(one), abs=1e-4, rel=0)


def events_of(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            yield json.loads(line)


def kill_a_process_that_is_not_the_main_one(parent: int) -> None:
    for child in psutil.Process(parent).children():
        if child.environ().get("RANK") == "1":
            child.send_signal(signal.SIGKILL)
            return
    raise AssertionError("no such process")


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("is_sharded", [False, True])
def test_torchrun_continues_a_run_whose_process_was_killed(config: Config, tmp_path: Path, is_sharded: bool) -> None:
    # What the processes shard, the one that is left cannot save: the newest backup is the last one before.
    changes = {**full(), "backup": {"every": {"n": 2, "unit": "step"}}} if is_sharded else {}
    one = run(in_folder(config, tmp_path / "one", **changes))
    file = tmp_path / "config.json"
    save_file(in_folder(config, tmp_path / "two", **changes), file)
    losses: dict[int, float] = {}
    failed: list[str] = []
    with torchrun(file, max_restarts=1) as process:
        is_killed = False
        for event in events_of(process):
            if event["event"] == "StepFinished":
                losses[event["step"]] = event["loss"]
                if event["step"] == 4 and not is_killed:
                    kill_a_process_that_is_not_the_main_one(process.pid)
                    is_killed = True
            if event["event"] == "RunFailed":
                failed.append(event["message"])
    assert failed == ["Another process of this run has ended, and the run with it."]
    assert process.returncode == 0
    assert len(list((tmp_path / "two" / "workspace" / "runs").iterdir())) == 1  # it was resumed, not started again
    assert list(losses.values()) == pytest.approx([s.loss for s in one.of(StepFinished)], abs=1e-5, rel=0)


@pytest.mark.full
@pytest.mark.slow
def test_torchrun_ends_well_after_a_stop(config: Config, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    save_file(in_folder(config, tmp_path), file)
    with torchrun(file, max_restarts=1) as process:
        for event in events_of(process):
            if event["event"] == "StepFinished" and event["step"] == 3:
                process.send_signal(signal.SIGINT)
            last = event
    assert (last["event"], last["outcome"]) == ("RunFinished", "stopped")


@pytest.mark.full
@pytest.mark.slow
def test_torchrun_names_the_code_of_a_refused_config(config: Config, tmp_path: Path) -> None:
    """It ends with 1, as for every failure of its processes; which of them is the first, is chance."""
    file = tmp_path / "config.json"
    save_file(in_folder(config, tmp_path, concepts=[{"path": str(tmp_path / "nowhere")}]), file)
    with torchrun(file, stderr=subprocess.PIPE) as process:
        out, errors = process.communicate(timeout=240)
    assert process.returncode == 1
    assert "2" in re.findall(r"exitcode *: (\d+)", errors)
    last = json.loads(out.splitlines()[-1])
    assert last["event"] == "RunFailed"
    assert "nowhere of the concept nowhere does not exist" in last["message"]


@pytest.mark.full
def test_processes_that_drop_their_text_encoder_before_the_denoiser_train_alike(
    other: OtherProcess, tiny_flux: Path, tmp_path: Path
) -> None:
    """Each process encodes its share of captions, drops T5, and only then reads the denoiser."""
    images = draw_folder(tmp_path / "images", sizes=[(32, 32)] * 4, captions=["a disc", "two discs"])
    sample = {"prompt": "a disc", "width_px": 32, "height_px": 32, "steps": 1}
    config = small_config(
        tmp_path,
        model=tiny_flux,
        images=images,
        data={"latent_cache": True, "text_cache": True, "resolution_px": [32]},
        parts={"text_encoder": {"train": False}, "text_encoder_2": {"train": False, "dtype": "int8"}},
        sampling={"every": {"n": 1, "unit": "epoch"}, "prompts": [sample]},
        validation={"every": {"n": 1, "unit": "epoch"}},
        concepts=[{"path": str(images)}, {"path": str(images), "kind": "validation"}],
    )
    assert has_encoders_to_drop(config, {})
    one = run(in_folder(config, tmp_path / "one"))
    two, ending = run_on_two(other, in_folder(config, tmp_path / "two"))
    assert ending["outcome"] == "finished"
    assert losses_of(two) == pytest.approx(losses_of(one), rel=1e-4)
    assert_same_weights(one, two)
    assert len(two.of(SampleReady)) == len(one.of(SampleReady)) > 0
