"""Loading Stable Cascade and running it: prior and CLIP of a base model, and the autoencoder from places of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from diffusers.configuration_utils import register_to_config
from diffusers.pipelines.deprecated.wuerstchen.modeling_paella_vq_model import PaellaVQModel

from modules.families.parts.conditioning import PooledConditioning
from modules.families.parts.efficient_net import WIDTH, EffNetEncoder, stages_in_config
from modules.families.parts.effnet_autoencoder import EffNetAutoencoder, effnet_passes
from modules.families.parts.effnet_files import AutoencoderSource
from modules.families.parts.effnet_model import EffNetModel, load_effnet_model
from modules.families.parts.text_model import DenoiserInputs
from modules.families.parts.traced_passes import TracedPasses
from modules.families.protocol import LoadRequest
from modules.families.spec import FamilySpec
from modules.families.stable_cascade.spec import OF_IMAGES, STABLE_CASCADE, StableCascadeSettings
from modules.families.stable_cascade.unet import StableCascadeUNet

_TEXT = "text_encoder"


@dataclass(eq=False)
class StableCascade(EffNetModel[PooledConditioning]):
    """A prior, a CLIP, an autoencoder of three parts; implements `FamilyWithEmbeddings`."""

    text_class = PooledConditioning

    def reaches(self, part: str, name: str) -> bool:
        """Return whether a denoising loss reaches a layer: all but the autoencoder's, and the layer for an image."""
        return super().reaches(part, name) and not name.startswith(OF_IMAGES)

    def encode_prompts(self, prompts: Sequence[str], padded_like: Sequence[str] = ()) -> PooledConditioning:
        """Return the states of the first 77 tokens of prompts; all have as many, so `padded_like` changes nothing."""
        states = self._clip(_TEXT).encode(self._forward(_TEXT), prompts, num_chunks=1)
        assert states.pooled_BE is not None, "the text encoder has a projection"
        return PooledConditioning({"states": states.states_BLD, "pooled": states.pooled_BE})

    def _decoder_text(self, text: PooledConditioning | None, batch: int) -> torch.Tensor:
        """Return the pooled states (B, E) of prompts; zeros stand for unknown ones."""
        dtype = next(self.vae.parameters()).dtype
        width = self.vae.stage_b.config.clip_text_pooled_in_channels
        return torch.zeros(batch, width, dtype=dtype) if text is None else text.rows["pooled"].to(dtype)

    def _output(self, given: DenoiserInputs[PooledConditioning]) -> torch.Tensor:
        """Return the predicted noise (B, 16, H, W). The prior reads the time in (0, 1], and no image."""
        noisy_BCHW, width = given.noisy_BCHW, self.denoiser.config.clip_image_in_channels
        return self._denoise(
            sample=noisy_BCHW,
            timestep_ratio=given.time_B,
            clip_text_pooled=given.cast(given.text.rows["pooled"][:, None]),
            clip_text=given.cast(given.text.rows["states"]),
            clip_img=noisy_BCHW.new_zeros(len(noisy_BCHW), 1, width),
        )


def load(request: LoadRequest[StableCascadeSettings]) -> StableCascade:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError if a file is missing or the model is not Stable Cascade.
    """
    spec, settings = STABLE_CASCADE, request.settings
    source = AutoencoderSource(
        spec.name,
        StableCascadeAutoencoder,
        {"decoder": StableCascadeUNet, "vqgan": PaellaVQModel},
        settings.decoder,
        settings.effnet_encoder.strip(),
    )
    return load_effnet_model(StableCascade, spec, request, source, _dtype_of(request), is_normed=False)


def _dtype_of(request: LoadRequest[StableCascadeSettings]) -> torch.dtype:
    """Return the dtype of the autoencoder: float16 is too small for the decoder's states."""
    wanted = request.dtype_of("vae")
    return request.fallback_dtype if wanted == torch.float16 else wanted


# The image encoder and the decoder of Stable Cascade as one autoencoder: EfficientNet, stage B and stage A.


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
        """`decoder` and `vqgan` are the configs of the two; `stages`, each as the values of a `Stage`, are the stages
        of an encoder that is not EfficientNetV2-S. Decoding takes `num_steps`.
        """
        super().__init__()
        self.effnet = EffNetEncoder(stages_in_config(stages), width, latent_channels)
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


def autoencoder_passes(autoencoder: Any, spec: FamilySpec) -> TracedPasses:
    """Return the passes of encoding and decoding."""
    return effnet_passes(autoencoder, spec, (autoencoder.stage_b.config.clip_text_pooled_in_channels,))
