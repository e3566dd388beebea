"""Stable Diffusion 1.x, loaded: the one place that runs its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from diffusers.models.attention import BasicTransformerBlock
from diffusers.models.resnet import ResnetBlock2D
from torch import nn

from modules.diffusion.process import DDPMProcess
from modules.families.parts import clip_text, vae
from modules.families.parts.clip_tokens import ClipTokenizer
from modules.families.parts.conditioning import TextConditioning
from modules.families.protocol import Conditioning, Part, PartMemory
from modules.families.sd.keys import LORA_NAMING
from modules.families.sd.spec import SD
from modules.families.spec import FamilySpec, LoraNaming
from modules.memory.checkpointing import create_checkpointed_forward
from modules.system.devices import Device

_BLOCK_TYPES: Mapping[str, tuple[type[nn.Module], ...]] = {
    "unet": (BasicTransformerBlock, ResnetBlock2D),
    "text_encoder": clip_text.BLOCK_TYPES,
    "vae": vae.BLOCK_TYPES,
}


@dataclass(eq=False)
class StableDiffusion:
    """A UNet, a CLIP text encoder, a VAE, a tokenizer and a noise process; see `ModelFamily` for what it offers."""

    unet: Any
    text_encoder: Any
    vae: Any
    tokenizer: ClipTokenizer
    process: DDPMProcess
    scheduler: Mapping[str, Any]
    clip_skip: int = 0
    spec: FamilySpec = SD
    _forwards: dict[str, Callable[..., Any]] = field(default_factory=dict, repr=False)

    @property
    def parts(self) -> Mapping[str, Part]:
        """The three parts, by name. A denoising loss reaches all of the UNet, the text layers in use, not the VAE."""
        num_layers = int(self.text_encoder.config.num_hidden_layers)
        reach = {
            "unet": lambda name: True,
            "text_encoder": clip_text.clip_reach(num_layers, self.clip_skip),
            "vae": lambda name: False,
        }
        return {p.name: Part(p, getattr(self, p.name), reach[p.name]) for p in self.spec.parts}

    @property
    def lora_naming(self) -> LoraNaming:
        """What the layers are called in LoRA files."""
        return LORA_NAMING

    def set_memory(self, memory: Mapping[str, PartMemory], *, train_device: Device, temp_device: Device) -> None:
        """Set up the checkpointed forward of every part."""
        for name, part in self.parts.items():
            wanted = memory.get(name, PartMemory())
            self._forwards[name] = create_checkpointed_forward(
                part.module,
                train_device=train_device,
                temp_device=temp_device,
                mode=wanted.mode,
                block_types=_BLOCK_TYPES[name],
                offload_activations=wanted.offload_activations,
            )

    def encode_images(self, pictures_B3PP: torch.Tensor) -> torch.Tensor:
        """Return the scaled mean latents (B, 4, H, W) of pictures in [-1, 1]."""
        return vae.encode_mean(self.vae, pictures_B3PP)

    def decode(self, latents_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the pictures (B, 3, P, P) of scaled latents, float32 in [-1, 1]."""
        return vae.decode_latents(self.vae.decode, self.vae, latents_BCHW)

    def encode_prompts(self, prompts: Sequence[str]) -> TextConditioning:
        """Return the text states (B, 77 * chunks, D) of prompts."""
        return TextConditioning(
            clip_text.encode_clip(
                self._forward("text_encoder"),
                self._text_model.final_layer_norm,
                self.tokenizer,
                prompts,
                clip_skip=self.clip_skip,
                device=next(self.text_encoder.parameters()).device,
            )
        )

    def conditioning_from(self, tensors: Mapping[str, torch.Tensor]) -> TextConditioning:
        """Return the conditioning of a cache entry."""
        return TextConditioning.from_tensors(tensors)

    def join(self, conditionings: Sequence[Conditioning], empty: Conditioning) -> TextConditioning:
        """Return one conditioning of several, filled up to the longest with the empty prompt's states."""
        return TextConditioning.join([_own(c) for c in conditionings], _own(empty))

    def predict(self, noisy_BCHW: torch.Tensor, timesteps_B: torch.Tensor, conditioning: Conditioning) -> torch.Tensor:
        """Return the UNet's output (B, 4, H, W)."""
        dtype = self.unet.dtype
        states_BLD = _own(conditioning).states_BLD
        output = self._forward("unet")(
            noisy_BCHW.to(dtype), timesteps_B, encoder_hidden_states=states_BLD.to(dtype), return_dict=False
        )
        result: torch.Tensor = output[0]
        return result

    def scheduler_config(self) -> Mapping[str, Any]:
        """Return the scheduler's config as the model's folder has it."""
        return self.scheduler

    def picture_identity(self) -> str:
        """Return what decides how a picture is encoded, beside the weights."""
        return f"mean*{float(self.vae.config.scaling_factor)!r}"

    def text_identity(self) -> str:
        """Return what decides how a prompt is encoded, beside the weights."""
        return f"{self.tokenizer.identity()}|skip{self.clip_skip}"

    def count_tokens(self, prompt: str) -> int:
        """Return how many tokens a prompt has, without start and end."""
        return self.tokenizer.count(prompt)

    @property
    def _text_model(self) -> Any:
        # transformers 5.6 dropped the inner `text_model`; older ones still have it.
        return getattr(self.text_encoder, "text_model", self.text_encoder)

    def _forward(self, part: str) -> Callable[..., Any]:
        return self._forwards.get(part) or getattr(self, part)


def _own(conditioning: Conditioning) -> TextConditioning:
    assert isinstance(conditioning, TextConditioning), f"a conditioning of another family: {type(conditioning)}"
    return conditioning
