"""The shared base of models that denoise a VAE's latents: all that does not depend on the denoiser and the prompts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from modules.data.conditioning import Conditioning
from modules.data.tiles import VAE_TILES, Tiling
from modules.diffusion.process import NoiseProcess
from modules.families.lora_naming import LoraNaming
from modules.families.parts import vae
from modules.families.parts.circular_padding import is_circular
from modules.families.parts.clip_text import TextTower
from modules.families.parts.forwards import Forwards
from modules.families.parts.t5_text import T5Tower
from modules.families.parts.token_rows import add_embeddings, extend_embedding
from modules.families.protocol import Part, PartMemory, Posterior
from modules.families.spec import BASE_VARIANT, FamilySpec, variant_of
from modules.system.devices import Device

Process = TypeVar("Process", bound=NoiseProcess)


@dataclass(eq=False)
class LatentModel(ABC, Generic[Process]):
    """A loaded model: its parts by name, its noise process, its scheduler's config, and the names of its layers.

    A family built on it defines how prompts are encoded and how the denoiser receives them; see `ModelFamily`. `towers`
    are its CLIPs and T5s with their tokenizers, by part: what embeddings extend (`FamilyWithEmbeddings`).
    """

    spec: FamilySpec
    modules: Mapping[str, Any]
    process: Process
    scheduler: Mapping[str, Any]
    lora_naming: LoraNaming
    towers: Mapping[str, TextTower | T5Tower] = field(default_factory=dict, kw_only=True)
    folder: Path | None = field(default=None, kw_only=True)
    by_inputs: str = field(default="", kw_only=True)
    _forwards: Forwards = field(default_factory=Forwards, repr=False, kw_only=True)

    def reaches(self, part: str, name: str) -> bool:
        """Return whether a denoising loss reaches the module of this dotted name: in all parts that may be trained."""
        return any(p.name == part for p in self.spec.trainable_parts)

    @property
    def denoiser(self) -> Any:
        """The part that denoises."""
        return self.modules[self.spec.denoiser.name]

    @property
    def vae(self) -> Any:
        """The VAE."""
        return self.modules["vae"]

    @property
    def parts(self) -> Mapping[str, Part]:
        """The parts by name."""
        return {p.name: Part(p, self.modules[p.name], self._reaches(p.name)) for p in self.spec.parts}

    def put_part(self, name: str, module: nn.Module) -> None:
        """Put a part that was read later in the place of the one without weights, before `set_memory`."""
        self.modules = {**self.modules, name: module}

    @property
    def variant(self) -> str:
        """The model variant: by the input channels of the denoiser, or the one that they do not show (`by_inputs`)."""
        variant = variant_of(self.spec, self.spec.denoiser.model.channels_in(self.denoiser.config))
        return self.by_inputs or variant if variant == BASE_VARIANT else variant

    def set_memory(self, memory: Mapping[str, PartMemory], *, train_device: Device, temp_device: Device) -> None:
        """Set up the checkpointed forward of every part."""
        self._forwards.set_memory(self.parts, memory, train_device=train_device, temp_device=temp_device)

    def encode_images(self, images_B3PP: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        """Return the normalised latents (B, C, H, W) of images in [-1, 1]: the mean, or drawn from a generator."""
        if generator is not None:
            return vae.encode_drawn(self.vae, images_B3PP, generator, factor=int(self.spec.latents.factor))
        return vae.encode_mean(self.vae, images_B3PP, factor=int(self.spec.latents.factor))

    def posterior(self, images_B3PP: torch.Tensor) -> Posterior:
        """Return the distribution of the latents of images in [-1, 1], with gradients."""
        return vae.encode_posterior(self.vae, images_B3PP)

    def decode(
        self, latents_BCHW: torch.Tensor, tiling: Tiling = VAE_TILES, prompts: Conditioning | None = None
    ) -> torch.Tensor:
        """Return the images (B, 3, P, P) of normalised latents, float32 in [-1, 1]."""
        decode, factor = self._forwards.of("vae", self.vae.decode), int(self.spec.latents.factor)
        return vae.decode_latents(decode, self.vae, latents_BCHW, factor=factor, tiling=tiling)

    @abstractmethod
    def encode_prompts(self, prompts: Sequence[str], padded_like: Sequence[str] = ()) -> Conditioning:
        """Return the conditioning of prompts, padded to the longest of them and of those in `padded_like`."""

    def encode_guided(self, negative: str, prompt: str) -> Conditioning:
        """Return the conditioning of a negative prompt and of a prompt, which are read in the same way."""
        return self.encode_prompts([negative, prompt])

    def text_identity(self) -> str:
        """Return everything but the weights that affects how a prompt is encoded."""
        return "|".join(tower.identity() for tower in self.towers.values())

    def count_tokens(self, prompt: str) -> int:
        """Return the number of tokens of a prompt, without start and end."""
        return self.towers[self.spec.text.counted_by or next(iter(self.towers))].tokenizer.count(prompt)

    # -- embeddings

    def token_ids(self, part: str, text: str) -> list[int]:
        """Return the ids of a text's tokens for one of the text encoders."""
        return self.towers[part].tokenizer.ids(text)

    def add_embeddings(self, rows: Mapping[str, Mapping[str, nn.Parameter]]) -> None:
        """Add embeddings: new rows (N, D) by placeholder and text encoder. All in one call."""
        ids = add_embeddings({name: tower.encoder for name, tower in self.towers.items()}, rows)
        self.towers = {name: tower.with_embeddings(ids.get(name, {})) for name, tower in self.towers.items()}

    @torch.no_grad()
    def embedding_states(self, part: str, placeholder: str) -> torch.Tensor:
        """Return a text encoder's states (N, D) at the places of an embedding, in a prompt of it alone, in float32."""
        return self.towers[part].embedding_states(self._forward(part), placeholder)

    def add_outputs(self, part: str, placeholder: str, rows_ND: nn.Parameter) -> None:
        """Replace a text encoder's states at the places of an embedding by rows (N, D).

        Of a CLIP whose pooled state alone is read, such rows change nothing.
        """
        tower = self.towers[part]
        extend_embedding(tower.encoder).add_outputs(tower.tokenizer.embeddings[placeholder], rows_ND)

    def _clip(self, part: str) -> TextTower:
        tower = self.towers[part]
        assert isinstance(tower, TextTower), f"{part} is not a CLIP"
        return tower

    def _t5(self, part: str) -> T5Tower:
        tower = self.towers[part]
        assert isinstance(tower, T5Tower), f"{part} is not a T5"
        return tower

    # -- files

    def scheduler_config(self) -> Mapping[str, Any]:
        """Return the scheduler's config from the model's files."""
        return self.scheduler

    def image_identity(self) -> str:
        """Return everything but the weights that affects how an image is encoded."""
        norm = f"mean{vae.norm_of(self.vae).identity}"
        return f"{norm}, circular" if is_circular(self.vae) else norm

    def _reaches(self, part: str) -> Callable[[str], bool]:
        return lambda name: self.reaches(part, name)

    def _forward(self, part: str) -> Callable[..., Any]:
        return self._forwards.of(part, self.modules[part])

    def _input_dtype(self, part: str = "") -> torch.dtype:
        """Return the dtype of the inputs of a part, the denoiser by default: normally the dtype of its weights.

        Under autocast to the other 16-bit dtype, tensors in the weights' dtype cannot be concatenated, so inputs use
        autocast's dtype then. The denoiser's `dtype` also returns the weights' dtype but searches all modules each
        time: 44 ms per step for SDXL with a LoRA.
        """
        weight: torch.Tensor = next((self.modules[part] if part else self.denoiser).parameters())
        if weight.dtype.itemsize == 2 and torch.is_autocast_enabled(weight.device.type):
            return torch.get_autocast_dtype(weight.device.type)
        return weight.dtype
