"""The loaded toy family: the only code that runs its parts. Its "latents" are the pixels themselves."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from modules.data.conditioning import SizeConditioning
from modules.data.inputs import NO_INPUTS
from modules.data.tiles import VAE_TILES, Tiling
from modules.diffusion.latents import Scale
from modules.diffusion.process import NoiseProcess
from modules.families.lora_naming import LoraNaming
from modules.families.parts.clip_text import TextTower
from modules.families.parts.conditioning import TextConditioning, replace_rows
from modules.families.parts.forwards import Forwards
from modules.families.protocol import Conditioning, Part, PartMemory, Posterior
from modules.families.spec import BASE_VARIANT, FamilySpec
from modules.system.devices import Device


@dataclass(eq=False)
class ToyPixel:
    """A UNet on pixels and a text encoder; implements `ModelFamily`."""

    spec: FamilySpec
    unet: Any
    tower: TextTower
    process: NoiseProcess
    scheduler: Mapping[str, Any]
    lora_naming: LoraNaming
    folder: Path | None = None
    _forwards: Forwards = field(default_factory=Forwards, repr=False)

    @property
    def parts(self) -> Mapping[str, Part]:
        modules = {"unet": self.unet, "text_encoder": self.tower.encoder}
        reaches = {"unet": lambda name: True, "text_encoder": self.tower.reaches}
        return {p.name: Part(p, modules[p.name], reaches[p.name]) for p in self.spec.parts}

    def put_part(self, name: str, module: torch.nn.Module) -> None:
        assert name == "unet", "the text encoder is read with the family"
        self.unet = module

    @property
    def variant(self) -> str:
        return BASE_VARIANT

    def set_memory(self, memory: Mapping[str, PartMemory], *, train_device: Device, temp_device: Device) -> None:
        self._forwards.set_memory(self.parts, memory, train_device=train_device, temp_device=temp_device)

    def encode_images(self, images_B3PP: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        return images_B3PP.float()

    def posterior(self, images_B3PP: torch.Tensor) -> Posterior:
        return Posterior(images_B3PP.float(), torch.full_like(images_B3PP, -30.0), Scale(1.0))

    def decode(
        self, latents_BCHW: torch.Tensor, tiling: Tiling = VAE_TILES, prompts: Conditioning | None = None
    ) -> torch.Tensor:
        return latents_BCHW.float()

    def encode_guided(self, negative: str, prompt: str) -> TextConditioning:
        return self.encode_prompts([negative, prompt])

    def encode_prompts(self, prompts: Sequence[str], padded_like: Sequence[str] = ()) -> TextConditioning:
        forward = self._forwards.of("text_encoder", self.tower.encoder)
        states = self.tower.encode(forward, prompts, num_chunks=self.tower.num_chunks(prompts))
        return TextConditioning(states.states_BLD)

    def with_size_conditioning(
        self, conditioning: Conditioning, size_conditionings: Sequence[SizeConditioning]
    ) -> TextConditioning:
        return _own(conditioning)

    def with_empty_prompts(
        self, conditioning: Conditioning, empty_for: Sequence[Collection[int]], empty: Conditioning
    ) -> TextConditioning:
        own, other = _own(conditioning), _own(empty)
        return TextConditioning(replace_rows(own.states_BLD, other.states_BLD, [0 in e for e in empty_for]))

    def conditioning_from(self, tensors: Mapping[str, torch.Tensor]) -> TextConditioning:
        return TextConditioning.from_tensors(tensors)

    def join(self, conditionings: Sequence[Conditioning], empty: Conditioning) -> TextConditioning:
        return TextConditioning.join([_own(c) for c in conditionings], _own(empty))

    def predict(
        self,
        noisy_BCHW: torch.Tensor,
        timesteps_B: torch.Tensor,
        conditioning: Conditioning,
        inputs: Mapping[str, torch.Tensor] = NO_INPUTS,
    ) -> torch.Tensor:
        dtype = next(self.unet.parameters()).dtype
        states_BLD = _own(conditioning).states_BLD.to(dtype)
        output = self._forwards.of("unet", self.unet)(
            noisy_BCHW.to(dtype), timesteps_B, encoder_hidden_states=states_BLD, return_dict=False
        )
        result: torch.Tensor = output[0]
        return result

    def scheduler_config(self) -> Mapping[str, Any]:
        return self.scheduler

    def image_identity(self) -> str:
        return "pixels"

    def text_identity(self) -> str:
        return self.tower.identity()

    def count_tokens(self, prompt: str) -> int:
        return self.tower.tokenizer.count(prompt)


def _own(conditioning: Conditioning) -> TextConditioning:
    assert isinstance(conditioning, TextConditioning)
    return conditioning
