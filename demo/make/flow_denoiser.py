"""Stage 3 of the flow demo model: transformer and text encoder are trained together to predict the velocity.

Latents are normalised, float32, of shape (B, 16, 8, 8); noise levels sigma run from 0 (clean) to 1 (noise).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from diffusers import ZImageTransformer2DModel
from transformers import Qwen3Model

from demo.make.caption_training import train_together
from demo.make.progress import Progress
from demo.make.recipe import FlowDenoiserRecipe


@dataclass(frozen=True, eq=False)
class SpelledLatents:
    """The training set: N images (N, 16, 8, 8) with the ids of K captions each, the first in the main template."""

    latents_NLHW: torch.Tensor
    ids_NK: Sequence[Sequence[Sequence[int]]]
    empty_ids: Sequence[int]


def train_flow_denoiser(
    transformer: ZImageTransformer2DModel,
    text_encoder: Qwen3Model,
    data: SpelledLatents,
    recipe: FlowDenoiserRecipe,
    *,
    generator: torch.Generator,
    progress: Progress,
    stage: str,
) -> None:
    """Train both parts in place; they end with the EMA of their weights. `stage` names the steps in reports.

    Raises DemoModelStopped.
    """

    def loss_of(num_captions: int) -> torch.Tensor:
        clean_BLHW, ids = _draw_batch(data, num_captions, recipe, generator)
        sigmas_B = stratified_sigmas(len(clean_BLHW), recipe, generator)
        noise_BLHW = torch.randn(clean_BLHW.shape, generator=generator)
        noisy_BLHW = torch.lerp(clean_BLHW, noise_BLHW, sigmas_B[:, None, None, None])
        velocity_BLHW = predict_velocity(transformer, noisy_BLHW, sigmas_B, encode(text_encoder, ids))
        return (velocity_BLHW - (noise_BLHW - clean_BLHW)).square().mean()

    modules, num_captions = (transformer, text_encoder), len(data.ids_NK[0])
    train_together(modules, recipe, num_captions=num_captions, loss_of=loss_of, progress=progress, stage=stage)


def encode(text_encoder: Qwen3Model, ids: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Return the states (T, D) of captions of different lengths, of the last layer but one.

    Each token attends to those before it alone, so that the padding behind a caption changes nothing.
    """
    longest = max(len(one) for one in ids)
    ids_BT = torch.tensor([[*one, *[0] * (longest - len(one))] for one in ids])
    states_BTD = text_encoder(input_ids=ids_BT, output_hidden_states=True, use_cache=False).hidden_states[-2]
    return [states_TD[: len(one)] for states_TD, one in zip(states_BTD, ids, strict=True)]


def predict_velocity(
    transformer: ZImageTransformer2DModel, noisy_BLHW: torch.Tensor, sigmas_B: torch.Tensor, states: list[torch.Tensor]
) -> torch.Tensor:
    """Return the velocity, noise minus clean latents; the transformer reads 1 - sigma and predicts its negative."""
    outputs = transformer(list(noisy_BLHW.unsqueeze(2)), 1.0 - sigmas_B, states, return_dict=False)[0]
    return -torch.stack(outputs).squeeze(2)


def stratified_sigmas(num_images: int, recipe: FlowDenoiserRecipe, generator: torch.Generator) -> torch.Tensor:
    """Return logit-normal noise levels (B,), one from each of B equally likely slices, shuffled."""
    slices_B = torch.randperm(num_images, generator=generator)
    shares_B = (slices_B + torch.rand(num_images, generator=generator)) / num_images
    normal_B = torch.special.ndtri(shares_B.clamp(1e-4, 1.0 - 1e-4))
    return torch.sigmoid(recipe.sigma_mean + recipe.sigma_spread * normal_B)


def _draw_batch(
    data: SpelledLatents, num_captions: int, recipe: FlowDenoiserRecipe, generator: torch.Generator
) -> tuple[torch.Tensor, list[Sequence[int]]]:
    """Sample latents and, for each, the ids of one of its first `num_captions` captions or of the empty one."""
    picked_B = torch.randint(len(data.latents_NLHW), (recipe.batch_size,), generator=generator)
    captions_B = torch.randint(num_captions, (recipe.batch_size,), generator=generator)
    emptied_B = torch.rand(recipe.batch_size, generator=generator) < recipe.empty_caption_share
    ids = [
        data.empty_ids if is_empty else data.ids_NK[image][caption]
        for image, caption, is_empty in zip(picked_B.tolist(), captions_B.tolist(), emptied_B.tolist(), strict=True)
    ]
    return data.latents_NLHW[picked_B], ids
