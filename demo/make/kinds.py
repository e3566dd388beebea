"""The kinds of demo models: a tiny Stable Diffusion, and a tiny flow model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL, DiffusionPipeline
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
from demo.make.denoiser import CaptionedLatents, train_denoiser
from demo.make.flow_denoiser import SpelledLatents, train_flow_denoiser
from demo.make.flow_parts import (
    assemble_flow_pipeline,
    build_flow_text_encoder,
    build_flow_tokenizer,
    build_flow_transformer,
    build_flow_vae,
    load_flow_pipeline,
    write_flow_tokenizer,
)
from demo.make.images import FULL_TEMPLATES, CaptionedImage, made_up_caption, random_caption, write_caption
from demo.make.progress import Progress
from demo.make.recipe import FLOW_RECIPE, DemoRecipe
from modules.system.seeds import derive_seed


@dataclass(frozen=True, eq=False)
class Encoded:
    """The autoencoder with the latents, normalised, of the captioned images (N, L, 8, 8)."""

    vae: AutoencoderKL
    latents_NLHW: torch.Tensor
    captioned: list[CaptionedImage]


@dataclass(frozen=True)
class DemoKind:
    """A kind of demo model: its recipe, how its parts are built and trained, and its files.

    `build_vae(seed=)` returns the autoencoder; `centres_latents`: its latents are shifted to a mean of 0 as well as
    scaled. `train(encoded, recipe, seed=, progress=)` trains the rest and returns the pipeline. `parts` are those of
    the pipeline with weights; `write_tokenizer(folder)` writes a tokenizer that the program does not contain.
    """

    recipe: DemoRecipe
    build_vae: Callable[..., AutoencoderKL]
    centres_latents: bool
    train: Callable[..., DiffusionPipeline]
    load: Callable[[Path], DiffusionPipeline]
    parts: tuple[str, ...]
    write_tokenizer: Callable[[Path], None] | None = None


def _train_sd(encoded: Encoded, recipe: DemoRecipe, *, seed: int, progress: Progress) -> DiffusionPipeline:
    unet = build_demo_unet(seed=derive_seed(seed, "demo unet weights"))
    text_encoder = build_demo_text_encoder(seed=derive_seed(seed, "demo text encoder weights"))
    train_denoiser(
        unet,
        text_encoder,
        _caption_latents(encoded, recipe.captions_per_image, seed=seed),
        recipe.denoiser,
        generator=generator_of(seed, "demo denoiser"),
        progress=progress,
    )
    return assemble_pipeline(text_encoder, encoded.vae, unet)


def _caption_latents(encoded: Encoded, captions_per_image: int, *, seed: int) -> CaptionedLatents:
    """Return several captions per image as ids of shape (N, K, 77): one in the main template, then varied ones."""
    generator = np.random.default_rng(derive_seed(seed, "demo captions"))
    tokenizer = build_demo_tokenizer()
    rounds = [[write_caption(drawn.scene, FULL_TEMPLATES[0]) for drawn in encoded.captioned]]
    for _ in range(captions_per_image - 1):
        rounds.append([random_caption(drawn.scene, generator) for drawn in encoded.captioned])
    ids_NKT = torch.stack([_to_ids(tokenizer, captions) for captions in rounds], dim=1)
    return CaptionedLatents(encoded.latents_NLHW, ids_NKT, _to_ids(tokenizer, [""])[0])


def _to_ids(tokenizer: CLIPTokenizer, captions: list[str]) -> torch.Tensor:
    encoded = tokenizer(captions, padding="max_length", max_length=NUM_TOKENS, truncation=True, return_tensors="pt")
    ids_BT: torch.Tensor = encoded.input_ids
    return ids_BT


def _train_flow(encoded: Encoded, recipe: DemoRecipe, *, seed: int, progress: Progress) -> DiffusionPipeline:
    transformer = build_flow_transformer(seed=derive_seed(seed, "demo transformer weights"))
    text_encoder = build_flow_text_encoder(seed=derive_seed(seed, "demo flow text encoder weights"))
    data = _spell_latents(encoded, recipe, seed=seed)
    for index, one in enumerate(recipe.flow_rounds):
        number = f" {index}" if index else ""
        train_flow_denoiser(
            transformer,
            text_encoder,
            data,
            one,
            generator=generator_of(seed, f"demo flow denoiser{number}"),
            progress=progress,
            stage=f"denoiser{number}",
        )
    return assemble_flow_pipeline(text_encoder, encoded.vae, transformer)


def _spell_latents(encoded: Encoded, recipe: DemoRecipe, *, seed: int) -> SpelledLatents:
    """Return the ids of several captions per image: one in the main template, then varied and made-up ones."""
    generator = np.random.default_rng(derive_seed(seed, "demo flow captions"))
    tokenizer = build_flow_tokenizer()

    def spelled(caption: str) -> list[int]:
        template = f"<|im_start|>user\n{caption}<|im_end|>\n<|im_start|>assistant\n"
        ids: list[int] = tokenizer.encode(template, add_special_tokens=False).ids
        return ids

    def varied(drawn: CaptionedImage) -> str:
        is_made_up = generator.random() < recipe.made_up_share
        return (made_up_caption if is_made_up else random_caption)(drawn.scene, generator)

    ids_NK = []
    for drawn in encoded.captioned:
        captions = [write_caption(drawn.scene, FULL_TEMPLATES[0])]
        captions += [varied(drawn) for _ in range(recipe.captions_per_image - 1)]
        ids_NK.append([spelled(caption) for caption in captions])
    return SpelledLatents(encoded.latents_NLHW, ids_NK, spelled(""))


def generator_of(seed: int, purpose: str) -> torch.Generator:
    """Return a generator for one purpose of a model's seed."""
    return torch.Generator().manual_seed(derive_seed(seed, purpose))


SD = DemoKind(
    recipe=DemoRecipe(),
    build_vae=build_demo_vae,
    centres_latents=False,
    train=_train_sd,
    load=load_demo_pipeline,
    parts=("vae", "unet", "text_encoder"),
)
FLOW = DemoKind(
    recipe=FLOW_RECIPE,
    build_vae=build_flow_vae,
    centres_latents=True,
    train=_train_flow,
    load=load_flow_pipeline,
    parts=("vae", "transformer", "text_encoder"),
    write_tokenizer=write_flow_tokenizer,
)
KINDS = {"sd": SD, "flow": FLOW}
