"""The image encoder and the decoder of Stable Cascade as one autoencoder: EfficientNet, stage B and stage A.

Latents are the encoder's output for an image of three quarters of its size (Pernias et al. 2024, "Würstchen"): 24 x 24
of 16 channels at 1024 px. Stage B, a diffusion model, makes the latents of stage A, a VQGAN of factor 4, of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from diffusers import DDPMWuerstchenScheduler
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from diffusers.pipelines.deprecated.wuerstchen.modeling_paella_vq_model import PaellaVQModel
from torch import nn
from torch.utils.checkpoint import checkpoint

from modules.families.spec import FamilySpec
from modules.families.stable_cascade.efficient_net import STAGES, WIDTH, EffNetEncoder, Stage
from modules.families.stable_cascade.unet import StableCascadeUNet
from modules.memory.recording import PassSize
from modules.memory.trace import TracedPass

_MEANS, _DEVIATIONS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of the images of ImageNet
_ENCODED = 0.75  # the size at which images are encoded
_IN_LATENTS = 32 / 3  # the latents of stage A along a side for each of stage C
_FACTOR = 4  # the pixels along a side for each latent of stage A
_SEED = 0


class StableCascadeAutoencoder(ModelMixin, ConfigMixin):  # type: ignore[misc]  # diffusers has no types
    """The parts that encode images and decode latents; none of them is trained."""

    @register_to_config  # type: ignore[untyped-decorator]  # diffusers has no types
    def __init__(
        self,
        decoder: Mapping[str, Any],
        vqgan: Mapping[str, Any],
        stages: Sequence[Sequence[int]] = (),
        width: int = WIDTH,
        latent_channels: int = 16,
        num_steps: int = 10,
    ) -> None:
        """`decoder` and `vqgan` are the configs of the two; `stages`, each as the values of a `Stage`, are those of an
        encoder that is not EfficientNetV2-S. Decoding takes `num_steps`.
        """
        super().__init__()
        own = tuple(Stage(bool(is_fused), *rest) for is_fused, *rest in stages)
        self.effnet = EffNetEncoder(own or STAGES, width, latent_channels)
        self.stage_b = StableCascadeUNet.from_config(dict(decoder))
        self.stage_a = PaellaVQModel.from_config(dict(vqgan))

    def encode(self, images_B3PP: torch.Tensor) -> Any:
        """Return the latents (B, C, H, W) of images in [-1, 1], as diffusers' autoencoders return a distribution."""
        sides = [round(side * _ENCODED) for side in images_B3PP.shape[-2:]]
        small_B3PP = nn.functional.interpolate(
            images_B3PP.float(), size=sides, mode="bilinear", antialias=True, align_corners=False
        )
        means, deviations = (small_B3PP.new_tensor(v).view(1, 3, 1, 1) for v in (_MEANS, _DEVIATIONS))
        normalized_B3PP = ((small_B3PP.clamp(-1.0, 1.0) / 2 + 0.5 - means) / deviations).to(images_B3PP.dtype)
        latents_BCHW = self.effnet(normalized_B3PP)
        return SimpleNamespace(latent_dist=SimpleNamespace(mode=lambda: latents_BCHW, mean=latents_BCHW))

    def decode(self, latents_BCHW: torch.Tensor, pooled_BE: torch.Tensor) -> torch.Tensor:
        """Return the images (B, 3, P, P) in [-1, 1] of latents and of CLIP's states of their prompts.

        Stage B is sampled as in `StableCascadeDecoderPipeline`, with the same noise for every image. For a gradient
        each of its steps is computed again.
        """
        scheduler = DDPMWuerstchenScheduler()
        scheduler.set_timesteps(self.config.num_steps, device=latents_BCHW.device)
        generators = [torch.Generator("cpu").manual_seed(_SEED) for _ in latents_BCHW]
        height, width = (int(side * _IN_LATENTS) for side in latents_BCHW.shape[-2:])
        shape = (1, self.stage_b.config.in_channels, height, width)
        noise = [torch.randn(shape, generator=generator).to(latents_BCHW) for generator in generators]
        states_BCHW = torch.cat(noise)
        denoise = partial(checkpoint, self.denoise, use_reentrant=False) if torch.is_grad_enabled() else self.denoise
        for time in scheduler.timesteps[:-1]:
            time_B = time.expand(len(latents_BCHW))
            output_BCHW = denoise(states_BCHW, time_B, latents_BCHW, pooled_BE)
            states_BCHW = scheduler.step(output_BCHW, time_B, states_BCHW, generators).prev_sample
        return self.images(states_BCHW)

    def denoise(
        self, states_BCHW: torch.Tensor, time_B: torch.Tensor, latents_BCHW: torch.Tensor, pooled_BE: torch.Tensor
    ) -> torch.Tensor:
        """Return the noise that stage B predicts at times in [0, 1]."""
        output = self.stage_b(states_BCHW, time_B, pooled_BE[:, None], effnet=latents_BCHW, return_dict=False)
        noise_BCHW: torch.Tensor = output[0]
        return noise_BCHW

    def images(self, states_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the images (B, 3, P, P) in [-1, 1] of stage A's latents."""
        images_B3PP = self.stage_a.decode(self.stage_a.config.scale_factor * states_BCHW).sample.clamp(0.0, 1.0)
        scaled: torch.Tensor = images_B3PP * 2 - 1
        return scaled


def autoencoder_passes(autoencoder: Any, spec: FamilySpec) -> Mapping[str, TracedPass]:
    """Return the encoding, and the last step of decoding, which needs as much memory as any."""
    config = autoencoder.stage_b.config

    def images(size: PassSize) -> dict[str, Any]:
        return {"images_B3PP": torch.empty(size.batch, 3, size.height_px, size.width_px)}

    def latents(size: PassSize) -> dict[str, Any]:
        height, width = size.height_px // _FACTOR, size.width_px // _FACTOR
        return {
            "latents_BCHW": torch.empty(size.batch, *spec.latents.shape(size.width_px, size.height_px)),
            "states_BCHW": torch.empty(size.batch, config.in_channels, height, width),
            "time_B": torch.empty(size.batch, dtype=torch.float32),
            "pooled_BE": torch.empty(size.batch, config.clip_text_pooled_in_channels),
        }

    def encode(images_B3PP: torch.Tensor) -> torch.Tensor:
        mean: torch.Tensor = autoencoder.encode(images_B3PP).latent_dist.mean
        return mean

    def decode(
        latents_BCHW: torch.Tensor, states_BCHW: torch.Tensor, time_B: torch.Tensor, pooled_BE: torch.Tensor
    ) -> torch.Tensor:
        output_BCHW = autoencoder.denoise(states_BCHW, time_B, latents_BCHW, pooled_BE)
        images_B3PP: torch.Tensor = autoencoder.images(states_BCHW - output_BCHW)
        return images_B3PP

    return {"encode": TracedPass(encode, images), "decode": TracedPass(decode, latents)}
