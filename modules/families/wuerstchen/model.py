"""Loading Wuerstchen and running it: prior and CLIP of a base model, and the autoencoder from places of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from diffusers.pipelines.deprecated.wuerstchen.modeling_paella_vq_model import PaellaVQModel
from transformers import CLIPTextModel

from modules.data.conditioning import Conditioning
from modules.data.inputs import NO_INPUTS
from modules.families.parts.clip_text import TextTower
from modules.families.parts.clip_tokens import load_clip_tokenizer
from modules.families.parts.effnet_files import EFFNET_FILE, AutoencoderSource, autoencoder_of
from modules.families.parts.effnet_model import EffNetModel, cosine_process
from modules.families.parts.lora_names import naming_of
from modules.families.parts.read_model import read_model
from modules.families.protocol import LoadRequest
from modules.families.wuerstchen.autoencoder import WuerstchenAutoencoder, WuerstchenDiffNeXt
from modules.families.wuerstchen.conditioning import StatesAndTokens
from modules.families.wuerstchen.spec import WUERSTCHEN, WuerstchenSettings

ENCODER_FILES = (EFFNET_FILE, "model_v2_stage_b.pt")
"""The files that have the image encoder, in the decoder's folder or in one of its own."""
_TEXT = "text_encoder"


@dataclass(eq=False)
class Wuerstchen(EffNetModel[StatesAndTokens]):
    """A prior, a CLIP, an autoencoder of four parts; implements `FamilyWithWords`."""

    text_class = StatesAndTokens

    def encode_prompts(self, prompts: Sequence[str], padded_like: Sequence[str] = ()) -> StatesAndTokens:
        """Return the states of the first 77 tokens of prompts; all have as many, so `padded_like` changes nothing."""
        states_BLD = self.tower.encode(self._forward(_TEXT), prompts, num_chunks=1).states_BLD
        return StatesAndTokens(states_BLD, self._tokens_of(prompts).to(states_BLD.device))

    def predict(
        self,
        noisy_BCHW: torch.Tensor,
        timesteps_B: torch.Tensor,
        conditioning: Conditioning,
        inputs: Mapping[str, torch.Tensor] = NO_INPUTS,
    ) -> torch.Tensor:
        """Return the predicted noise (B, 16, H, W). The prior reads the time in (0, 1]."""
        text, dtype = self._text(conditioning), self._input_dtype()
        noise_BCHW: torch.Tensor = self._forward("prior")(
            noisy_BCHW.to(dtype), r=self._time(timesteps_B), c=text.states_BLD.to(dtype)
        )
        return noise_BCHW

    def _read_by_decoder(self, text: StatesAndTokens | None, batch: int) -> torch.Tensor:
        """Return the token ids (B, 77) of prompts; empty ones stand for unknown ones."""
        return self._tokens_of([""] * batch) if text is None else text.tokens_BL

    def _tokens_of(self, prompts: Sequence[str]) -> torch.Tensor:
        """Return the ids of the decoder's text encoder, which reads the placeholders of embeddings as written."""
        tokenizer = self.tower.tokenizer.with_words({})
        return torch.tensor([tokenizer.chunks(prompt)[0] for prompt in prompts], dtype=torch.int32)


def load(request: LoadRequest[WuerstchenSettings]) -> Wuerstchen:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError where a file is missing or the model is not Wuerstchen.
    """
    spec, settings = WUERSTCHEN, request.settings
    files = read_model(request, spec.in_base_model)
    source = AutoencoderSource(
        spec.name,
        WuerstchenAutoencoder,
        {"decoder": WuerstchenDiffNeXt, "vqgan": PaellaVQModel, _TEXT: CLIPTextModel},
        settings.decoder,
        settings.effnet_encoder.strip(),
        ENCODER_FILES,
        {_TEXT: "decoder_text_encoder"},
    )
    process = cosine_process(files.scheduler)
    tokenizer = load_clip_tokenizer(files.tokenizers.get(_TEXT))
    return Wuerstchen(
        spec=spec,
        modules={**files.parts, "vae": autoencoder_of(source, request, files, request.dtype_of("vae"))},
        process=process,
        scheduler={**files.scheduler, "timestep_spacing": "trailing"},
        folder=files.folder,
        lora_naming=naming_of(spec.name, files.parts, prediction=process.prediction_type),
        tower=TextTower(files.parts[_TEXT], tokenizer, skipped_layers=0, is_normed=True, masks_padding=True),
    )
