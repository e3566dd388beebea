"""The shared base of the Stable Diffusion models: a UNet that denoises a VAE's latents, conditioned by CLIP.

Rombach et al. 2022, "High-Resolution Image Synthesis with Latent Diffusion Models". A family built on it defines how
prompts are encoded and how the UNet receives the conditioning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from modules.diffusion.process import DDPMProcess
from modules.families.parts import vae
from modules.families.parts.circular_padding import is_circular
from modules.families.parts.clip_text import TextTower
from modules.families.parts.forwards import Forwards
from modules.families.parts.token_rows import add_words, extended
from modules.families.protocol import Part, PartMemory, Posterior
from modules.families.spec import FamilySpec, LoraNaming, variant_of
from modules.system.devices import Device


@dataclass(eq=False)
class LatentDiffusion:
    """A loaded model: its parts, its noise process, and the names of its layers; see `ModelFamily`."""

    spec: FamilySpec
    unet: Any
    vae: Any
    towers: Mapping[str, TextTower]
    process: DDPMProcess
    scheduler: Mapping[str, Any]
    lora_naming: LoraNaming
    _forwards: Forwards = field(default_factory=Forwards, repr=False)

    @property
    def parts(self) -> Mapping[str, Part]:
        """The parts by name. A denoising loss reaches the UNet and the text layers in use, but not the VAE.

        The exception in the UNet is the guidance embedding of distilled models, which is never used.
        """
        modules = {"unet": self.unet, "vae": self.vae, **{n: t.encoder for n, t in self.towers.items()}}
        reach: dict[str, Callable[[str], bool]] = {
            "unet": lambda name: not name.endswith("time_embedding.cond_proj"),
            "vae": lambda name: False,
        }
        reach |= {name: tower.reaches for name, tower in self.towers.items()}
        return {p.name: Part(p, modules[p.name], reach[p.name]) for p in self.spec.parts}

    @property
    def variant(self) -> str:
        """The model variant, by the input channels of the UNet."""
        return variant_of(self.spec, int(self.unet.config.in_channels))

    def set_memory(self, memory: Mapping[str, PartMemory], *, train_device: Device, temp_device: Device) -> None:
        """Set up the checkpointed forward of every part."""
        self._forwards.set_memory(self.parts, memory, train_device=train_device, temp_device=temp_device)

    def encode_images(self, images_B3PP: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        """Return the normalised latents (B, 4, H, W) of images in [-1, 1]: the mean, or drawn from a generator."""
        if generator is not None:
            return vae.encode_drawn(self.vae, images_B3PP, generator)
        return vae.encode_mean(self.vae, images_B3PP)

    def posterior(self, images_B3PP: torch.Tensor) -> Posterior:
        """Return the distribution of the latents of images in [-1, 1], with gradients."""
        return vae.encode_posterior(self.vae, images_B3PP)

    def decode(self, latents_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the images (B, 3, P, P) of normalised latents, float32 in [-1, 1]."""
        return vae.decode_latents(self._forwards.of("vae", self.vae.decode), self.vae, latents_BCHW)

    def scheduler_config(self) -> Mapping[str, Any]:
        """Return the scheduler's config from the model's files."""
        return self.scheduler

    def image_identity(self) -> str:
        """Return everything but the weights that affects how an image is encoded."""
        own = f"mean{vae.norm_of(self.vae).identity}"
        return f"{own}, circular" if is_circular(self.vae) else own

    def text_identity(self) -> str:
        """Return everything but the weights that affects how a prompt is encoded."""
        return "|".join(tower.identity() for tower in self.towers.values())

    def token_ids(self, part: str, text: str) -> list[int]:
        """Return the ids of a text's tokens for one of the text encoders."""
        return self.towers[part].tokenizer.ids(text)

    def add_words(self, rows: Mapping[str, Mapping[str, nn.Parameter]]) -> None:
        """Add embeddings: new rows (N, D) by placeholder and text encoder. All in one call."""
        ids = add_words({name: tower.encoder for name, tower in self.towers.items()}, rows)
        self.towers = {
            name: replace(tower, tokenizer=tower.tokenizer.with_words(ids.get(name, {})))
            for name, tower in self.towers.items()
        }

    @torch.no_grad()
    def word_states(self, part: str, placeholder: str) -> torch.Tensor:
        """Return a text encoder's states (N, D) at the places of an embedding, in a prompt of it alone, in float32."""
        tower = self.towers[part]
        states_1LD = tower.encode(self._forward(part), [placeholder], num_chunks=1).states_BLD
        return states_1LD[0, 1 : 1 + len(tower.tokenizer.words[placeholder])].float().clone()

    def add_outputs(self, part: str, placeholder: str, rows_ND: nn.Parameter) -> None:
        """Replace a text encoder's states at the places of an embedding by rows (N, D)."""
        tower = self.towers[part]
        extended(tower.encoder).add_outputs(tower.tokenizer.words[placeholder], rows_ND)

    def count_tokens(self, prompt: str) -> int:
        """Return the number of tokens of a prompt, without start and end."""
        return next(iter(self.towers.values())).tokenizer.count(prompt)

    def _unet_dtype(self) -> torch.dtype:
        """Return the dtype of the UNet's inputs: normally that of its weights.

        Under autocast to the other 16-bit dtype, tensors in the weights' dtype cannot be concatenated, so inputs use
        autocast's dtype then. `unet.dtype` also returns the weights' dtype but searches all modules each time: 44 ms
        per step for SDXL with a LoRA.
        """
        weight: torch.Tensor = next(self.unet.parameters())
        if weight.dtype.itemsize == 2 and torch.is_autocast_enabled(weight.device.type):
            return torch.get_autocast_dtype(weight.device.type)
        return weight.dtype

    def _unet_input(
        self, noisy_BCHW: torch.Tensor, inputs: Mapping[str, torch.Tensor], dtype: torch.dtype
    ) -> torch.Tensor:
        """Return the UNet's input: the noisy latents and the further channels of a variant behind them."""
        if not inputs:
            return noisy_BCHW.to(dtype)
        names = self.spec.inputs[self.variant]
        return torch.cat([noisy_BCHW.to(dtype), *(inputs[name].to(dtype) for name in names)], dim=1)

    def _forward(self, part: str) -> Callable[..., Any]:
        module = self.towers[part].encoder if part in self.towers else getattr(self, part)
        return self._forwards.of(part, module)
