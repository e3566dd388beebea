"""The base of families whose denoiser, the prior, makes the latents of an EfficientNet from the states of one CLIP.

Their autoencoder is not in the base model: its files are in the folders of a decoder and of its encoder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch import nn

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
from modules.families.parts.token_rows import add_embeddings, extend_embedding
from modules.families.protocol import LoadRequest
from modules.families.spec import FamilySpec

_TEXT = "text_encoder"


@dataclass(eq=False)
class EffNetModel(TextModel[DDPMProcess, Text], ABC, Generic[Text]):
    """A prior, a CLIP, an autoencoder of several parts; implements `FamilyWithEmbeddings`."""

    tower: TextTower

    def reaches(self, part: str, name: str) -> bool:
        """Return whether a denoising loss reaches a layer: all but the autoencoder's."""
        return part != "vae"

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

    def text_identity(self) -> str:
        """Return everything but the weights that affects how a prompt is encoded."""
        return self.tower.identity()

    def count_tokens(self, prompt: str) -> int:
        """Return the number of tokens of a prompt, without start and end."""
        return self.tower.tokenizer.count(prompt)

    # -- embeddings

    def token_ids(self, part: str, text: str) -> list[int]:
        """Return the ids of a text's tokens."""
        return self.tower.tokenizer.ids(text)

    def add_embeddings(self, rows: Mapping[str, Mapping[str, nn.Parameter]]) -> None:
        """Add embeddings: new rows (N, D) by placeholder and text encoder. All in one call."""
        ids = add_embeddings({_TEXT: self.tower.encoder}, rows)
        self.tower = replace(self.tower, tokenizer=self.tower.tokenizer.with_embeddings(ids.get(_TEXT, {})))

    @torch.no_grad()
    def embedding_states(self, part: str, placeholder: str) -> torch.Tensor:
        """Return CLIP's states (N, D) at the places of an embedding, in a prompt of it alone, in float32."""
        states_1LD = self.tower.encode(self._forward(_TEXT), [placeholder], num_chunks=1).states_BLD
        return states_1LD[0, 1 : 1 + len(self.tower.tokenizer.embeddings[placeholder])].float().clone()

    def add_outputs(self, part: str, placeholder: str, rows_ND: nn.Parameter) -> None:
        """Replace CLIP's states at the places of an embedding by rows (N, D)."""
        extend_embedding(self.tower.encoder).add_outputs(self.tower.tokenizer.embeddings[placeholder], rows_ND)


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

    With `is_normed` the prior reads CLIP's states after the last norm. Raises DarkroomError where a file is missing or
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
        tower=TextTower(files.parts[_TEXT], tokenizer, skipped_layers=0, is_normed=is_normed, masks_padding=True),
    )


def cosine_process(scheduler: Mapping[str, Any]) -> DDPMProcess:
    """Return the noise process of a scheduler's config, `DDPMWuerstchenScheduler`'s."""
    scaler, offset = float(scheduler.get("scaler", 1.0)), float(scheduler.get("s", 0.008))
    return DDPMProcess(cosine_cumulative_alphas(scaler=scaler, offset=offset))
