"""What preference and reward methods teach the demo model, measured with prompts and seeds that they do not train on.

The prompts leave the colour of the ground open ("a red star"), so the model is free to choose. The reward is the mean
brightness, 0 to 1; the held-out reward is the contrast, and the share of images that show the shape that the prompt
names is measured, too. All methods start from the same model.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from modules.config.codec import decode, encode
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.data.pairs import CHOSEN_FOLDER, REJECTED_FOLDER
from modules.families.protocol import ModelFamily
from modules.objectives.registry import METHODS
from modules.rewards.composite import CompositeReward, build_rewards
from modules.rewards.protocol import RewardContext
from modules.rewards.settings import Scorer
from modules.sampling.denoising_loop import initial_noise, make_scheduler, run_denoising_loop
from modules.sampling.prediction import guided_prediction
from modules.system.devices import CPU, move
from trainer import phases
from trainer.benchmark.loop_speed import demo_config, run_setup
from trainer.benchmark.measure import wait_for
from trainer.benchmark.preference_cases import GUIDANCE, NUM_STEPS, Case
from trainer.demo.evaluator import evaluate
from trainer.demo.images import OPEN_TEMPLATES, DrawnImage, Scene, draw_scene, write_caption
from trainer.demo.quality import Prompt
from trainer.demo.shapes import COLOURS, IMAGE_SIZE_PX, SHAPES
from trainer.run.machine import Machine, machine_of
from trainer.run.model import LoadedModel, load_model
from trainer.run.stepper import evaluation_of
from trainer.run.training_run import dry_run, prepare
from trainer.step.loop import run_loop
from trainer.step.precision import process_settings

REWARD, HELD_OUT = "brightness", "contrast"
NUM_SEEDS = 4
CANDIDATES = 8
"""How many images of each prompt the base model samples to make pairs."""

_BATCH_SIZE = 24
_MEASURING_SEED, _CANDIDATES_SEED = 1_000_000, 2_000_000


@dataclass(frozen=True, slots=True)
class Measured:
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
class Learned:
    """The result of a run: what was measured after it, its training time, and its calls of the denoiser.

    `pair_calls` are those to sample the pairs it trains on.
    """

    after: Measured
    seconds: float
    steps: int
    calls: int
    latents: int


@dataclass(frozen=True, slots=True)
class Start:
    """What all runs start from: the model's rewards before training, and the folders of prompts and of pairs.

    `pair_calls` is the number of calls of the denoiser that sampled the pairs.
    """

    before: Measured
    prompts: Path
    pairs: Path
    pair_calls: int


def open_prompts() -> tuple[list[Prompt], list[Prompt]]:
    """Return the prompts to train on and the held-out ones: every shape in every colour, half of them each."""
    prompts: tuple[list[Prompt], list[Prompt]] = ([], [])
    for row, shape in enumerate(SHAPES):
        for column, colour in enumerate(COLOURS):
            scene = Scene(shape, colour, None)
            prompts[(row + column) % 2].append(Prompt(write_caption(scene, OPEN_TEMPLATES[0]), scene))
    return prompts


def started(preset: Config, folder: Path, *, num_threads: int) -> Start:
    """Measure the demo model before training, and write the prompts and the pairs to train on into a folder."""
    learned, _ = open_prompts()
    prompts = _write_prompts(learned, folder / "prompts")
    config = demo_config(preset, folder, repeats=1, epochs=1)
    machine = machine_of(config.general, config.training.precision)
    with process_settings(num_threads=num_threads, precision=config.training.precision, deterministic=False):
        model = load_model(config, machine)
        try:
            before = measured(model, machine)
            with counted_calls(model.family) as calls:
                _write_pairs(learned, folder / "pairs", model, machine)
        finally:
            model.placement.close()
    return Start(before, prompts, folder / "pairs", calls.calls)


def trained(preset: Config, folder: Path, case: Case, start: Start, *, num_threads: int) -> Learned:
    """Train a case as a run does, the dry run included, and measure the result."""
    config = preference_config(preset, folder, case, start)
    with process_settings(num_threads=num_threads, precision=config.training.precision, deterministic=False):
        run = prepare(run_setup(config, num_threads))
        try:
            dry_run(run)
            device = run.setup.machine.train_device
            with counted_calls(run.model.family) as calls:
                wait_for(device)
                begin = time.perf_counter()
                run_loop(run.training)
                wait_for(device)
                seconds = time.perf_counter() - begin
            with evaluation_of(run.model, run.training.stepper).active():
                after = measured(run.model, run.setup.machine)
            return Learned(after, seconds, run.training.counters.step, calls.calls, calls.latents)
        finally:
            run.close()


def preference_config(preset: Config, folder: Path, case: Case, start: Start) -> Config:
    """Return the demo preset as a run of a case."""
    place = folder / f"{case.name}-{case.trains}"
    tree = encode(demo_config(preset, place, repeats=1, epochs=case.epochs))
    method = METHODS[case.name]
    settings = method.settings(**case.method)
    uses_pairs = method.learns_from(settings) == "pairs"
    tree["concepts"] = [{"path": str(start.pairs), "kind": "pairs"} if uses_pairs else {"path": str(start.prompts)}]
    tree["training"] |= {
        "method": dict(case.method),
        "trains": case.trains,
        "learning_rate": case.learning_rate,
        "batch_size": case.batch_size,
        "ema": {"mode": "off"},
        **case.training,
    }
    tree["parts"] = tree.get("parts", {}) | {"text_encoder": {"train": False}}
    tree["reward"] = {"models": [{"kind": REWARD}], "measure_every": {"unit": "never"}}
    return _decoded(tree)


@contextmanager
def counted_calls(family: ModelFamily) -> Iterator[Calls]:
    """Count the calls of the family's denoiser in this context, those of checkpointing included."""
    counted = Calls()

    def count(module: torch.nn.Module, given: Any, output: Any) -> None:
        counted.calls += 1
        counted.latents += len(output[0] if isinstance(output, tuple) else output.sample)

    hooks = [family.parts[n].module.register_forward_hook(count) for n in family.spec.names_of("denoiser")]
    try:
        yield counted
    finally:
        for hook in hooks:
            hook.remove()


def measured(model: LoadedModel, machine: Machine) -> Measured:
    """Return the rewards of images sampled with the held-out prompts, each with several seeds."""
    _, prompts = open_prompts()
    images_B3PP = _sampled(model, machine, prompts, per_prompt=NUM_SEEDS, first_seed=_MEASURING_SEED)
    texts = [p.text for p in prompts] * NUM_SEEDS
    scores = _rewards((REWARD, HELD_OUT))(images_B3PP, texts).by_name
    drawn = [_as_drawn(image) for image in images_B3PP]
    verdicts = [evaluate(image, p.scene).shape_right for image, p in zip(drawn, prompts * NUM_SEEDS, strict=True)]
    return Measured(scores[REWARD].mean().item(), scores[HELD_OUT].mean().item(), float(np.mean(verdicts)))


def _rewards(kinds: Sequence[str]) -> CompositeReward:
    return build_rewards([Scorer(kind=kind) for kind in kinds], RewardContext(CPU))


@torch.no_grad()
def _sampled(
    model: LoadedModel, machine: Machine, prompts: Sequence[Prompt], *, per_prompt: int, first_seed: int
) -> torch.Tensor:
    """Return images in [0, 1] on the CPU, (B, 3, P, P): one of every prompt, then the next of every prompt."""
    family, device, size = model.family, machine.train_device, Size(IMAGE_SIZE_PX, IMAGE_SIZE_PX)
    texts = [p.text for p in prompts] * per_prompt
    images = []
    for begin in range(0, len(texts), _BATCH_SIZE):
        batch = texts[begin : begin + _BATCH_SIZE]
        with model.placement.phase(phases.SAMPLE_ENCODE), machine.precision.autocast():
            encoded = family.encode_prompts([*batch, ""])
        drawn = [
            initial_noise(_shape(family, size), seed=first_seed + begin + i, device=device) for i in range(len(batch))
        ]
        with model.placement.phase(phases.SAMPLE_DENOISE), machine.precision.autocast():
            latents_BCHW = run_denoising_loop(
                guided_prediction(
                    family,
                    encoded.select(range(len(batch))),
                    encoded.select([len(batch)]),
                    size=size,
                    guidance=GUIDANCE,
                ),
                make_scheduler("ddim", family.scheduler_config()),
                torch.stack([noise for noise, _ in drawn]),
                num_steps=NUM_STEPS,
                generator=[generator for _, generator in drawn],
                on_step=lambda: None,
            )
        with model.placement.phase(phases.SAMPLE_DECODE):
            images.append(move(family.decode(latents_BCHW), CPU))
    return (torch.cat(images).float() / 2 + 0.5).clamp(0, 1)


def _shape(family: ModelFamily, size: Size) -> tuple[int, int, int]:
    factor = family.spec.latent_factor
    return family.spec.latent_channels, size.height_px // factor, size.width_px // factor


def _write_prompts(prompts: Sequence[Prompt], folder: Path) -> Path:
    """Write an image and a caption for each prompt; methods that learn from prompts do not look at the images."""
    generator = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for index, prompt in enumerate(prompts):
        ground = next(name for name in COLOURS if name != prompt.scene.colour)
        image = draw_scene(Scene(prompt.scene.shape, prompt.scene.colour, ground), generator)
        _write_image(image, folder / f"{index:03d}.png", prompt.text)
    return folder


def _write_pairs(prompts: Sequence[Prompt], folder: Path, model: LoadedModel, machine: Machine) -> None:
    """Write pairs of images that the model samples for each prompt: the best with the worst, the second with the
    second worst, and so on, by the reward.
    """
    images_B3PP = _sampled(model, machine, prompts, per_prompt=CANDIDATES, first_seed=_CANDIDATES_SEED)
    rewards_KP = _rewards((REWARD,))(images_B3PP, [p.text for p in prompts] * CANDIDATES).total_B.view(CANDIDATES, -1)
    images_KP3PP = images_B3PP.view(CANDIDATES, len(prompts), *images_B3PP.shape[1:])
    for side in (CHOSEN_FOLDER, REJECTED_FOLDER):
        (folder / side).mkdir(parents=True)
    for column, prompt in enumerate(prompts):
        ranked = rewards_KP[:, column].argsort(descending=True).tolist()
        for number, (best, worst) in enumerate(zip(ranked[: CANDIDATES // 2], reversed(ranked), strict=False)):
            name = f"{column:03d}_{number}.png"
            _write_image(_as_drawn(images_KP3PP[best, column]), folder / CHOSEN_FOLDER / name, prompt.text)
            _write_image(_as_drawn(images_KP3PP[worst, column]), folder / REJECTED_FOLDER / name)


def _write_image(image_HWC: DrawnImage, path: Path, caption: str | None = None) -> None:
    Image.fromarray(image_HWC).save(path)
    if caption is not None:
        path.with_suffix(".txt").write_text(caption + "\n", encoding="utf-8")


def _as_drawn(image_3PP: torch.Tensor) -> DrawnImage:
    drawn: DrawnImage = (image_3PP.permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)
    return drawn


def _decoded(tree: dict[str, Any]) -> Config:
    return decode(tree).config
