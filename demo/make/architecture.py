"""The parts of the demo model, built with diffusers' and transformers' classes, and their pipeline.

It is an SD 1.5 in everything but size: CLIP text encoder with the real 49,408 token vocabulary and 77 positions,
AutoencoderKL with 4 latent channels at an eighth of the image's side, UNet with cross attention, SD's noise schedule.
7.0 MB of weights in fp16. Later tests use these as a pretrained toy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from diffusers.models.attention_processor import Attention
from diffusers.models.downsampling import Downsample2D
from diffusers.models.resnet import ResnetBlock2D
from diffusers.models.upsampling import Upsample2D
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from demo.make.shapes import IMAGE_SIZE_PX
from modules.families.parts.clip_vocabulary import END_TOKEN, START_TOKEN, clip_merges, clip_vocabulary

NUM_TOKENS = 77
LATENT_CHANNELS = 4
LATENT_SIZE = IMAGE_SIZE_PX // 8
# 1 / standard deviation of the latents of the recipe's trained autoencoder.
LATENT_SCALE = 0.74

_RESIDUAL_START = 0.1
_UNET_RESIDUAL_START = 0.3
_LOG_VARIANCE_START = -5.0


def build_demo_text_encoder(*, seed: int, hidden_size: int = 32, num_layers: int = 2) -> CLIPTextModel:
    """Return a CLIP text encoder, float32, random weights of the given seed; 3.2 MB in fp16 at the defaults."""
    vocabulary = clip_vocabulary()
    config = CLIPTextConfig(
        vocab_size=len(vocabulary),
        hidden_size=hidden_size,
        intermediate_size=4 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        max_position_embeddings=NUM_TOKENS,
        bos_token_id=vocabulary[START_TOKEN],
        eos_token_id=vocabulary[END_TOKEN],
        pad_token_id=vocabulary[END_TOKEN],
    )
    with seeded(seed):
        return CLIPTextModel(config)


def build_demo_vae(
    *,
    seed: int,
    block_out_channels: tuple[int, ...] = (12, 24, 32, 32),
    latent_channels: int = LATENT_CHANNELS,
    has_quant_convs: bool = True,
) -> AutoencoderKL:
    """Return an autoencoder, float32, that starts close to the identity (0.6 MB in fp16 at the defaults).

    `has_quant_convs`: convolutions on both sides of the latents, as Stable Diffusion has them and FLUX.1 does not.

    diffusers' own initialisation does not train at this size (the loss stays at that of a grey image), so the
    residual branches start small, shortcuts and upsamplers as identities and downsamplers as averages.
    """
    with seeded(seed):
        vae = AutoencoderKL(
            block_out_channels=block_out_channels,
            down_block_types=("DownEncoderBlock2D",) * len(block_out_channels),
            up_block_types=("UpDecoderBlock2D",) * len(block_out_channels),
            layers_per_block=1,
            latent_channels=latent_channels,
            norm_num_groups=1,
            sample_size=IMAGE_SIZE_PX,
            scaling_factor=LATENT_SCALE,
            use_quant_conv=has_quant_convs,
            use_post_quant_conv=has_quant_convs,
        )
    _start_near_pass_through(vae)
    return vae


def build_demo_unet(
    *, seed: int, block_out_channels: tuple[int, int] = (40, 80), cross_attention_dim: int = 32
) -> UNet2DConditionModel:
    """Return a UNet for 8 x 8 latents, float32, that initially predicts its input as noise (3.3 MB in fp16).

    As in SD 1.5's own config, diffusers reads `attention_head_dim` as the number of heads. At the noisiest timesteps
    the input is the right answer to within a few percent, and the caption decides the rest; a UNet with random weights
    needed the first third of the training to learn to pass its input through.
    """
    with seeded(seed):
        unet = UNet2DConditionModel(
            sample_size=LATENT_SIZE,
            in_channels=LATENT_CHANNELS,
            out_channels=LATENT_CHANNELS,
            block_out_channels=block_out_channels,
            down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
            layers_per_block=1,
            attention_head_dim=4,
            norm_num_groups=8,
            cross_attention_dim=cross_attention_dim,
        )
    _start_as_noise(unet)
    return unet


def build_demo_tokenizer() -> CLIPTokenizer:
    """Return the CLIP tokenizer for diffusers, from the vocabulary that ships with the program."""
    return CLIPTokenizer(vocab=clip_vocabulary(), merges=clip_merges(), model_max_length=NUM_TOKENS)


def build_demo_scheduler() -> DDIMScheduler:
    """Return a DDIM scheduler with Stable Diffusion 1.x's noise schedule."""
    return DDIMScheduler(
        num_train_timesteps=1000,
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        clip_sample=False,
        set_alpha_to_one=False,
        steps_offset=1,
    )


def assemble_pipeline(
    text_encoder: CLIPTextModel, vae: AutoencoderKL, unet: UNet2DConditionModel
) -> StableDiffusionPipeline:
    """Return diffusers' pipeline of the parts, in evaluation mode, without safety checker or progress bar."""
    pipeline = StableDiffusionPipeline(
        vae=vae.eval(),
        text_encoder=text_encoder.eval(),
        tokenizer=build_demo_tokenizer(),
        unet=unet.eval(),
        scheduler=build_demo_scheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def load_demo_pipeline(folder: Path) -> StableDiffusionPipeline:
    """Load a saved demo model in float32 with diffusers, with the tokenizer that its folder does not contain.

    Raises OSError if the folder contains no pipeline.
    """
    pipeline = StableDiffusionPipeline.from_pretrained(
        folder,
        tokenizer=build_demo_tokenizer(),
        use_safetensors=True,
        local_files_only=True,
        trust_remote_code=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline.to(torch.float32)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generator, which the libraries' initialisers use, within this context."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _start_near_pass_through(vae: AutoencoderKL) -> None:
    """Set, in place, the weights that decide whether a new autoencoder passes its input through."""
    with torch.no_grad():
        for module in vae.modules():
            if isinstance(module, ResnetBlock2D):
                module.conv2.weight.mul_(_RESIDUAL_START)
                if module.conv_shortcut is not None:
                    _make_identity(module.conv_shortcut)
            elif isinstance(module, Attention):
                module.to_out[0].weight.mul_(_RESIDUAL_START)
            elif isinstance(module, Upsample2D):
                _make_identity(module.conv)
            elif isinstance(module, Downsample2D):
                _make_average(module.conv)
        # The encoder starts with a small variance (e^-5), or its noise would dominate the first gradients.
        last = vae.encoder.conv_out if vae.quant_conv is None else vae.quant_conv
        last.bias[vae.config.latent_channels :] = _LOG_VARIANCE_START


def _start_as_noise(unet: UNet2DConditionModel) -> None:
    """Set weights, in place, so that the UNet passes its input through to its output.

    Channels 0 to 3 carry x and 4 to 7 carry -x over the outermost skip connection to the last residual block. The
    output convolution subtracts them: silu(x) - silu(-x) = x.
    """
    carried = 2 * LATENT_CHANNELS
    centre = (1, 1)
    last_shortcut = unet.up_blocks[-1].resnets[-1].conv_shortcut
    skip_start = last_shortcut.in_channels - unet.conv_in.out_channels
    with torch.no_grad():
        for name, module in unet.named_modules():
            if isinstance(module, ResnetBlock2D):
                module.conv2.weight.mul_(_UNET_RESIDUAL_START)
            elif name.endswith("proj_out"):
                module.weight.mul_(_UNET_RESIDUAL_START)
        for convolution in (unet.conv_in, last_shortcut):
            convolution.weight[:carried] = 0.0
            convolution.bias[:carried] = 0.0
        unet.conv_out.weight.mul_(_RESIDUAL_START)
        unet.conv_out.bias.zero_()
        for channel in range(LATENT_CHANNELS):
            unet.conv_in.weight[channel, channel, *centre] = 1.0
            unet.conv_in.weight[LATENT_CHANNELS + channel, channel, *centre] = -1.0
            unet.conv_out.weight[channel, channel, *centre] += 1.0
            unet.conv_out.weight[channel, LATENT_CHANNELS + channel, *centre] -= 1.0
        for channel in range(carried):
            last_shortcut.weight[channel, skip_start + channel, 0, 0] = 1.0


def _make_identity(convolution: nn.Conv2d) -> None:
    nn.init.dirac_(convolution.weight)
    if convolution.bias is not None:
        nn.init.zeros_(convolution.bias)


def _make_average(convolution: nn.Conv2d) -> None:
    """Set a 3 x 3 convolution of stride 2, padded at the right and below, to the mean of 2 x 2 pixels."""
    nn.init.zeros_(convolution.weight)
    if convolution.bias is not None:
        nn.init.zeros_(convolution.bias)
    for channel in range(convolution.weight.shape[0]):
        convolution.weight[channel, channel, :2, :2] = 0.25
