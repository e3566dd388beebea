"""Stage 3 of the demo model: UNet and text encoder are trained together to predict the noise.

Latents are scaled, float32, of shape (B, 4, 8, 8); ids are CLIP's, int64, of shape (B, 77).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from diffusers import UNet2DConditionModel
from transformers import CLIPTextModel

from demo.make.progress import Progress
from demo.make.recipe import DenoiserRecipe, FlowDenoiserRecipe
from modules.diffusion.process import DDPMProcess
from modules.diffusion.schedule import cumulative_alphas
from modules.diffusion.weightings import min_snr_weights

_MAX_GRADIENT_NORM = 1.0
_LAST_RATE_SHARE = 0.05


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
    weights = [*unet.parameters(), *text_encoder.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=recipe.learning_rate, betas=(0.9, 0.99), weight_decay=0.0, fused=True)
    averages = [weight.detach().clone() for weight in weights]
    unet.train()
    text_encoder.train()
    for step in range(recipe.num_steps):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * rate_share(step, recipe)
        num_captions = 1 if step < recipe.one_template_num_steps else data.ids_NKT.shape[1]
        batch = _draw_batch(data, num_captions, recipe, generator)
        loss = _denoising_loss(unet, text_encoder, batch, process, recipe, generator)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, _MAX_GRADIENT_NORM)
        optimizer.step()
        _move_averages(averages, weights, min(recipe.ema_decay, (1 + step) / (10 + step)))
        progress.step("denoiser", step + 1, recipe.num_steps, loss.item())
    with torch.no_grad():
        for weight, average in zip(weights, averages, strict=True):
            weight.copy_(average)
    unet.eval()
    text_encoder.eval()


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


def rate_share(step: int, recipe: DenoiserRecipe | FlowDenoiserRecipe) -> float:
    """Return the factor on the peak learning rate at a step: linear warm-up, plateau, linear decay."""
    warmup = min(1.0, (step + 1) / max(1, recipe.warmup_num_steps))
    num_decay_steps = max(1.0, recipe.decay_share * recipe.num_steps)
    decay = min(1.0, (recipe.num_steps - step) / num_decay_steps)
    return warmup * max(_LAST_RATE_SHARE, decay)


def _move_averages(averages: list[torch.Tensor], weights: list[torch.Tensor], decay: float) -> None:
    with torch.no_grad():
        torch._foreach_lerp_(averages, weights, 1.0 - decay)
