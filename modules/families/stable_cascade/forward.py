"""A loaded Stable Cascade: the only code that runs its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from modules.data.conditioning import Conditioning
from modules.data.inputs import NO_INPUTS
from modules.data.tiles import VAE_TILES, Tiling
from modules.diffusion.process import DDPMProcess
from modules.families.parts.clip_text import TextTower
from modules.families.parts.conditioning import PooledConditioning
from modules.families.parts.text_model import TextModel
from modules.families.parts.token_rows import add_words, extended
from modules.families.stable_cascade.settings import OF_IMAGES

_TEXT = "text_encoder"


@dataclass(eq=False)
class StableCascade(TextModel[DDPMProcess, PooledConditioning]):
    """A prior, a CLIP, an autoencoder of three parts; implements `FamilyWithWords`."""

    text_class = PooledConditioning

    tower: TextTower

    def reaches(self, part: str, name: str) -> bool:
        """Return whether a denoising loss reaches a layer: all but the autoencoder's and that of an image."""
        return part != "vae" and not name.startswith(OF_IMAGES)

    def encode_prompts(self, prompts: Sequence[str], padded_like: Sequence[str] = ()) -> PooledConditioning:
        """Return the states of the first 77 tokens of prompts; all have as many, so `padded_like` changes nothing."""
        states = self.tower.encode(self._forward(_TEXT), prompts, num_chunks=1)
        assert states.pooled_BE is not None, "the text encoder has a projection"
        return PooledConditioning(states.states_BLD, states.pooled_BE)

    def encode_images(self, images_B3PP: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        """Return the latents (B, C, H, W) of images in [-1, 1], each encoded as a whole: its channels are weighed by
        their means. Nothing is drawn.
        """
        dtype = next(self.vae.parameters()).dtype
        return torch.cat([self.vae.encode(image[None].to(dtype)).latent_dist.mode() for image in images_B3PP])

    def decode(
        self, latents_BCHW: torch.Tensor, tiling: Tiling = VAE_TILES, prompts: Conditioning | None = None
    ) -> torch.Tensor:
        """Return the images (B, 3, P, P) of latents, float32 in [-1, 1], each decoded as a whole.

        The decoder reads CLIP's states of the prompts; zeros stand for unknown ones.
        """
        dtype = next(self.vae.parameters()).dtype
        width = self.vae.stage_b.config.clip_text_pooled_in_channels
        pooled_BE = latents_BCHW.new_zeros(len(latents_BCHW), width)
        if prompts is not None:
            pooled_BE = self._text(prompts).pooled_BE[-len(latents_BCHW) :]
        images_B3PP: torch.Tensor = self._forwards.of("vae", self.vae.decode)(
            latents_BCHW.to(dtype), pooled_BE.to(dtype)
        )
        return images_B3PP.float()

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
            timestep_ratio=(timesteps_B.float() + 1.0) / self.process.num_timesteps,
            clip_text_pooled=text.pooled_BE[:, None].to(dtype),
            clip_text=text.states_BLD.to(dtype),
            clip_img=no_image_B1D.to(dtype),
            return_dict=False,
        )
        noise_BCHW: torch.Tensor = output[0]
        return noise_BCHW

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

    def add_words(self, rows: Mapping[str, Mapping[str, nn.Parameter]]) -> None:
        """Add embeddings: new rows (N, D) by placeholder and text encoder. All in one call."""
        ids = add_words({_TEXT: self.tower.encoder}, rows)
        self.tower = replace(self.tower, tokenizer=self.tower.tokenizer.with_words(ids.get(_TEXT, {})))

    @torch.no_grad()
    def word_states(self, part: str, placeholder: str) -> torch.Tensor:
        """Return CLIP's states (N, D) at the places of an embedding, in a prompt of it alone, in float32."""
        states_1LD = self.tower.encode(self._forward(_TEXT), [placeholder], num_chunks=1).states_BLD
        return states_1LD[0, 1 : 1 + len(self.tower.tokenizer.words[placeholder])].float().clone()

    def add_outputs(self, part: str, placeholder: str, rows_ND: nn.Parameter) -> None:
        """Replace CLIP's states at the places of an embedding by rows (N, D)."""
        extended(self.tower.encoder).add_outputs(self.tower.tokenizer.words[placeholder], rows_ND)
