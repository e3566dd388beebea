"""The base of families whose denoiser, the prior, makes the latents of an EfficientNet from the states of one CLIP.

Their autoencoder is not in the base model: its files are in the folders of a decoder and of its encoder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from modules.data.conditioning import Conditioning
from modules.data.tiles import VAE_TILES, Tiling
from modules.diffusion.process import DDPMProcess
from modules.diffusion.schedule import cosine_cumulative_alphas
from modules.families.parts.clip_text import TextTower
from modules.families.parts.clip_tokens import load_clip_tokenizer
from modules.families.parts.effnet_files import AutoencoderSource, autoencoder_of
from modules.families.parts.lora_names import naming_of
from modules.families.parts.read_model import read_model
from modules.families.parts.text_model import Text, TextModel
from modules.families.protocol import LoadRequest
from modules.families.spec import FamilySpec

_TEXT = "text_encoder"


@dataclass(eq=False)
class EffNetModel(TextModel[DDPMProcess, Text], ABC, Generic[Text]):
    """A prior, a CLIP, an autoencoder of several parts; implements `FamilyWithEmbeddings`."""

    def encode_images(self, images_B3PP: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        """Return the latents (B, C, H, W) of images in [-1, 1], without randomness.

        Each image is encoded as a whole: the encoder weighs channels by their means.
        """
        dtype = next(self.vae.parameters()).dtype
        return torch.cat([self.vae.encode(image[None].to(dtype)).latent_dist.mode() for image in images_B3PP])

    def decode(
        self, latents_BCHW: torch.Tensor, tiling: Tiling = VAE_TILES, prompts: Conditioning | None = None
    ) -> torch.Tensor:
        """Return the images (B, 3, P, P) of latents, float32 in [-1, 1], each decoded as a whole.

        The decoder reads the prompts, too: of two conditionings for each image, the later one.
        """
        decode, batch = self._forwards.of("vae", self.vae.decode), len(latents_BCHW)
        text = None if prompts is None else self._text(prompts)
        read = self._decoder_text(text, batch)[-batch:].to(latents_BCHW.device)
        images_B3PP: torch.Tensor = decode(latents_BCHW, read)
        return images_B3PP.float()

    @abstractmethod
    def _decoder_text(self, text: Text | None, batch: int) -> torch.Tensor:
        """Return the decoder's input for a conditioning, or for `batch` unknown prompts."""

    def _time(self, timesteps_B: torch.Tensor) -> torch.Tensor:
        """Return the times in (0, 1] that the prior reads, in float32."""
        return (timesteps_B.float() + 1.0) / self.process.num_timesteps


Loaded = TypeVar("Loaded", bound=EffNetModel[Any])


def load_effnet_model(
    kind: type[Loaded],
    spec: FamilySpec,
    request: LoadRequest[Any],
    source: AutoencoderSource,
    vae_dtype: torch.dtype,
    *,
    is_normed: bool,
) -> Loaded:
    """Load a model with every part on the CPU and frozen.

    With `is_normed` the prior reads CLIP's states after the last norm. Raises DarkroomError if a file is missing or
    the model is of another family.
    """
    files = read_model(request, spec.in_base_model)
    process = cosine_process(files.scheduler)
    tokenizer = load_clip_tokenizer(files.tokenizers.get(_TEXT))
    return kind(
        spec=spec,
        modules={**files.parts, "vae": autoencoder_of(source, request, files, vae_dtype)},
        process=process,
        scheduler={**files.scheduler, "timestep_spacing": "trailing"},
        folder=files.folder,
        lora_naming=naming_of(spec.name, files.parts, prediction=process.prediction_type),
        towers={
            _TEXT: TextTower(files.parts[_TEXT], tokenizer, skipped_layers=0, is_normed=is_normed, masks_padding=True)
        },
    )


def cosine_process(scheduler: Mapping[str, Any]) -> DDPMProcess:
    """Return the noise process of a scheduler's config, `DDPMWuerstchenScheduler`'s."""
    scaler, offset = float(scheduler.get("scaler", 1.0)), float(scheduler.get("s", 0.008))
    return DDPMProcess(cosine_cumulative_alphas(scaler=scaler, offset=offset))
