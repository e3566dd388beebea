"""Stable Diffusion 1.x and 2.x: loading them from a diffusers folder, a Hugging Face repository or a single file, and
running their parts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from modules.data.conditioning import Conditioning, SizeConditioning
from modules.data.inputs import NO_INPUTS
from modules.families.lora_naming import LoraNaming
from modules.families.parts.clip_text import is_open_clip
from modules.families.parts.conditioning import TextConditioning, replace_rows
from modules.families.parts.files import ModelFiles
from modules.families.parts.latent_diffusion import LatentDiffusion
from modules.families.parts.lora_names import naming_of
from modules.families.parts.read_model import read_model
from modules.families.protocol import LoadRequest
from modules.families.sd.spec import SD, SdSettings


@dataclass(eq=False)
class StableDiffusion(LatentDiffusion):
    """A UNet, one text encoder, a VAE; implements `ModelFamily`."""

    def encode_prompts(self, prompts: Sequence[str], padded_like: Sequence[str] = ()) -> TextConditioning:
        """Return the text states (B, 77 * chunks, D) of prompts."""
        tower = self.towers["text_encoder"]
        states = tower.encode(
            self._forward("text_encoder"), prompts, num_chunks=tower.num_chunks((*prompts, *padded_like))
        )
        return TextConditioning(states.states_BLD)

    def with_size_conditioning(
        self, conditioning: Conditioning, size_conditionings: Sequence[SizeConditioning]
    ) -> TextConditioning:
        """Return the conditioning unchanged: SD has no size conditioning."""
        return _text(conditioning)

    def with_empty_prompts(
        self, conditioning: Conditioning, empty_for: Sequence[Collection[int]], empty: Conditioning
    ) -> TextConditioning:
        """Return the conditioning with the empty prompt for the prompts whose text encoder gets it."""
        states_BLD, empty_1LD = _text(conditioning).states_BLD, _text(empty).states_BLD
        return TextConditioning(replace_rows(states_BLD, empty_1LD, [0 in e for e in empty_for]))

    def conditioning_from(self, tensors: Mapping[str, torch.Tensor]) -> TextConditioning:
        """Return the conditioning of a cache entry."""
        return TextConditioning.from_tensors(tensors)

    def join(self, conditionings: Sequence[Conditioning], empty: Conditioning) -> TextConditioning:
        """Join several conditionings into one, padded to the longest with the empty prompt's states."""
        return TextConditioning.join([_text(c) for c in conditionings], _text(empty))

    def predict(
        self,
        noisy_BCHW: torch.Tensor,
        timesteps_B: torch.Tensor,
        conditioning: Conditioning,
        inputs: Mapping[str, torch.Tensor] = NO_INPUTS,
    ) -> torch.Tensor:
        """Return the UNet's output (B, 4, H, W); `inputs` are the further inputs of a variant."""
        dtype = self._input_dtype()
        states_BLD = _text(conditioning).states_BLD
        output = self._forward("unet")(
            self._unet_input(noisy_BCHW, inputs, dtype),
            timesteps_B,
            encoder_hidden_states=states_BLD.to(dtype),
            return_dict=False,
        )
        result: torch.Tensor = output[0]
        return result


def _text(conditioning: Conditioning) -> TextConditioning:
    assert isinstance(conditioning, TextConditioning), f"conditioning of another family: {type(conditioning)}"
    return conditioning


def load(request: LoadRequest[SdSettings]) -> StableDiffusion:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError if a file is missing or the model is not Stable Diffusion 1.x or 2.x.
    """
    return assemble(read_model(request, SD), request.settings)


def assemble(files: ModelFiles, settings: SdSettings) -> StableDiffusion:
    """Build the model from its files, which were read from any form."""
    tower = files.tower(
        "text_encoder",
        skipped_layers=settings.skipped_layers("text_encoder"),
        is_normed=True,
        is_weighted=settings.prompt_weighting,
    )
    return StableDiffusion.of(SD, files, settings, {"text_encoder": tower}, partial(_lora_naming, files.parts))


def _lora_naming(parts: Mapping[str, Any], prediction: str) -> LoraNaming:
    """Return the names for SD 1.x, or for SD 2.x, whose text encoder is OpenCLIP's.

    The versions are kohya's, with "_v" for v-prediction.
    """
    is_velocity = prediction == "v_prediction"
    if is_open_clip(parts["text_encoder"]):
        return naming_of("sd2_v" if is_velocity else "sd2", parts, prediction=prediction)
    return naming_of("sd1", parts, prediction=prediction, version="sd_v1_v" if is_velocity else "")
