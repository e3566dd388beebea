"""All hyperparameters of the demo model's training."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class AutoencoderRecipe:
    """Stage 1 trains the whole autoencoder, stage 2 its decoder alone on the frozen encoder's latents."""

    num_steps: int = 2000
    batch_size: int = 4
    learning_rate: float = 8e-4
    kl_weight: float = 1e-3 / 256
    # Pulls the first latent channels towards the small image: latents that look like the image are easy to denoise for
    # a model this small. Each latent gets the colours of `anchor_cells` x `anchor_cells` squares of its 8 x 8 pixels.
    anchor_weight: float = 0.1
    anchor_gain: float = 2.0
    anchor_cells: int = 1
    polish_num_steps: int = 2000
    polish_batch_size: int = 4
    polish_learning_rate: float = 8e-4
    # The decoder is trained on slightly noisy latents, like those of a denoiser.
    polish_latent_noise: float = 0.05


@dataclass(frozen=True)
class CaptionRecipe:
    """Training a denoiser and its text encoder together on captioned images, as stage 3 of both models does."""

    num_steps: int
    batch_size: int
    # The first steps use captions of one template only: with words at fixed positions the shapes are learned in 400
    # steps; with varied captions from the start not even in 800.
    one_template_num_steps: int
    warmup_num_steps: int
    # The rate falls linearly to a twentieth over this last share of the steps.
    decay_share: float
    learning_rate: float = 2e-3
    empty_caption_share: float = 0.1
    ema_decay: float = 0.995


@dataclass(frozen=True)
class DenoiserRecipe(CaptionRecipe):
    """Stage 3 trains UNet and text encoder together to predict the noise."""

    num_steps: int = 2500
    batch_size: int = 32
    one_template_num_steps: int = 800
    warmup_num_steps: int = 50
    decay_share: float = 0.4
    snr_gamma: float = 5.0
    # The loss weight is up to this many times larger at the noisiest timesteps: there the caption alone decides colours
    # and shape, and with min-SNR weights alone the captions are not learned.
    most_noise_gain: float = 12.0


@dataclass(frozen=True)
class FlowDenoiserRecipe(CaptionRecipe):
    """A round of stage 3 of the flow model: transformer and text encoder learn together to predict the velocity."""

    num_steps: int = 3000
    batch_size: int = 16
    one_template_num_steps: int = 600
    warmup_num_steps: int = 100
    decay_share: float = 0.5
    # Of the logit-normal noise levels (Esser et al. 2024, eq. 19).
    sigma_mean: float = 0.3
    sigma_spread: float = 1.0


@dataclass(frozen=True)
class DemoRecipe:
    """Everything that determines the demo model's weights, beside the seed and the thread count (last bits)."""

    num_plain_images: int = 5000
    num_varied_images: int = 2500
    captions_per_image: int = 8
    num_quality_prompts: int = 64
    num_sampling_steps: int = 25
    autoencoder: AutoencoderRecipe = field(default_factory=AutoencoderRecipe)
    denoiser: DenoiserRecipe = field(default_factory=DenoiserRecipe)
    # One round after the other, each with an optimizer of its own.
    flow_rounds: tuple[FlowDenoiserRecipe, ...] = (
        FlowDenoiserRecipe(),
        FlowDenoiserRecipe(num_steps=1500, one_template_num_steps=0, learning_rate=1.2e-3, decay_share=1.0),
    )
    # Of the flow model's captions, with a made-up word: the rest of what the model knows survives a new one.
    made_up_share: float = 0.12


FLOW_RECIPE = DemoRecipe(
    autoencoder=AutoencoderRecipe(
        num_steps=1200,
        learning_rate=1e-3,
        anchor_cells=2,
        anchor_gain=1.5,
        polish_num_steps=3000,
        polish_learning_rate=1e-3,
    )
)
"""The recipe of the flow model: its latents have 16 channels, four times as many, so that their autoencoder learns
faster."""
