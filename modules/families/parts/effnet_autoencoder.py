"""An autoencoder whose latents are the output of an EfficientNet, and whose decoder is a diffusion model (stage B).

An image is encoded at three quarters of its size (Pernias et al. 2024, "Würstchen"): 24 x 24 latents of 16 channels at
1024 px. From these, stage B makes the latents of stage A, a VQGAN of factor 4.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from diffusers import DDPMWuerstchenScheduler
from diffusers.configuration_utils import ConfigMixin
from diffusers.models.attention_processor import Attention
from diffusers.models.modeling_utils import ModelMixin
from diffusers.pipelines.deprecated.wuerstchen.modeling_paella_vq_model import PaellaVQModel
from torch import nn
from torch.utils.checkpoint import checkpoint

from modules.families.parts.efficient_net import EffNetEncoder
from modules.families.parts.traced_passes import TracedPasses
from modules.families.spec import FamilySpec
from modules.memory.recording import PassSize
from modules.memory.trace import TracedPass
from modules.system.devices import tensor_on

_MEANS, _DEVIATIONS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of the images of ImageNet
_ENCODED = 0.75  # the size at which images are encoded
_IN_LATENTS = 32 / 3  # the latents of stage A along a side for each latent
_FACTOR = 4  # the pixels along a side for each latent of stage A
_SEED = 0


class EffNetAutoencoder(ModelMixin, ConfigMixin, ABC):  # type: ignore[misc]  # diffusers has no types
    """The parts that encode images and decode latents; none of them is trained.

    Latents are the encoder's output plus `shift`, divided by `scale`. `num_steps` in its config is for decoding.
    """

    scale: ClassVar[float] = 1.0
    shift: ClassVar[float] = 0.0
    effnet: EffNetEncoder
    stage_b: Any
    stage_a: PaellaVQModel

    def put_parts(self, parts: Mapping[str, nn.Module]) -> None:
        """Replace the parts without weights by those of the decoder's folder, by their names there."""
        self.stage_b, self.stage_a = parts["decoder"], parts["vqgan"]

    def encode(self, images_B3PP: torch.Tensor) -> Any:
        """Return the latents (B, C, H, W) of images in [-1, 1], as diffusers' autoencoders return a distribution."""
        sides = [round(side * _ENCODED) for side in images_B3PP.shape[-2:]]
        small_B3PP = nn.functional.interpolate(
            images_B3PP.float(), size=sides, mode="bilinear", antialias=True, align_corners=False
        )
        device = small_B3PP.device
        means, deviations = (tensor_on(v, device, torch.float32).view(1, 3, 1, 1) for v in (_MEANS, _DEVIATIONS))
        normalized_B3PP = ((small_B3PP.clamp(-1.0, 1.0) / 2 + 0.5 - means) / deviations).to(images_B3PP.dtype)
        encoded_BCHW = self.effnet(normalized_B3PP)
        latents_BCHW = ((encoded_BCHW.float() + self.shift) / self.scale).to(encoded_BCHW.dtype)
        return SimpleNamespace(latent_dist=SimpleNamespace(mode=lambda: latents_BCHW, mean=latents_BCHW))

    def decode(self, latents_BCHW: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        """Return the images (B, 3, P, P) in [-1, 1] of latents and of their prompts' input for `encode_text`.

        Stage B is sampled as in diffusers' decoder pipelines, with the same noise for every image. Sizes that it cannot
        have are rounded up; theirs fail. With gradients each of its steps is computed again in the backward pass.
        """
        scheduler = DDPMWuerstchenScheduler()
        scheduler.set_timesteps(self.config.num_steps, device=latents_BCHW.device)
        generators = [torch.Generator("cpu").manual_seed(_SEED) for _ in latents_BCHW]
        step = self.side_step
        height, width = (math.ceil(int(side * _IN_LATENTS) / step) * step for side in latents_BCHW.shape[-2:])
        shape = (1, self.stage_a.config.latent_channels, height, width)
        dtype = next(self.parameters()).dtype
        encoded_BCHW = (latents_BCHW * self.scale - self.shift).to(dtype)
        noise = [torch.randn(shape, generator=generator).to(encoded_BCHW) for generator in generators]
        states_BCHW, text = torch.cat(noise), self.encode_text(text)
        denoise = partial(checkpoint, self.denoise, use_reentrant=False) if torch.is_grad_enabled() else self.denoise
        for time in scheduler.timesteps[:-1]:
            time_B = time.expand(len(latents_BCHW))
            output_BCHW = denoise(states_BCHW, time_B, encoded_BCHW, text)
            states_BCHW = scheduler.step(output_BCHW, time_B, states_BCHW, generators).prev_sample
        return self.images(states_BCHW)

    def encode_text(self, text: torch.Tensor) -> torch.Tensor:
        """Return stage B's input for prompts, from the states of the prior's conditioning."""
        return text

    @property
    @abstractmethod
    def side_step(self) -> int:
        """The number that must divide the sides of stage A's latents."""

    @abstractmethod
    def denoise(
        self, states_BCHW: torch.Tensor, time_B: torch.Tensor, encoded_BCHW: torch.Tensor, text: torch.Tensor
    ) -> torch.Tensor:
        """Return the noise that stage B predicts at times in [0, 1]; `encoded_BCHW` is the encoder's output."""

    def images(self, states_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the images (B, 3, P, P) in [-1, 1] of stage A's latents."""
        images_B3PP = self.stage_a.decode(self.stage_a.config.scale_factor * states_BCHW).sample.clamp(0.0, 1.0)
        scaled: torch.Tensor = images_B3PP * 2 - 1
        return scaled


def without_dropout(network: nn.Module) -> None:
    """Set a network's dropout to 0, and mark its attention as cross-attention: its keys also read the prompt.

    The published configs have the dropout of the original training. With it, predictions of the original model, from
    which a run learns, would be random.
    """
    for layer in network.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
        elif isinstance(layer, Attention):
            layer.is_cross_attention = True


def effnet_passes(autoencoder: Any, spec: FamilySpec, text_shape: tuple[int, ...]) -> TracedPasses:
    """Return the encoding, and the last step of decoding, which needs as much memory as any.

    `text_shape` is the shape of stage B's input for one prompt.
    """

    def images(size: PassSize) -> dict[str, Any]:
        return {"images_B3PP": torch.empty(size.batch, 3, size.height_px, size.width_px)}

    def latents(size: PassSize) -> dict[str, Any]:
        height, width = size.height_px // _FACTOR, size.width_px // _FACTOR
        return {
            "encoded_BCHW": torch.empty(size.batch, *spec.latents.shape(size.width_px, size.height_px)),
            "states_BCHW": torch.empty(size.batch, autoencoder.stage_a.config.latent_channels, height, width),
            "time_B": torch.empty(size.batch, dtype=torch.float32),
            "text": torch.empty(size.batch, *text_shape),
        }

    def encode(images_B3PP: torch.Tensor) -> torch.Tensor:
        mean: torch.Tensor = autoencoder.encode(images_B3PP).latent_dist.mean
        return mean

    def decode(
        encoded_BCHW: torch.Tensor, states_BCHW: torch.Tensor, time_B: torch.Tensor, text: torch.Tensor
    ) -> torch.Tensor:
        output_BCHW = autoencoder.denoise(states_BCHW, time_B, encoded_BCHW, text)
        images_B3PP: torch.Tensor = autoencoder.images(states_BCHW - output_BCHW)
        return images_B3PP

    return {"encode": TracedPass(encode, images), "decode": TracedPass(decode, latents)}
