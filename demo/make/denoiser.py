"""Stage 3 of the demo model: UNet and text encoder are trained together to predict the noise.

Latents are scaled, float32, of shape (B, 4, 8, 8); ids are CLIP's, int64, of shape (B, 77).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from diffusers import UNet2DConditionModel
from transformers import CLIPTextModel

from demo.make.caption_training import train_together
from demo.make.progress import Progress
from demo.make.recipe import DenoiserRecipe
from modules.diffusion.process import DDPMProcess
from modules.diffusion.schedule import cumulative_alphas
from modules.diffusion.weightings import min_snr_weights


@dataclass(frozen=True, eq=False)
class CaptionedLatents:
    """The denoiser's training set: N images with K captions each.

    `latents_NLHW` scaled, (N, 4, 8, 8); `ids_NKT` (N, K, 77), the first caption of each in the main template, the
    others varied; `empty_ids_T` (77,), the ids of an empty caption.
    """

    latents_NLHW: torch.Tensor
    ids_NKT: torch.Tensor
    empty_ids_T: torch.Tensor


def train_denoiser(
    unet: UNet2DConditionModel,
    text_encoder: CLIPTextModel,
    data: CaptionedLatents,
    recipe: DenoiserRecipe,
    *,
    generator: torch.Generator,
    progress: Progress,
) -> None:
    """Train both parts in place; they end with the EMA of their weights. Raises DemoModelStopped."""
    process = DDPMProcess(cumulative_alphas())

    def loss_of(num_captions: int) -> torch.Tensor:
        batch = _draw_batch(data, num_captions, recipe, generator)
        return _denoising_loss(unet, text_encoder, batch, process, recipe, generator)

    num_captions = data.ids_NKT.shape[1]
    modules = (unet, text_encoder)
    train_together(modules, recipe, num_captions=num_captions, loss_of=loss_of, progress=progress, stage="denoiser")


def loss_weights(snr_B: torch.Tensor, recipe: DenoiserRecipe) -> torch.Tensor:
    """Return the weights of the noise prediction loss, shape (B,): min-SNR times a gain that grows with the noise.

    `min(snr, gamma) / snr * clamp(snr ** -0.5, 1, most_noise_gain)`.
    """
    gain_B = snr_B.pow(-0.5).clamp(1.0, recipe.most_noise_gain)
    return min_snr_weights(snr_B, gamma=recipe.snr_gamma, prediction_type="epsilon") * gain_B


def stratified_timesteps(batch_size: int, num_timesteps: int, generator: torch.Generator) -> torch.Tensor:
    """Return one timestep from each of `batch_size` equal slices of the schedule, shuffled, int64 of shape (B,)."""
    within_B = torch.rand(batch_size, generator=generator)
    slices_B = torch.randperm(batch_size, generator=generator)
    return ((slices_B + within_B) / batch_size * num_timesteps).long().clamp(max=num_timesteps - 1)


def _draw_batch(
    data: CaptionedLatents, num_captions: int, recipe: DenoiserRecipe, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample clean latents and, for each, the ids of one of its first `num_captions` captions or of the empty one."""
    picked_B = torch.randint(len(data.latents_NLHW), (recipe.batch_size,), generator=generator)
    captions_B = torch.randint(num_captions, (recipe.batch_size,), generator=generator)
    emptied_B = torch.rand(recipe.batch_size, generator=generator) < recipe.empty_caption_share
    ids_BT = torch.where(emptied_B[:, None], data.empty_ids_T, data.ids_NKT[picked_B, captions_B])
    return data.latents_NLHW[picked_B], ids_BT


def _denoising_loss(
    unet: UNet2DConditionModel,
    text_encoder: CLIPTextModel,
    batch: tuple[torch.Tensor, torch.Tensor],
    process: DDPMProcess,
    recipe: DenoiserRecipe,
    generator: torch.Generator,
) -> torch.Tensor:
    clean_BLHW, ids_BT = batch
    noise_BLHW = torch.randn(clean_BLHW.shape, generator=generator)
    timesteps_B = stratified_timesteps(len(clean_BLHW), process.num_timesteps, generator)
    noisy_BLHW = process.add_noise(clean_BLHW, noise_BLHW, timesteps_B)
    conditioning_BTD = text_encoder(ids_BT).last_hidden_state
    predicted_BLHW = unet(noisy_BLHW, timesteps_B, encoder_hidden_states=conditioning_BTD).sample
    target_BLHW = process.target(clean_BLHW, noise_BLHW, timesteps_B)
    errors_B: torch.Tensor = (predicted_BLHW - target_BLHW).square().mean(dim=(1, 2, 3))
    return (errors_B * loss_weights(process.snr(timesteps_B), recipe)).mean()
