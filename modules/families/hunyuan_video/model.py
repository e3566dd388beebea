"""HunyuanVideo: loading it from a diffusers folder or a Hugging Face repository, and running its parts on images.

Its conditioning is the language model's states of a prompt's tokens, without the template before it, and
CLIP's state of the prompt. No state of a prompt depends on padding: the refiner of the text and the transformer mask
it, and the language model attends to what is before a token (`HunyuanVideoPipeline`, 0.42).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch

from modules.families.hunyuan_video.spec import HUNYUAN_VIDEO, MAX_TOKENS, HunyuanVideoSettings
from modules.families.parts.chat_text import ChatReader, ChatTemplate
from modules.families.parts.chat_tokens import ChatTokenizer, load_chat_tokenizer
from modules.families.parts.clip_text import pooled_states
from modules.families.parts.clip_tokens import ClipTokenizer, load_clip_tokenizer
from modules.families.parts.conditioning import TokenConditioning, guidance_input, replace_rows, token_mask
from modules.families.parts.read_model import read_model
from modules.families.parts.text_model import ChatModel, DenoiserInputs, flow_facts
from modules.families.parts.traced_passes import InputSize, TracedPasses, forward_pass
from modules.families.protocol import LoadRequest
from modules.families.spec import FamilySpec
from modules.system.devices import Device, move
from modules.system.errors import DarkroomError

DROPPED = 95
"""The tokens of the template before a prompt (`DEFAULT_PROMPT_TEMPLATE`)."""
TEMPLATE = ChatTemplate(
    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nDescribe the video by detailing the following "
    "aspects: 1. The main content and theme of the video.2. The color, shape, size, texture, quantity, text, and "
    "spatial relationships of the objects.3. Actions, events, behaviors temporal relationships, physical movement "
    "changes of the objects.4. background environment, light, style and atmosphere.5. camera angles, movements, and "
    "transitions used in the video:<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n",
    "<|eot_id|>",
)
_LAYER = -3  # the state before the last two layers
_LLAMA, _CLIP = "text_encoder", "text_encoder_2"


@dataclass(frozen=True, eq=False)
class HunyuanVideoConditioning(TokenConditioning):
    """The states (B, L, D) of B prompts of different lengths, CLIP's pooled states (B, E), and a guidance scale."""

    pooled_BE: torch.Tensor
    guidance: float | None = None

    def to(self, device: Device, dtype: torch.dtype | None = None) -> Self:
        """Move it to a device, and to a dtype if one is given."""
        return replace(super().to(device, dtype), pooled_BE=move(self.pooled_BE, device, dtype=dtype))

    def select(self, indices: Sequence[int]) -> Self:
        """Return the conditioning of some of the prompts, in that order."""
        return replace(super().select(indices), pooled_BE=self.pooled_BE[list(indices)])

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors by name, for a cache entry."""
        return {**super().tensors(), "pooled": self.pooled_BE}

    def with_empty_prompts(self, empty_for: Sequence[Collection[int]], empty: Self) -> Self:
        """Return it with the empty prompt's states for the encoders, Llama (0) and CLIP (1), of each prompt."""
        pooled_BE = replace_rows(self.pooled_BE, empty.pooled_BE, [1 in e for e in empty_for])
        return replace(super().with_empty_prompts(empty_for, empty), pooled_BE=pooled_BE)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, torch.Tensor]) -> Self:
        """Return the conditioning from its `tensors`. Raises KeyError if one is missing."""
        text = TokenConditioning.from_tensors(tensors)
        return cls(text.states_BLD, text.lengths, tensors["pooled"])

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Join conditionings into one, which has the guidance scale of the first."""
        return replace(super().join(parts), pooled_BE=torch.cat([part.pooled_BE for part in parts]))


def prompt_reader(encoder: Any, tokenizer: ChatTokenizer) -> ChatReader:
    """Return how the language model reads prompts: in the template, without padding."""
    return ChatReader(encoder, tokenizer, TEMPLATE, DROPPED + MAX_TOKENS, layers=(_LAYER,), dropped=DROPPED)


@dataclass(eq=False)
class HunyuanVideo(ChatModel[HunyuanVideoConditioning]):
    """A transformer, a Llama 3, a CLIP-L, a VAE of videos; implements `ModelFamily`.

    `guidance` is the guidance scale that the transformer reads in training.
    """

    text_class = HunyuanVideoConditioning

    clip_tokenizer: ClipTokenizer
    guidance: float

    def encode_prompts(self, prompts: Sequence[str], padded_like: Sequence[str] = ()) -> HunyuanVideoConditioning:
        """Return the states of prompts. None depends on the others, so `padded_like` changes nothing."""
        text = TokenConditioning.of(self.reader.encode(self._forward(_LLAMA), prompts))
        pooled_BE = pooled_states(self.modules[_CLIP], self.clip_tokenizer, self._forward(_CLIP), prompts)
        return HunyuanVideoConditioning(text.states_BLD, text.lengths, pooled_BE)

    def _output(self, given: DenoiserInputs[HunyuanVideoConditioning]) -> torch.Tensor:
        """Return the output (B, 16, H, W) of images, or (B, 16, F, H, W) of clips."""
        text, is_clip = given.text, given.noisy_BCHW.dim() == 5
        output = self._denoise(
            hidden_states=given.noisy_BCHW if is_clip else given.noisy_BCHW.unsqueeze(2),
            timestep=given.time_B,
            encoder_hidden_states=given.cast(text.states_BLD),
            encoder_attention_mask=token_mask(text.lengths, given.noisy_BCHW.device),
            pooled_projections=given.cast(text.pooled_BE),
            **guidance_input(self.denoiser.config, text.guidance, self.guidance, given.time_B, factor=1000.0),
        )
        return output if is_clip else output.squeeze(2)

    def text_identity(self) -> str:
        """Return everything but the weights that affects how a prompt is encoded."""
        return f"{self.reader.identity()}|{self.clip_tokenizer.identity()}"


def _require_text_to_video(config: Mapping[str, Any], name: str) -> None:
    """Raise DarkroomError for the config of a transformer that reads an image."""
    if config.get("image_condition_type"):
        raise DarkroomError(
            f"{name} makes videos from an image (HunyuanVideo-I2V), which is not supported.",
            advice="Choose HunyuanVideo.",
        )


def load(request: LoadRequest[HunyuanVideoSettings]) -> HunyuanVideo:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError if a file is missing or the model is not HunyuanVideo.
    """
    files = read_model(request, HUNYUAN_VIDEO, _require_text_to_video)
    return HunyuanVideo(
        **flow_facts(files, HUNYUAN_VIDEO, "hunyuan_video"),
        reader=prompt_reader(files.parts[_LLAMA], load_chat_tokenizer(files.tokenizers.get(_LLAMA))),
        clip_tokenizer=load_clip_tokenizer(files.tokenizers.get(_CLIP)),
        guidance=request.settings.guidance,
    )


# The forward pass of the transformer, for the memory estimate to trace.


def transformer_passes(transformer: Any, spec: FamilySpec) -> TracedPasses:
    """Return the forward pass of a `HunyuanVideoTransformer3DModel`, for one frame."""
    config = transformer.config

    def inputs(size: InputSize) -> dict[str, Any]:
        made = {
            "hidden_states": size.latents(config.in_channels).unsqueeze(2),
            "timestep": size.times(),
            "encoder_hidden_states": size.text(config.text_embed_dim),
            "encoder_attention_mask": size.mask(),
            "pooled_projections": torch.empty(size.batch, config.pooled_projection_dim),
        }
        if config.guidance_embeds:
            made["guidance"] = size.times()
        return made

    return forward_pass(transformer, spec, inputs, text=["encoder_hidden_states", "pooled_projections"])
