"""Trains the demo model with reward and preference methods, and measures it with prompts and seeds not trained on.

The reward is the mean brightness, 0 to 1; the prompts leave the brightness of the background to the model. The held-out
reward is the contrast, and the share of images with the shape that the prompt names is measured, too. All methods start
from the same model.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.loop_speed import demo_config, run_setup
from benchmarks.measure import wait_for
from benchmarks.preference_cases import Case
from benchmarks.preference_data import Split, rewards, sample_images, to_drawn_image, write_pairs, write_prompts
from demo.make.evaluator import evaluate
from modules.config.codec import decode, encode
from modules.config.schema import Config
from modules.families.protocol import ModelFamily
from modules.objectives.registry import METHODS
from trainer.run.machine import Machine, machine_of
from trainer.run.model import LoadedModel, load_model
from trainer.run.stepper import evaluation_of
from trainer.run.training_run import dry_run, prepare
from trainer.step.loop import run_loop
from trainer.step.precision import process_settings

REWARD, HELD_OUT = "brightness", "contrast"


@dataclass(frozen=True, slots=True)
class Measurement:
    """The mean rewards of images sampled with held-out prompts and seeds, and the share with the right shape."""

    reward: float
    held_out: float
    right_shapes: float


@dataclass(eq=False)
class Calls:
    """The calls of the denoiser, and the number of latents in all of them."""

    calls: int = 0
    latents: int = 0


@dataclass(frozen=True, slots=True)
class Start:
    """The common start of all runs of a demo model: its preset, its prompts and seeds, the guidance of measured images,
    its rewards before training, the file of prompts and the folder of pairs.

    `pair_calls` is the number of calls of the denoiser that sampled the pairs.
    """

    preset: Config
    split: Split
    guidance: float
    before: Measurement
    prompts: Path
    pairs: Path
    pair_calls: int


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run: its measurement, its training time and steps, and its calls of the denoiser."""

    after: Measurement
    seconds: float
    steps: int
    calls: int
    latents: int


def start_runs(
    preset: Config, folder: Path, split: Split, *, guidance: float, num_threads: int, needs_pairs: bool = True
) -> Start:
    """Measure a demo model before training, and write the prompts and the pairs to train on into a folder."""
    prompts = write_prompts(split.learned, folder / "prompts.txt")
    config = demo_config(preset, folder, repeats=1, epochs=1)
    machine = machine_of(config.general, config.training.precision)
    with process_settings(num_threads=num_threads, precision=config.training.precision, deterministic=False):
        model = load_model(config, machine)
        try:
            before = measure_rewards(model, machine, split, guidance)
            with count_calls(model.family) as calls:
                pairs, reward = folder / "pairs", rewards([REWARD])
                if needs_pairs:
                    write_pairs(split.learned, pairs, reward, model, machine, guidance=guidance)
        finally:
            model.placement.close()
    return Start(preset, split, guidance, before, prompts, pairs, calls.calls)


def train_case(folder: Path, case: Case, start: Start, *, num_threads: int) -> RunResult:
    """Train a case as a run does, the dry run included, and measure the result."""
    config = preference_config(folder, case, start)
    with process_settings(num_threads=num_threads, precision=config.training.precision, deterministic=False):
        run = prepare(run_setup(config, num_threads))
        try:
            dry_run(run)
            device = run.setup.machine.train_device
            with count_calls(run.model.family) as calls:
                wait_for(device)
                begin = time.perf_counter()
                run_loop(run.training)
                wait_for(device)
                seconds = time.perf_counter() - begin
            with evaluation_of(run.model, run.training.stepper).active():
                after = measure_rewards(run.model, run.setup.machine, start.split, start.guidance)
            return RunResult(after, seconds, run.training.counters.step, calls.calls, calls.latents)
        finally:
            run.close()


def preference_config(folder: Path, case: Case, start: Start) -> Config:
    """Return the demo preset as a run of a case."""
    place = folder / f"{case.name}-{case.variant}-{case.trains}-{case.learning_rate:g}"
    tree = encode(demo_config(start.preset, place, repeats=1, epochs=case.epochs))
    of_pairs, of_prompts = {"path": str(start.pairs), "kind": "pairs"}, {"path": str(start.prompts), "kind": "prompts"}
    tree["concepts"] = [of_pairs if uses_pairs(case) else of_prompts]
    tree["general"] |= {"seed": start.split.run_seed}
    tree["training"] |= {
        "method": dict(case.method),
        "trains": case.trains,
        "learning_rate": case.learning_rate,
        "batch_size": case.batch_size,
        "ema": {"mode": "off"},
        "schedule": {"name": "constant"},
    }
    tree["training"]["noise"] |= {"min_strength": case.min_strength}
    tree["adapter"] |= {"layers": "all"}
    tree["parts"] |= {"text_encoder": {"train": False}}
    tree["reward"] = {"models": [{"kind": REWARD}], "measure_every": {"unit": "never"}}
    return decode(tree).config


def uses_pairs(case: Case) -> bool:
    """Return whether a case trains on the pairs."""
    method = METHODS[case.name]
    return method.learns_from(method.settings(**case.method)) == "pairs"


@contextmanager
def count_calls(family: ModelFamily) -> Iterator[Calls]:
    """Count the calls of the family's denoiser in this context, including those by checkpointing."""
    counted = Calls()

    def count(module: torch.nn.Module, given: Any, output: Any) -> None:
        counted.calls += 1
        counted.latents += len(output[0])

    hooks = [family.parts[n].module.register_forward_hook(count) for n in family.spec.names_of("denoiser")]
    try:
        yield counted
    finally:
        for hook in hooks:
            hook.remove()


def measure_rewards(model: LoadedModel, machine: Machine, split: Split, guidance: float) -> Measurement:
    """Return the rewards of images sampled with the prompts to measure, each with several seeds."""
    texts, scenes = [p.text for p in split.measured], [p.scene for p in split.measured] * split.per_prompt
    images_B3PP = sample_images(
        model, machine, texts, per_prompt=split.per_prompt, first_seed=split.first_seed, guidance=guidance
    )
    scores = rewards([REWARD, HELD_OUT])(images_B3PP, texts * split.per_prompt).by_name
    right = [evaluate(to_drawn_image(i), scene).shape_right for i, scene in zip(images_B3PP, scenes, strict=True)]
    return Measurement(scores[REWARD].mean().item(), scores[HELD_OUT].mean().item(), float(np.mean(right)))
