"""The data of the preference benchmark: prompts, and images that the demo model samples for them.

The prompts leave the colour of the background open ("a red star"), so that the model is free to choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.preference_cases import NUM_STEPS
from demo.make.images import OPEN_TEMPLATES, DrawnImage, Scene, write_caption
from demo.make.quality import Prompt
from demo.make.shapes import COLOURS, IMAGE_SIZE_PX, SHAPES
from modules.data.buckets import Size
from modules.data.pairs import CHOSEN_FOLDER, REJECTED_FOLDER
from modules.families.protocol import ModelFamily
from modules.rewards.composite import CompositeReward, build_rewards
from modules.rewards.protocol import RewardContext
from modules.rewards.settings import Scorer
from modules.sampling.denoising_loop import initial_noise, run_denoising_loop, scheduler_for
from modules.sampling.prediction import guided_prediction
from modules.system.devices import CPU, move
from trainer import phases
from trainer.run.machine import Machine
from trainer.run.model import LoadedModel

CANDIDATES = 12
"""How many images of each prompt are sampled to make pairs."""
PAIRS_PER_PROMPT = 4

_BATCH_SIZE = 24
_CANDIDATES_SEED = 2_000_000


@dataclass(frozen=True, slots=True)
class Split:
    """The prompts to train on and the prompts to measure with, the seed of the runs, and the first seed of the measured
    images, `per_prompt` of each prompt.
    """

    learned: Sequence[Prompt]
    measured: Sequence[Prompt]
    run_seed: int
    first_seed: int
    per_prompt: int


def reported_split(run_seed: int = 42) -> Split:
    """Return the prompts and seeds of the reported figures."""
    learned, held_out = open_prompts()
    return Split(learned, held_out, run_seed, 1_000_000, 4)


def choosing_split() -> Split:
    """Return the prompts and seeds with which settings are chosen: no reported figure is measured with them.

    Half of the prompts to train on are measured.
    """
    learned, _ = open_prompts()
    return Split(learned[::2], learned[1::2], 11, 3_000_000, 8)


def open_prompts() -> tuple[list[Prompt], list[Prompt]]:
    """Return the prompts to train on and the held-out ones: every shape in every colour, half of them each."""
    prompts: tuple[list[Prompt], list[Prompt]] = ([], [])
    for row, shape in enumerate(SHAPES):
        for column, colour in enumerate(COLOURS):
            scene = Scene(shape, colour, None)
            prompts[(row + column) % 2].append(Prompt(write_caption(scene, OPEN_TEMPLATES[0]), scene))
    return prompts


def rewards(kinds: Sequence[str]) -> CompositeReward:
    """Return reward models by their kind, on the CPU."""
    return build_rewards([Scorer(kind=kind) for kind in kinds], RewardContext(CPU))


@torch.no_grad()
def sample_images(
    model: LoadedModel, machine: Machine, texts: Sequence[str], *, per_prompt: int, first_seed: int, guidance: float
) -> torch.Tensor:
    """Return images in [0, 1] on the CPU, (B, 3, P, P): one of every prompt, then the next of every prompt.

    Image number i has the seed `first_seed` + i.
    """
    texts = [*texts] * per_prompt
    batches = [range(begin, min(begin + _BATCH_SIZE, len(texts))) for begin in range(0, len(texts), _BATCH_SIZE)]
    images = [
        _batch(model, machine, [texts[i] for i in rows], [first_seed + i for i in rows], guidance) for rows in batches
    ]
    return (torch.cat(images).float() / 2 + 0.5).clamp(0, 1)


def _batch(
    model: LoadedModel, machine: Machine, texts: Sequence[str], seeds: Sequence[int], guidance: float
) -> torch.Tensor:
    family, size = model.family, Size(IMAGE_SIZE_PX, IMAGE_SIZE_PX)
    with model.placement.phase(phases.SAMPLE_ENCODE), machine.precision.autocast():
        encoded = family.encode_prompts([*texts, ""])
    conditioning, empty = encoded.select(range(len(texts))), encoded.select([len(texts)])
    drawn = [initial_noise(_shape(family, size), seed=seed, device=machine.train_device) for seed in seeds]
    with model.placement.phase(phases.SAMPLE_DENOISE), machine.precision.autocast():
        latents_BCHW = run_denoising_loop(
            guided_prediction(family, conditioning, empty, size=size, guidance=guidance),
            scheduler_for(family, "ddim", size),
            torch.stack([noise for noise, _ in drawn]),
            num_steps=NUM_STEPS,
            generator=[generator for _, generator in drawn],
            on_step=lambda: None,
        )
    with model.placement.phase(phases.SAMPLE_DECODE):
        return move(family.decode(latents_BCHW), CPU)


def _shape(family: ModelFamily, size: Size) -> tuple[int, ...]:
    return family.spec.latents.shape(size.width_px, size.height_px)


def write_prompts(prompts: Sequence[Prompt], path: Path) -> Path:
    """Write prompts into a text file, one per line; a missing folder is created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(prompt.text + "\n" for prompt in prompts), encoding="utf-8")
    return path


def write_pairs(
    prompts: Sequence[Prompt],
    folder: Path,
    reward: CompositeReward,
    model: LoadedModel,
    machine: Machine,
    *,
    guidance: float,
) -> Path:
    """Write pairs of images that the model samples for each prompt: the best with the worst, the second with the
    second worst, and so on, by a reward.
    """
    texts = [p.text for p in prompts]
    images_B3PP = sample_images(
        model, machine, texts, per_prompt=CANDIDATES, first_seed=_CANDIDATES_SEED, guidance=guidance
    )
    rewards_KP = reward(images_B3PP, texts * CANDIDATES).total_B.view(CANDIDATES, -1)
    images_KP3PP = images_B3PP.view(CANDIDATES, len(texts), *images_B3PP.shape[1:])
    for side in (CHOSEN_FOLDER, REJECTED_FOLDER):
        (folder / side).mkdir(parents=True)
    for column, text in enumerate(texts):
        ranked = rewards_KP[:, column].argsort(descending=True).tolist()
        pairs = zip(ranked[:PAIRS_PER_PROMPT], reversed(ranked), strict=False)
        for number, (best, worst) in enumerate(pairs):
            name = f"{column:03d}_{number}.png"
            _write_image(to_drawn_image(images_KP3PP[best, column]), folder / CHOSEN_FOLDER / name, text)
            _write_image(to_drawn_image(images_KP3PP[worst, column]), folder / REJECTED_FOLDER / name)
    return folder


def to_drawn_image(image_3PP: torch.Tensor) -> DrawnImage:
    """Return an image in [0, 1] as uint8 of shape (P, P, 3)."""
    drawn: DrawnImage = (image_3PP.permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)
    return drawn


def _write_image(image_HWC: DrawnImage, path: Path, caption: str | None = None) -> None:
    Image.fromarray(image_HWC).save(path)
    if caption is not None:
        path.with_suffix(".txt").write_text(caption + "\n", encoding="utf-8")
