"""Measures the demo model: samples fixed prompts with diffusers' pipeline and counts the images that are right."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import DiffusionPipeline, ZImagePipeline
from PIL import Image, ImageDraw

from demo.make.evaluator import evaluate
from demo.make.images import FULL_TEMPLATES, DrawnImage, Scene, write_caption
from demo.make.progress import Progress
from demo.make.shapes import COLOURS, IMAGE_SIZE_PX, SHAPES
from modules.system.atomic import atomic_file, write_text

GUIDANCE_SCALE = 3.0
# Different from the seeds of training; the prompts are the same for every model, whatever its own seed.
_PROMPTS_SEED = 20_000
_NOISE_SEED = 30_000
_BATCH_SIZE = 16

_GRID_COLUMNS = 8
_CELL_SCALE = 2
_LABEL_HEIGHT_PX = 38


@dataclass(frozen=True)
class Prompt:
    """A prompt and what its image should show."""

    text: str
    scene: Scene


@dataclass(frozen=True)
class Shares:
    """The shares of right images, each 0 to 1; `colours_right` means both the figure and the ground."""

    colours_right: float
    shape_right: float
    all_right: float


@dataclass(frozen=True)
class DemoQuality:
    """The quality of a demo model, and the settings of its training and measurement."""

    shares: Shares
    num_prompts: int
    sampler: str
    num_sampling_steps: int
    guidance_scale: float
    seed: int
    num_threads: int
    training_cpu_seconds: float
    size_mb: float


@dataclass(frozen=True, eq=False)
class MeasuredModel:
    """The quality, and the images it was measured on."""

    quality: DemoQuality
    prompts: list[Prompt]
    images: list[DrawnImage]


def measure_quality(
    pipeline: DiffusionPipeline,
    *,
    seed: int,
    num_threads: int,
    training_cpu_s: float,
    size_bytes: int,
    progress: Progress,
    num_prompts: int,
    num_sampling_steps: int,
) -> MeasuredModel:
    """Sample the fixed prompts and count; `seed` to `size_bytes` are only recorded. Raises DemoModelStopped."""
    prompts = fixed_prompts(num_prompts)
    images = sample_images(
        pipeline, [prompt.text for prompt in prompts], progress=progress, num_steps=num_sampling_steps
    )
    quality = DemoQuality(
        shares=count_right(images, [prompt.scene for prompt in prompts]),
        num_prompts=len(prompts),
        sampler=type(pipeline.scheduler).__name__,
        num_sampling_steps=num_sampling_steps,
        guidance_scale=GUIDANCE_SCALE,
        seed=seed,
        num_threads=num_threads,
        training_cpu_seconds=round(training_cpu_s, 1),
        size_mb=round(size_bytes / 1e6, 2),
    )
    return MeasuredModel(quality, prompts, images)


def fixed_prompts(num_prompts: int = 64) -> list[Prompt]:
    """Return the prompts that every demo model is measured with: all shapes in turn, all templates, varied colours."""
    generator = np.random.default_rng(_PROMPTS_SEED)
    names = list(COLOURS)
    prompts = []
    for index in range(num_prompts):
        colour, ground = generator.choice(names, size=2, replace=False)
        scene = Scene(list(SHAPES)[index % len(SHAPES)], str(colour), str(ground))
        template = FULL_TEMPLATES[(index // len(SHAPES)) % len(FULL_TEMPLATES)]
        prompts.append(Prompt(write_caption(scene, template), scene))
    return prompts


def sample_images(
    pipeline: DiffusionPipeline,
    texts: Sequence[str],
    *,
    progress: Progress | None = None,
    num_steps: int = 25,
    guidance_scale: float = GUIDANCE_SCALE,
    noise_seed: int = _NOISE_SEED,
) -> list[DrawnImage]:
    """Generate one 64 x 64 image per prompt, uint8 (64, 64, 3), each from noise of its own seed.

    Raises DemoModelStopped.
    """
    images: list[DrawnImage] = []
    if isinstance(pipeline, ZImagePipeline):  # which counts guidance from 0
        guidance_scale -= 1.0
    for start in range(0, len(texts), _BATCH_SIZE):
        batch = list(texts[start : start + _BATCH_SIZE])
        generators = [torch.Generator().manual_seed(noise_seed + start + offset) for offset in range(len(batch))]
        images_BHWC = pipeline(
            batch,
            height=IMAGE_SIZE_PX,
            width=IMAGE_SIZE_PX,
            num_inference_steps=num_steps,
            guidance_scale=guidance_scale,
            generator=generators,
            output_type="np",
        ).images
        images.extend(np.rint(images_BHWC * 255.0).astype(np.uint8))
        if progress is not None:
            progress.step("sampling", len(images), len(texts))
    return images


def count_right(images: Sequence[DrawnImage], scenes: Sequence[Scene]) -> Shares:
    """Return the shares of images that match their scenes; raises ValueError without images."""
    if not images or len(images) != len(scenes):
        raise ValueError(f"Got {len(images)} images for {len(scenes)} prompts.")
    verdicts = [evaluate(image, scene) for image, scene in zip(images, scenes, strict=True)]
    return Shares(
        colours_right=float(np.mean([verdict.colours_right for verdict in verdicts])),
        shape_right=float(np.mean([verdict.shape_right for verdict in verdicts])),
        all_right=float(np.mean([verdict.colours_right and verdict.shape_right for verdict in verdicts])),
    )


def write_quality(measured: MeasuredModel, folder: Path) -> None:
    """Write `quality.json`, one field per line, and `samples.png`, the labelled images, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "quality.json", json.dumps(asdict(measured.quality), indent=2) + "\n")
    write_sample_grid(measured.images, [prompt.text for prompt in measured.prompts], folder / "samples.png")


def write_sample_grid(images: Sequence[DrawnImage], texts: Sequence[str], path: Path) -> None:
    """Write a PNG of all images at twice their size, eight per row, each with its prompt below in small type."""
    side_px = IMAGE_SIZE_PX * _CELL_SCALE
    num_rows = -(-len(images) // _GRID_COLUMNS)
    grid = Image.new("RGB", (_GRID_COLUMNS * side_px, num_rows * (side_px + _LABEL_HEIGHT_PX)), "white")
    draw = ImageDraw.Draw(grid)
    for index, (image_HWC, text) in enumerate(zip(images, texts, strict=True)):
        left_px = index % _GRID_COLUMNS * side_px
        top_px = index // _GRID_COLUMNS * (side_px + _LABEL_HEIGHT_PX)
        grid.paste(Image.fromarray(image_HWC).resize((side_px, side_px), Image.Resampling.LANCZOS), (left_px, top_px))
        draw.multiline_text((left_px + 3, top_px + side_px), _wrap(text), fill="black", font_size=10, spacing=0)
    with atomic_file(path) as unfinished:
        grid.save(unfinished, format="PNG", optimize=True)


def _wrap(text: str, width: int = 24) -> str:
    lines = [""]
    for word in text.split(" "):
        if len(lines[-1]) + len(word) + 1 > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)
