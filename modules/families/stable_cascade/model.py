"""Loading Stable Cascade and running it: prior and CLIP of a base model, and the autoencoder from places of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from diffusers.pipelines.deprecated.wuerstchen.modeling_paella_vq_model import PaellaVQModel

from modules.data.conditioning import Conditioning
from modules.data.inputs import NO_INPUTS
from modules.families.parts.clip_text import TextTower
from modules.families.parts.clip_tokens import load_clip_tokenizer
from modules.families.parts.conditioning import PooledConditioning
from modules.families.parts.effnet_files import AutoencoderSource, autoencoder_of
from modules.families.parts.effnet_model import EffNetModel, cosine_process
from modules.families.parts.lora_names import naming_of
from modules.families.parts.read_model import read_model
from modules.families.protocol import LoadRequest
from modules.families.stable_cascade.autoencoder import StableCascadeAutoencoder
from modules.families.stable_cascade.spec import OF_IMAGES, STABLE_CASCADE, StableCascadeSettings
from modules.families.stable_cascade.unet import StableCascadeUNet

_TEXT = "text_encoder"


@dataclass(eq=False)
class StableCascade(EffNetModel[PooledConditioning]):
    """A prior, a CLIP, an autoencoder of three parts; implements `FamilyWithWords`."""

    text_class = PooledConditioning

    def reaches(self, part: str, name: str) -> bool:
        """Return whether a denoising loss reaches a layer: all but the autoencoder's and that of an image."""
        return super().reaches(part, name) and not name.startswith(OF_IMAGES)

    def encode_prompts(self, prompts: Sequence[str], padded_like: Sequence[str] = ()) -> PooledConditioning:
        """Return the states of the first 77 tokens of prompts; all have as many, so `padded_like` changes nothing."""
        states = self.tower.encode(self._forward(_TEXT), prompts, num_chunks=1)
        assert states.pooled_BE is not None, "the text encoder has a projection"
        return PooledConditioning(states.states_BLD, states.pooled_BE)

    def _read_by_decoder(self, text: PooledConditioning | None, batch: int) -> torch.Tensor:
        """Return the pooled states (B, E) of prompts; zeros stand for unknown ones."""
        dtype = next(self.vae.parameters()).dtype
        width = self.vae.stage_b.config.clip_text_pooled_in_channels
        return torch.zeros(batch, width, dtype=dtype) if text is None else text.pooled_BE.to(dtype)

    def predict(
        self,
        noisy_BCHW: torch.Tensor,
        timesteps_B: torch.Tensor,
        conditioning: Conditioning,
        inputs: Mapping[str, torch.Tensor] = NO_INPUTS,
    ) -> torch.Tensor:
        """Return the predicted noise (B, 16, H, W). The prior reads the time in (0, 1], and no image."""
        text, dtype = self._text(conditioning), self._input_dtype()
        no_image_B1D = noisy_BCHW.new_zeros(len(noisy_BCHW), 1, self.denoiser.config.clip_image_in_channels)
        output = self._forward("prior")(
            sample=noisy_BCHW.to(dtype),
            timestep_ratio=self._time(timesteps_B),
            clip_text_pooled=text.pooled_BE[:, None].to(dtype),
            clip_text=text.states_BLD.to(dtype),
            clip_img=no_image_B1D.to(dtype),
            return_dict=False,
        )
        noise_BCHW: torch.Tensor = output[0]
        return noise_BCHW


def load(request: LoadRequest[StableCascadeSettings]) -> StableCascade:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError where a file is missing or the model is not Stable Cascade.
    """
    spec, settings = STABLE_CASCADE, request.settings
    files = read_model(request, spec.in_base_model)
    source = AutoencoderSource(
        spec.name,
        StableCascadeAutoencoder,
        {"decoder": StableCascadeUNet, "vqgan": PaellaVQModel},
        settings.decoder,
        settings.effnet_encoder.strip(),
    )
    process = cosine_process(files.scheduler)
    tokenizer = load_clip_tokenizer(files.tokenizers.get(_TEXT))
    return StableCascade(
        spec=spec,
        modules={**files.parts, "vae": autoencoder_of(source, request, files, _dtype_of(request))},
        process=process,
        scheduler={**files.scheduler, "timestep_spacing": "trailing"},
        folder=files.folder,
        lora_naming=naming_of(spec.name, files.parts, prediction=process.prediction_type),
        tower=TextTower(files.parts[_TEXT], tokenizer, skipped_layers=0, is_normed=False, masks_padding=True),
    )


def _dtype_of(request: LoadRequest[StableCascadeSettings]) -> torch.dtype:
    """Return the dtype of the autoencoder: float16 is too small for the decoder's states."""
    wanted = request.dtype_of("vae")
    return request.fallback_dtype if wanted == torch.float16 else wanted
