"""Random runs that are interrupted and resumed, each compared with the same run left alone: a tool, not a test.

    python -m tests.builders.random_runs --count 200 [--seed 1] [--first 0] [--keep FOLDER]

Each number draws a config (target, adapter, optimizer, schedule, method, memory settings, noise, stops ...), and trains
it twice: once without interruption, and once stopped by a command or killed by SIGKILL up to three times at random
events, and resumed each time from its newest backup (or started anew, without one). Losses of all steps, the result and
the state in the last backup must be equal bit for bit. Equal seeds and numbers give equal runs. Each run is a forked
process, so a kill is a real one. It prints a line for each run that failed, and a table at the end.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from modules.adapters.registry import ADAPTERS
from modules.config.schema import Config
from modules.optim.registry import OPTIMIZERS
from modules.optim.schedule_registry import SCHEDULES
from modules.settings.edit import set_path
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder, draw_mask
from tests.builders.models import write_sd_folder
from tests.builders.runs import run
from trainer.commands import Stop
from trainer.event_lines import to_line
from trainer.events import Event, RunFailed, RunFinished, StepFinished
from trainer.preflight import check
from trainer.run_folder.backup import list_backups

_SIZES = [(64, 64)] * 4 + [(96, 64)] * 3
_ENDING = "ending.json"
_MAX_RESUMES = 6
_STOPPED_BY_GUARD = "stopped by a guard"  # such as a part that does not learn with these settings
_NOT_COMPARED = ("refused", _STOPPED_BY_GUARD)
_DONE = ("finished", "nothing_left", "already_complete")  # every part has stopped; killed after the result was written
_NEVER = {"unit": "never"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one number: "equal", "refused" by the check, or what went wrong."""

    name: str
    detail: str = ""


def draw(rng: random.Random) -> dict[str, Any]:
    """Return random settings, nested. Many combinations are refused by the check; those count as refused."""
    trains = rng.choice(["adapter"] * 5 + ["full"] * 3 + ["vae"])
    changes: dict[str, Any] = {
        "general": {"seed": rng.randrange(1000)},
        "training": {
            "trains": trains,
            "epochs": rng.randint(2, 3),
            "batch_size": rng.randint(1, 3),
            "accumulation_steps": rng.choice([1, 1, 2, 3]),
            "optimizer": {"name": rng.choice(list(OPTIMIZERS))},
            "learning_rate": rng.choice([1e-3, 1e-3, 0.3]),
            "schedule": {"name": rng.choice(list(SCHEDULES))},
            "precision": rng.choice(["float32", "float32", "bfloat16", "float16"]),
            "low_precision_updates": rng.choice(["master", "stochastic"]) if trains == "full" else "master",
            "clip_grad_norm": rng.choice([None, 1.0, 0.01]),
            "ema": rng.choice([{"mode": "off"}, {"mode": "train_device", "decay": 0.7}, {"mode": "temp_device"}]),
            "noise": _some(rng, _NOISE),
            "loss": _some(rng, _LOSS),
            "method": rng.choice(_METHODS) if trains != "vae" and rng.random() < 0.3 else "denoise",
        },
        "data": _some(rng, {"latent_cache": [False], "text_cache": [False], "caption_dropout": [0.3]}),
        "masks": rng.choice([{}, {}, {"enabled": True, "unmasked_weight": 0.3}, _PRIOR]),
        "model": _some(rng, {"channels_last": ["on"], "family": [{"clip_skip": 1}]}),
        "parts": {name: _part(rng, name, trains) for name in ("unet", "text_encoder", "vae")},
        "adapter": {"name": rng.choice(list(ADAPTERS)), "dropout": rng.choice([0.0, 0.0, 0.2])},
        "validation": rng.choice([{}, {"every": {"n": rng.randint(1, 4), "unit": "step"}, "num_timesteps": 1}]),
        "backup": {"every": {"n": rng.randint(1, 4), "unit": "step"}, "keep": rng.choice([0, 1, 3])},
    }
    if rng.random() < 0.3 and trains == "adapter":
        changes["embeddings"] = {"words": [{"placeholder": "<zog>", "initial_text": "disc", "token_count": 2}]}
    return changes


_NOISE = {
    "offset_weight": [0.1],
    "offset_random_strength": [True],
    "perturbation_weight": [0.1],
    "input_perturbation": [0.1],
    "pyramid_iterations": [3],
    "stratification": ["stratified"],
}
_LOSS = {"weighting": ["min_snr", "debiased"], "learned_weighting": [True], "mix": [{"huber": {"strength": 0.5}}]}
_PRIOR = {"enabled": True, "prior_preservation_weight": 0.5}
_METHODS: list[dict[str, Any]] = [
    {"name": "alignprop", "steps": 3, "backprop_steps": 2, "guidance": 1.0, "target_reward": 0.1},
    {"name": "ddpo", "steps": 3, "samples_per_prompt": 2, "guidance": 1.0, "tracker_min_count": 2},
    {"name": "grpo", "steps": 4, "group_size": 2, "guidance": 1.0, "kl_weight": 0.1, "window_size": 1},
    {"name": "nft", "steps": 3, "group_size": 2, "timesteps_per_image": 1, "updates_per_rollout": 2, "kl_weight": 0.1},
    {"name": "dgpo", "steps": 3, "group_size": 2, "timesteps_per_image": 1, "updates_per_rollout": 2, "kl_weight": 0.1},
]


def _some(rng: random.Random, values: Mapping[str, list[Any]]) -> dict[str, Any]:
    return {name: rng.choice(options) for name, options in values.items() if rng.random() < 0.2}


def _part(rng: random.Random, name: str, trains: str) -> dict[str, Any]:
    part: dict[str, Any] = {
        "train": name == "unet"
        or (name == "text_encoder" and rng.random() < 0.5)
        or (name == "vae" and trains == "vae"),
        "checkpointing": rng.choice(["off", "block", "transformer", "whole", "selective"]),
    }
    if rng.random() < 0.3:
        part["stop_after"] = {"n": rng.randint(1, 4), "unit": "step"}
    if trains == "full" and rng.random() < 0.4:
        part["dtype"] = "bfloat16"
    if trains == "adapter" and rng.random() < 0.2 and name != "vae":
        part["dtype"] = rng.choice(["float8", "nfloat4", "int8"])
    if rng.random() < 0.3 and name != "vae":
        part |= {"checkpointing": "block", "offload_fraction": 0.5}
    return part


def try_number(number: int, seed: int, model: Path, folder: Path) -> Outcome:
    """Draw the settings of a number, run them with and without interruptions, and compare."""
    rng = random.Random(f"random runs {seed} {number}")
    images = draw_folder(folder / "images", sizes=_SIZES, captions=["a disc", "a red disc, small", "a <zog>"])
    for image in sorted(images.glob("*.png"))[::2]:
        draw_mask(image.with_name(f"{image.stem}-masklabel.png"))
    held_out = draw_folder(folder / "held out", sizes=[(64, 64)] * 2)
    concepts = [{"path": str(images)}, {"path": str(held_out), "kind": "validation"}]
    straight = _config(folder / "straight", model, images, draw(rng), concepts)
    if isinstance(straight, str):
        return Outcome("refused", straight)
    if errors := check(straight).errors:
        return Outcome("refused", errors[0].message)
    expected = _in_a_process(folder / "straight", partial(_train, straight, backup=None, interruption=None))
    if expected is None or expected["outcome"] not in _DONE:
        is_bug = expected is None or "bug in the program" in expected.get("message", "bug in the program")
        return Outcome("failed alone" if is_bug else _STOPPED_BY_GUARD, json.dumps(expected)[:600])
    rng = random.Random(f"interruptions {seed} {number}")
    broken = laid_over(
        straight,
        {
            "general": {"workspace_dir": str(folder / "broken" / "workspace")},
            "output": {"destination": str(folder / "broken" / "out" / Path(straight.output.destination).name)},
        },
    )
    losses, found = _interrupted(broken, folder / "broken", rng, expected["num_events"])
    if found is None or found["outcome"] not in _DONE:
        return Outcome("failed after a resume", json.dumps(found)[:600])
    different = [name for name in ("result", "state") if found[name] != expected[name]]
    if found["outcome"] not in (expected["outcome"], "already_complete"):
        different.append("outcome")
    if any(losses.get(step) != loss for step, loss in expected["losses"].items()):
        different.append("losses")
    return Outcome(f"different: {', '.join(different)}") if different else Outcome("equal")


def _config(folder: Path, model: Path, images: Path, changes: dict[str, Any], concepts: list[Any]) -> Config | str:
    rewards = {"models": [{"kind": "brightness"}], "measure_every": _NEVER}
    try:
        plain = small_config(folder, model=model, images=images, concepts=concepts, reward=rewards)
        chosen = {key: changes.pop(key) for key in ("training", "adapter")}
        config = laid_over(plain, changes)
        for key, section in chosen.items():  # variants, whose fields would mix with those of the default ones
            config, problems = set_path(config, key, section)
            assert not problems, problems
        return config
    except AssertionError as error:
        return str(error)


def _interrupted(
    config: Config, folder: Path, rng: random.Random, num_events: int
) -> tuple[dict[str, str], dict[str, Any] | None]:
    """Run with up to three interruptions; return the loss of each step, as counted last, and the ending."""
    losses: dict[str, str] = {}
    count = rng.randint(1, 3)
    planned: list[Any] = [(rng.choice(["stop", "kill", "kill"]), rng.randrange(1, num_events)) for _ in range(count)]
    found: dict[str, Any] | None = None
    for attempt in range(_MAX_RESUMES):
        interruption = planned[attempt] if attempt < len(planned) else None
        work = partial(_train, config, backup=_newest_backup(config), interruption=interruption)
        found = _in_a_process(folder, work)
        losses |= _logged_losses(config)
        if found is not None and found["outcome"] != "stopped":
            break
    return losses, found


def _newest_backup(config: Config) -> Path | None:
    runs = Path(config.general.workspace_dir) / "runs"
    for run_dir in sorted(runs.iterdir(), reverse=True) if runs.is_dir() else ():
        if backups := list_backups(run_dir):
            return backups[-1].path
    return None


def _logged_losses(config: Config) -> dict[str, str]:
    losses = {}
    for log in sorted((Path(config.general.workspace_dir) / "runs").glob("*/events.jsonl")):
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            if '"StepFinished"' in line and line.endswith("}"):
                event = json.loads(line)
                losses[str(event["step"])] = repr(event["loss"])
    return losses


def _train(config: Config, place: Path, *, backup: Path | None, interruption: tuple[str, int] | None) -> None:
    """Train in this process; write the ending. An interruption is a command or a kill at the n-th event."""
    counted = 0
    losses: dict[str, str] = {}

    def on_event(event: Event, send: Callable[[Any], None]) -> None:
        nonlocal counted
        counted += 1
        if isinstance(event, StepFinished):
            losses[str(event.step)] = repr(event.loss)
        if interruption is not None and counted == interruption[1]:
            if interruption[0] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            send(Stop())

    ran = run(config, resume_from=backup, on_event=on_event)
    ending = ran.events[-1]
    found: dict[str, Any] = {"outcome": "failed", "num_events": counted, "losses": losses}
    match ending:
        case RunFinished():
            found["outcome"] = ending.outcome
            found["result"], found["state"] = map(_digest, (ending.model_path, ending.backup_path))
        case RunFailed():
            found["message"] = to_line(ending)
    (place / _ENDING).write_text(json.dumps(found), encoding="utf-8")


def _digest(path: str | None) -> str:
    """Return a hash of all tensors in a file or a folder; empty without one."""
    if not path:
        return ""
    digest, place = hashlib.sha256(), Path(path)
    files = [place] if place.is_file() else sorted(place.rglob("*.safetensors"))
    for file in files:
        for name, tensor in sorted(load_file(file).items()):
            digest.update(f"{file.name if place.is_dir() else ''} {name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _in_a_process(folder: Path, work: Callable[[Path], None]) -> dict[str, Any] | None:
    """Do the work in a fork of this process; return what it wrote, None if it was killed."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _ENDING).unlink(missing_ok=True)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with (folder / "log.txt").open("a") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
                work(folder)
            status = 0
        except BaseException:  # noqa: BLE001 - a fork must not return into the caller
            (folder / _ENDING).write_text(json.dumps({"outcome": "raised", "message": traceback.format_exc()[-1500:]}))
        finally:
            os._exit(status)
    os.waitpid(child, 0)
    ending = folder / _ENDING
    return json.loads(ending.read_text(encoding="utf-8")) if ending.is_file() else None


def main(arguments: list[str]) -> int:
    """Run the numbers and print what failed; return 1 if any did."""
    parser = argparse.ArgumentParser(prog="python -m tests.builders.random_runs", description=__doc__)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="the first number")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="keep the folders of failed runs here")
    options = parser.parse_args(arguments)
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    torch.set_num_threads(1)
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as scratch:
        model = write_sd_folder(Path(scratch) / "model")
        number = options.first
        while sum(n for name, n in outcomes.items() if name not in _NOT_COMPARED) < options.count:
            folder = Path(scratch) / str(number)
            outcome = try_number(number, options.seed, model, folder)
            outcomes[outcome.name] += 1
            if outcome.name not in ("equal", *_NOT_COMPARED):
                print(f"number {number} of seed {options.seed}: {outcome.name} {outcome.detail}", flush=True)
                if options.keep:
                    shutil.copytree(folder, options.keep / str(number), dirs_exist_ok=True)
            shutil.rmtree(folder)
            number += 1
    print(dict(outcomes))
    return int(outcomes.keys() - {"equal", *_NOT_COMPARED} != set())


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
