"""The shared base of the Stable Diffusion models: a UNet that denoises a VAE's latents, conditioned by CLIP.

Rombach et al. 2022, "High-Resolution Image Synthesis with Latent Diffusion Models". A family built on it defines how
prompts are encoded and how the UNet receives the conditioning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import nn

from modules.diffusion.process import DDPMProcess
from modules.families.parts.clip_text import TextTower
from modules.families.parts.diffusion_settings import LatentDiffusionSettings
from modules.families.parts.files import ModelFiles
from modules.families.parts.latent_model import LatentModel
from modules.families.parts.noise_process import process_of, scheduler_with
from modules.families.parts.token_rows import add_embeddings, extend_embedding
from modules.families.spec import FamilySpec, LoraNaming


@dataclass(eq=False)
class LatentDiffusion(LatentModel[DDPMProcess]):
    """A loaded model; `towers` are its text encoders with their tokenizers."""

    towers: Mapping[str, TextTower]

    @classmethod
    def of(
        cls,
        spec: FamilySpec,
        files: ModelFiles,
        settings: LatentDiffusionSettings,
        towers: Mapping[str, TextTower],
        naming_of: Callable[[str], LoraNaming],
    ) -> Self:
        """Return the model of files, which were read from any form; `naming_of` a prediction type names its layers.

        Raises DarkroomError for a noise process that is not supported.
        """
        scheduler = scheduler_with(
            files.scheduler, prediction=settings.prediction_type, zero_terminal_snr=settings.zero_terminal_snr
        )
        process = process_of(scheduler, name=files.name)
        naming = naming_of(process.prediction_type)
        return cls(spec, files.parts, process, scheduler, naming, towers, folder=files.folder)

    def reaches(self, part: str, name: str) -> bool:
        """Return whether a denoising loss reaches a layer: it reaches the UNet, and the text layers in use.

        The exception in the UNet is the guidance embedding of distilled models, which is never used.
        """
        if part in self.towers:
            return self.towers[part].reaches(name)
        return part == self.spec.denoiser.name and not name.endswith("time_embedding.cond_proj")

    def text_identity(self) -> str:
        """Return everything but the weights that affects how a prompt is encoded."""
        return "|".join(tower.identity() for tower in self.towers.values())

    def token_ids(self, part: str, text: str) -> list[int]:
        """Return the ids of a text's tokens for one of the text encoders."""
        return self.towers[part].tokenizer.ids(text)

    def add_embeddings(self, rows: Mapping[str, Mapping[str, nn.Parameter]]) -> None:
        """Add embeddings: new rows (N, D) by placeholder and text encoder. All in one call."""
        ids = add_embeddings({name: tower.encoder for name, tower in self.towers.items()}, rows)
        self.towers = {
            name: replace(tower, tokenizer=tower.tokenizer.with_embeddings(ids.get(name, {})))
            for name, tower in self.towers.items()
        }

    @torch.no_grad()
    def embedding_states(self, part: str, placeholder: str) -> torch.Tensor:
        """Return a text encoder's states (N, D) at the places of an embedding, in a prompt of it alone, in float32."""
        tower = self.towers[part]
        states_1LD = tower.encode(self._forward(part), [placeholder], num_chunks=1).states_BLD
        return states_1LD[0, 1 : 1 + len(tower.tokenizer.embeddings[placeholder])].float().clone()

    def add_outputs(self, part: str, placeholder: str, rows_ND: nn.Parameter) -> None:
        """Replace a text encoder's states at the places of an embedding by rows (N, D)."""
        tower = self.towers[part]
        extend_embedding(tower.encoder).add_outputs(tower.tokenizer.embeddings[placeholder], rows_ND)

    def count_tokens(self, prompt: str) -> int:
        """Return the number of tokens of a prompt, without start and end."""
        return next(iter(self.towers.values())).tokenizer.count(prompt)

    def _unet_input(
        self, noisy_BCHW: torch.Tensor, inputs: Mapping[str, torch.Tensor], dtype: torch.dtype
    ) -> torch.Tensor:
        """Return the UNet's input: the noisy latents and the further channels of a variant behind them."""
        if not inputs:
            return noisy_BCHW.to(dtype)
        names = self.spec.inputs[self.variant]
        return torch.cat([noisy_BCHW.to(dtype), *(inputs[name].to(dtype) for name in names)], dim=1)
