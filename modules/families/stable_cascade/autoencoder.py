"""The image encoder and the decoder of Stable Cascade as one autoencoder: EfficientNet, stage B and stage A."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from diffusers.configuration_utils import register_to_config
from diffusers.pipelines.deprecated.wuerstchen.modeling_paella_vq_model import PaellaVQModel

from modules.families.parts.efficient_net import WIDTH, EffNetEncoder, own_stages
from modules.families.parts.effnet_autoencoder import EffNetAutoencoder, effnet_passes
from modules.families.spec import FamilySpec
from modules.families.stable_cascade.unet import StableCascadeUNet
from modules.memory.trace import TracedPass


class StableCascadeAutoencoder(EffNetAutoencoder):
    """The parts that encode images and decode latents; stage B reads CLIP's pooled states of the prompts."""

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
        self.effnet = EffNetEncoder(own_stages(stages), width, latent_channels)
        self.stage_b = StableCascadeUNet.from_config(dict(decoder))
        self.stage_a = PaellaVQModel.from_config(dict(vqgan))

    @property
    def side_step(self) -> int:
        """The side of a patch: the levels fit to each other."""
        return int(self.stage_b.config.patch_size)

    def denoise(
        self, states_BCHW: torch.Tensor, time_B: torch.Tensor, encoded_BCHW: torch.Tensor, text: torch.Tensor
    ) -> torch.Tensor:
        """Return the noise that stage B predicts at times in [0, 1]; `text` are pooled states (B, E)."""
        output = self.stage_b(states_BCHW, time_B, text[:, None], effnet=encoded_BCHW, return_dict=False)
        noise_BCHW: torch.Tensor = output[0]
        return noise_BCHW


def autoencoder_passes(autoencoder: Any, spec: FamilySpec) -> Mapping[str, TracedPass]:
    """Return the passes of encoding and decoding."""
    return effnet_passes(autoencoder, spec, (autoencoder.stage_b.config.clip_text_pooled_in_channels,))
