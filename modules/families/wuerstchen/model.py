"""Loading Wuerstchen and running it: prior and CLIP of a base model, and the autoencoder from places of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from types import MappingProxyType
from typing import Any

import torch
from diffusers.configuration_utils import register_to_config
from diffusers.pipelines.deprecated.wuerstchen import modeling_wuerstchen_diffnext
from diffusers.pipelines.deprecated.wuerstchen.modeling_paella_vq_model import PaellaVQModel
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel

from modules.families.parts.clip_text import up_to_end
from modules.families.parts.conditioning import RowConditioning
from modules.families.parts.efficient_net import WIDTH, EffNetEncoder, stages_in_config
from modules.families.parts.effnet_autoencoder import EffNetAutoencoder, effnet_passes, without_dropout
from modules.families.parts.effnet_files import EFFNET_FILE, AutoencoderSource
from modules.families.parts.effnet_model import EffNetModel, load_effnet_model
from modules.families.parts.text_model import DenoiserInputs
from modules.families.parts.traced_passes import TracedPasses
from modules.families.protocol import LoadRequest
from modules.families.spec import FamilySpec
from modules.families.wuerstchen.spec import WUERSTCHEN, WuerstchenSettings

# The conditioning of Wuerstchen: states for the prior, and token ids for the decoder's own CLIP.


@dataclass(frozen=True, eq=False)
class StatesAndTokens(RowConditioning):
    """CLIP's states (B, 77, D) of B prompts, padding included, and the decoder's ids (B, 77) of their tokens, int32."""

    encoder_of = MappingProxyType({"states": 0, "tokens": 0})


ENCODER_FILES = (EFFNET_FILE, "model_v2_stage_b.pt")
"""The files that have the image encoder, in the decoder's folder or in one of its own."""
_TEXT = "text_encoder"


@dataclass(eq=False)
class Wuerstchen(EffNetModel[StatesAndTokens]):
    """A prior, a CLIP, an autoencoder of four parts; implements `FamilyWithEmbeddings`."""

    text_class = StatesAndTokens

    def encode_prompts(self, prompts: Sequence[str], padded_like: Sequence[str] = ()) -> StatesAndTokens:
        """Return the states of the first 77 tokens of prompts; all have as many, so `padded_like` changes nothing."""
        states_BLD = self._clip(_TEXT).encode(self._forward(_TEXT), prompts, num_chunks=1).states_BLD
        return StatesAndTokens({"states": states_BLD, "tokens": self._tokens_of(prompts).to(states_BLD.device)})

    def _output(self, given: DenoiserInputs[StatesAndTokens]) -> torch.Tensor:
        """Return the predicted noise (B, 16, H, W). The prior reads the time in (0, 1]."""
        states_BLD = given.cast(given.text.rows["states"])
        noise_BCHW: torch.Tensor = self._forward("prior")(given.noisy_BCHW, r=given.time_B, c=states_BLD)
        return noise_BCHW

    def _decoder_text(self, text: StatesAndTokens | None, batch: int) -> torch.Tensor:
        """Return the token ids (B, 77) of prompts; empty ones stand for unknown ones."""
        return self._tokens_of([""] * batch) if text is None else text.rows["tokens"]

    def _tokens_of(self, prompts: Sequence[str]) -> torch.Tensor:
        """Return the ids of the decoder's text encoder, which reads the placeholders of embeddings as written."""
        tokenizer = self._clip(_TEXT).tokenizer.with_embeddings({})
        return torch.tensor([tokenizer.chunks(prompt)[0] for prompt in prompts], dtype=torch.int32)


def load(request: LoadRequest[WuerstchenSettings]) -> Wuerstchen:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError if a file is missing or the model is not Wuerstchen.
    """
    spec, settings = WUERSTCHEN, request.settings
    source = AutoencoderSource(
        spec.name,
        WuerstchenAutoencoder,
        {"decoder": WuerstchenDiffNeXt, "vqgan": PaellaVQModel, _TEXT: CLIPTextModel},
        settings.decoder,
        settings.effnet_encoder.strip(),
        ENCODER_FILES,
        {_TEXT: "decoder_text_encoder"},
    )
    return load_effnet_model(Wuerstchen, spec, request, source, request.dtype_of("vae"), is_normed=True)


# The image encoder and the decoder of Wuerstchen as one autoencoder: EfficientNet, stage B with its CLIP, stage A.
_END_ID = 49407  # of CLIP's vocabulary
_TOKENS = 77


class WuerstchenDiffNeXt(modeling_wuerstchen_diffnext.WuerstchenDiffNeXt):  # type: ignore[misc]  # diffusers has no types
    """diffusers' stage B, which embeds the time in float32 whatever its dtype, and has no dropout."""

    # diffusers reads the names of the config in the signature.
    @wraps(modeling_wuerstchen_diffnext.WuerstchenDiffNeXt.__init__)  # type: ignore[misc]  # diffusers has no types
    def __init__(self, *values: Any, **named: Any) -> None:
        super().__init__(*values, **named)
        without_dropout(self)

    def gen_r_embedding(self, r: torch.Tensor, max_positions: int = 10000) -> torch.Tensor:
        """Return the embedding (B, D) of times in [0, 1], in the dtype of the weights."""
        embedding: torch.Tensor = super().gen_r_embedding(r.float(), max_positions)
        return embedding.to(next(self.parameters()).dtype)


class WuerstchenAutoencoder(EffNetAutoencoder):
    """The parts that encode images and decode latents; stage B reads the prompts with a CLIP of its own.

    Latents are the encoder's output plus 1, divided by 42: diffusers' pipeline names these two `latent_std` and
    `latent_mean`.
    """

    scale, shift = 42.0, 1.0

    @register_to_config  # type: ignore[untyped-decorator]  # diffusers has no types
    def __init__(
        self,
        decoder: Mapping[str, Any],
        vqgan: Mapping[str, Any],
        text_encoder: Mapping[str, Any],
        stages: Sequence[Sequence[int]] = (),
        width: int = WIDTH,
        latent_channels: int = 16,
        num_steps: int = 12,
    ) -> None:
        """`decoder`, `vqgan` and `text_encoder` are the configs of the three; `stages`, each as the values of a
        `Stage`, are the stages of an encoder that is not EfficientNetV2-S. Decoding takes `num_steps`.
        """
        super().__init__()
        self.effnet = EffNetEncoder(stages_in_config(stages), width, latent_channels, is_scaled=True)
        self.stage_b = WuerstchenDiffNeXt.from_config(dict(decoder))
        self.stage_a = PaellaVQModel.from_config(dict(vqgan))
        self.clip = CLIPTextModel(CLIPTextConfig(**text_encoder))

    def put_parts(self, parts: Mapping[str, nn.Module]) -> None:
        """Replace the parts without weights by those of the decoder's folder, by their names there."""
        super().put_parts(parts)
        self.clip = parts["text_encoder"]

    def encode_text(self, text: torch.Tensor) -> torch.Tensor:
        """Return the states (B, 77, D) of token ids (B, 77)."""
        tokens_BL = text.long()
        output = self.clip(input_ids=tokens_BL, attention_mask=up_to_end(tokens_BL, _END_ID))
        states_BLD: torch.Tensor = output.last_hidden_state
        return states_BLD

    @property
    def side_step(self) -> int:
        """The side of a patch, doubled at each level after the first."""
        config = self.stage_b.config
        return int(config.patch_size) << (len(config.c_hidden) - 1)

    def denoise(
        self, states_BCHW: torch.Tensor, time_B: torch.Tensor, encoded_BCHW: torch.Tensor, text: torch.Tensor
    ) -> torch.Tensor:
        """Return the noise that stage B predicts at times in [0, 1]; `text` are states (B, 77, D)."""
        noise_BCHW: torch.Tensor = self.stage_b(states_BCHW, time_B, effnet=encoded_BCHW, clip=text)
        return noise_BCHW


def autoencoder_passes(autoencoder: Any, spec: FamilySpec) -> TracedPasses:
    """Return the passes of encoding and decoding."""
    return effnet_passes(autoencoder, spec, (_TOKENS, autoencoder.clip.config.hidden_size))
