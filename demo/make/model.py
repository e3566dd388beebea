"""Makes the demo model: draws images, trains autoencoder, decoder and denoiser, measures it, writes the folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL, StableDiffusionPipeline
from transformers import CLIPTokenizer

from demo.make.architecture import (
    NUM_TOKENS,
    assemble_pipeline,
    build_demo_text_encoder,
    build_demo_tokenizer,
    build_demo_unet,
    build_demo_vae,
    load_demo_pipeline,
)
from demo.make.autoencoder import encode_images, polish_decoder, train_autoencoder
from demo.make.denoiser import CaptionedLatents, train_denoiser
from demo.make.images import (
    FULL_TEMPLATES,
    CaptionedImage,
    DrawnImage,
    draw_captioned_image,
    draw_varied_image,
    random_caption,
    write_caption,
)
from demo.make.progress import Progress, Report
from demo.make.quality import DemoQuality, measure_quality, write_quality
from demo.make.recipe import DemoRecipe
from modules.system.atomic import atomic_folder
from modules.system.errors import DarkroomError
from modules.system.seeds import derive_seed
from trainer.run.threads import choose_num_threads

# The possible entries of a demo model's folder; a folder with any other entry is not replaced.
_FOLDER_ENTRIES = frozenset(
    {"model_index.json", "vae", "unet", "text_encoder", "scheduler", "quality.json", "samples.png"}
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
) -> DemoQuality:
    """Train the demo model from scratch and write it, atomically, as a diffusers folder (fp16, 7 MB).

    `report(stage, done, total, loss)` and `should_stop()` are called after every step. The same seed, recipe and
    number of threads give the same weights on one machine; without `num_threads` a short measurement decides between
    one and all. `quality.json` and `samples.png` go to `quality_folder`, by default to the folder itself. The folder
    has no tokenizer, because the program ships CLIP's. An existing demo model in `folder` is replaced.

    Raises DemoModelStopped when it should stop, and DarkroomError if `folder` contains other files.
    """
    _refuse_foreign_folder(folder)
    recipe = recipe if recipe is not None else DemoRecipe()
    progress = Progress(report, should_stop)
    threads = choose_num_threads(num_threads or 0, device_is_cpu=True, in_window=False)
    started_cpu_s = time.process_time()
    with _thread_count(threads):
        pipeline = train_demo_pipeline(recipe, seed=seed, progress=progress)
        with atomic_folder(folder) as unfinished:
            save_pipeline(pipeline, unfinished)
            training_cpu_s = time.process_time() - started_cpu_s
            measured = measure_quality(
                load_demo_pipeline(unfinished),
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


def train_demo_pipeline(recipe: DemoRecipe, *, seed: int, progress: Progress) -> StableDiffusionPipeline:
    """Run every stage of the recipe and return the pipeline, float32. Raises DemoModelStopped."""
    drawn = draw_images(recipe, seed=seed, progress=progress)
    vae = build_demo_vae(seed=derive_seed(seed, "demo vae weights"))
    latents_NLHW = _train_vae(vae, drawn, recipe, seed=seed, progress=progress)
    data = _caption_latents(latents_NLHW, drawn.captioned, recipe.captions_per_image, seed=seed)
    unet = build_demo_unet(seed=derive_seed(seed, "demo unet weights"))
    text_encoder = build_demo_text_encoder(seed=derive_seed(seed, "demo text encoder weights"))
    train_denoiser(
        unet,
        text_encoder,
        data,
        recipe.denoiser,
        generator=_generator(seed, "demo denoiser"),
        progress=progress,
    )
    return assemble_pipeline(text_encoder, vae, unet)


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


def save_pipeline(pipeline: StableDiffusionPipeline, folder: Path) -> None:
    """Write the parts as fp16 safetensors and the pipeline's index; the parts are converted in place."""
    for name in ("vae", "unet", "text_encoder"):
        getattr(pipeline, name).half().save_pretrained(folder / name, safe_serialization=True)
    pipeline.scheduler.save_pretrained(folder / "scheduler")
    pipeline.save_config(folder)


def _train_vae(
    vae: AutoencoderKL, drawn: DrawnImages, recipe: DemoRecipe, *, seed: int, progress: Progress
) -> torch.Tensor:
    """Train the autoencoder in place; return the scaled latents of the captioned images, (N, 4, 8, 8)."""
    plain_NHWC = drawn.stack_captioned()
    train_autoencoder(
        vae,
        plain_NHWC,
        drawn.varied_MHWC,
        recipe.autoencoder,
        generator=_generator(seed, "demo autoencoder"),
        progress=progress,
    )
    all_images = np.concatenate([plain_NHWC, drawn.varied_MHWC])
    latents = encode_images(vae, all_images, progress=progress)
    polish_decoder(
        vae,
        latents,
        all_images,
        recipe.autoencoder,
        generator=_generator(seed, "demo decoder"),
        progress=progress,
    )
    plain_latents_NLHW = latents[: len(plain_NHWC)]
    # Rombach et al. 2022, app. G: latents of unit variance, like SD's 0.18215.
    scale = round(1.0 / plain_latents_NLHW.std().item(), 4)
    vae.register_to_config(scaling_factor=scale)
    return plain_latents_NLHW * scale


def _caption_latents(
    latents_NLHW: torch.Tensor, captioned: list[CaptionedImage], captions_per_image: int, *, seed: int
) -> CaptionedLatents:
    """Return several captions per image as ids of shape (N, K, 77): one in the main template, then varied ones."""
    generator = np.random.default_rng(derive_seed(seed, "demo captions"))
    tokenizer = build_demo_tokenizer()
    rounds = [[write_caption(drawn.scene, FULL_TEMPLATES[0]) for drawn in captioned]]
    for _ in range(captions_per_image - 1):
        rounds.append([random_caption(drawn.scene, generator) for drawn in captioned])
    ids_NKT = torch.stack([_to_ids(tokenizer, captions) for captions in rounds], dim=1)
    return CaptionedLatents(latents_NLHW, ids_NKT, _to_ids(tokenizer, [""])[0])


def _to_ids(tokenizer: CLIPTokenizer, captions: list[str]) -> torch.Tensor:
    encoded = tokenizer(captions, padding="max_length", max_length=NUM_TOKENS, truncation=True, return_tensors="pt")
    ids_BT: torch.Tensor = encoded.input_ids
    return ids_BT


def _generator(seed: int, purpose: str) -> torch.Generator:
    return torch.Generator().manual_seed(derive_seed(seed, purpose))


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
