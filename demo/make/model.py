"""Makes the demo model: draws images, trains autoencoder, decoder and denoiser, measures it, writes the folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import DiffusionPipeline

from demo.make.autoencoder import encode_images, polish_decoder, train_autoencoder
from demo.make.images import CaptionedImage, DrawnImage, draw_captioned_image, draw_varied_image
from demo.make.kinds import SD, DemoKind, Encoded, generator_of
from demo.make.progress import Progress, Report
from demo.make.quality import DemoQuality, measure_quality, write_quality
from demo.make.recipe import DemoRecipe
from modules.system.atomic import atomic_folder
from modules.system.errors import DarkroomError
from modules.system.seeds import derive_seed
from trainer.run.threads import choose_num_threads

# The possible entries of a demo model's folder; a folder with any other entry is not replaced.
_FOLDER_ENTRIES = frozenset(
    {
        *("model_index.json", "vae", "unet", "transformer", "text_encoder", "tokenizer", "scheduler"),
        *("quality.json", "samples.png"),
    }
)


@dataclass(frozen=True, eq=False)
class DrawnImages:
    """The training set: N captioned images, and M varied ones for the autoencoder only."""

    captioned: list[CaptionedImage]
    varied_MHWC: DrawnImage

    def stack_captioned(self) -> DrawnImage:
        """Return the captioned images alone, uint8 (N, 64, 64, 3)."""
        return np.stack([drawn.image_HWC for drawn in self.captioned])


def make_demo_model(
    folder: Path,
    *,
    report: Report,
    should_stop: Callable[[], bool],
    seed: int = 0,
    num_threads: int | None = None,
    quality_folder: Path | None = None,
    recipe: DemoRecipe | None = None,
    kind: DemoKind = SD,
) -> DemoQuality:
    """Train a demo model from scratch and write it, atomically, as a diffusers folder in fp16.

    `report(stage, done, total, loss)` and `should_stop()` are called after every step. The same seed, recipe and
    number of threads give the same weights on one machine; without `num_threads` a short measurement decides between
    one and all. `quality.json` and `samples.png` go to `quality_folder`, by default to the folder itself. The folder
    of Stable Diffusion has no tokenizer, because the program ships CLIP's. An existing demo model in `folder` is
    replaced.

    Raises DemoModelStopped when it should stop, and DarkroomError if `folder` contains other files.
    """
    _refuse_foreign_folder(folder)
    recipe = recipe if recipe is not None else kind.recipe
    progress = Progress(report, should_stop)
    threads = choose_num_threads(num_threads or 0, device_is_cpu=True, in_window=False)
    started_cpu_s = time.process_time()
    with _thread_count(threads):
        pipeline = train_demo_pipeline(recipe, kind=kind, seed=seed, progress=progress)
        with atomic_folder(folder) as unfinished:
            save_pipeline(pipeline, kind, unfinished)
            training_cpu_s = time.process_time() - started_cpu_s
            measured = measure_quality(
                kind.load(unfinished),
                seed=seed,
                num_threads=threads,
                training_cpu_s=training_cpu_s,
                size_bytes=sum(file.stat().st_size for file in unfinished.rglob("*") if file.is_file()),
                progress=progress,
                num_prompts=recipe.num_quality_prompts,
                num_sampling_steps=recipe.num_sampling_steps,
            )
            write_quality(measured, quality_folder if quality_folder is not None else unfinished)
    return measured.quality


def train_demo_pipeline(recipe: DemoRecipe, *, kind: DemoKind, seed: int, progress: Progress) -> DiffusionPipeline:
    """Run every stage of the recipe and return the pipeline, float32. Raises DemoModelStopped."""
    drawn = draw_images(recipe, seed=seed, progress=progress)
    encoded = train_vae(drawn, recipe, kind=kind, seed=seed, progress=progress)
    return kind.train(encoded, recipe, seed=seed, progress=progress)


def draw_images(recipe: DemoRecipe, *, seed: int, progress: Progress) -> DrawnImages:
    """Draw the training set of a recipe. Raises DemoModelStopped."""
    generator = np.random.default_rng(derive_seed(seed, "demo pictures"))
    total = recipe.num_plain_images + recipe.num_varied_images
    captioned, varied = [], []
    for index in range(total):
        if index < recipe.num_plain_images:
            captioned.append(draw_captioned_image(generator))
        else:
            varied.append(draw_varied_image(generator))
        progress.step("drawing", index + 1, total)
    return DrawnImages(captioned, np.stack(varied))


def save_pipeline(pipeline: DiffusionPipeline, kind: DemoKind, folder: Path) -> None:
    """Write the parts as fp16 safetensors and the pipeline's index; the parts are converted in place."""
    for name in kind.parts:
        getattr(pipeline, name).half().save_pretrained(folder / name, safe_serialization=True)
    pipeline.scheduler.save_pretrained(folder / "scheduler")
    if kind.write_tokenizer is not None:
        kind.write_tokenizer(folder / "tokenizer")
    pipeline.save_config(folder)


def train_vae(drawn: DrawnImages, recipe: DemoRecipe, *, kind: DemoKind, seed: int, progress: Progress) -> Encoded:
    """Train an autoencoder and return it with the latents of the captioned images. Raises DemoModelStopped."""
    vae = kind.build_vae(seed=derive_seed(seed, "demo vae weights"))
    plain_NHWC = drawn.stack_captioned()
    train_autoencoder(
        vae,
        plain_NHWC,
        drawn.varied_MHWC,
        recipe.autoencoder,
        generator=generator_of(seed, "demo autoencoder"),
        progress=progress,
    )
    all_images = np.concatenate([plain_NHWC, drawn.varied_MHWC])
    latents = encode_images(vae, all_images, progress=progress)
    polish_decoder(
        vae,
        latents,
        all_images,
        recipe.autoencoder,
        generator=generator_of(seed, "demo decoder"),
        progress=progress,
    )
    plain_latents_NLHW = latents[: len(plain_NHWC)]
    # Rombach et al. 2022, app. G: latents of unit variance, like SD's 0.18215.
    scale = round(1.0 / plain_latents_NLHW.std().item(), 4)
    vae.register_to_config(scaling_factor=scale)
    if not kind.centres_latents:
        return Encoded(vae, plain_latents_NLHW * scale, drawn.captioned)
    shift = round(plain_latents_NLHW.mean().item(), 4)
    vae.register_to_config(shift_factor=shift)
    return Encoded(vae, (plain_latents_NLHW - shift) * scale, drawn.captioned)


def _refuse_foreign_folder(folder: Path) -> None:
    if not folder.exists():
        return
    if not folder.is_dir() or {entry.name for entry in folder.iterdir()} - _FOLDER_ENTRIES:
        raise DarkroomError(
            f"{folder} exists and is not a demo model.", advice="Choose a new or empty folder, or that of a demo model."
        )


@contextmanager
def _thread_count(num_threads: int) -> Iterator[None]:
    """Set torch's thread count within this context."""
    former = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(former)
