"""Ideogram 4: loading it from a diffusers folder, a Hugging Face repository, or files of its parts; running it.

Prompts are the states of thirteen layers of Qwen3-VL, the last of them before the norm behind it, in the template of a
chat: a message of the user, with the beginning of an answer (`Ideogram4Pipeline`, 0.42). The values of the layers
alternate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from modules.data.conditioning import Conditioning
from modules.data.inputs import NO_INPUTS
from modules.families.ideogram4.spec import GUIDE, IDEOGRAM4, LAYERS, Ideogram4Settings
from modules.families.parts.chat_text import ChatReader, ChatTemplate
from modules.families.parts.chat_tokens import ChatTokenizer, load_chat_tokenizer
from modules.families.parts.conditioning import TokenConditioning, visible_tokens
from modules.families.parts.read_model import read_model
from modules.families.parts.text_model import ChatModel, DenoiserInputs, flow_facts
from modules.families.parts.traced_passes import InputSize, TracedPasses, forward_pass
from modules.families.parts.vae import put_places_first
from modules.families.protocol import LoadRequest
from modules.families.spec import FamilySpec
from modules.system.errors import DarkroomError

TEMPLATE = ChatTemplate("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n")
_FIRST_POSITION = 65536  # of rows and columns of an image (`IMAGE_POSITION_OFFSET`)
_SIDE = 2


def prompt_reader(encoder: Any, tokenizer: ChatTokenizer, max_tokens: int) -> ChatReader:
    """Return how prompts are read: without padding. Raises DarkroomError for an encoder with too few layers."""
    if encoder.config.num_hidden_layers <= max(LAYERS):
        raise DarkroomError(
            f"The text encoder has {encoder.config.num_hidden_layers} layers instead of {max(LAYERS) + 1}.",
            advice="Choose a base model whose text encoder is Ideogram 4's, a Qwen3-VL of 8 billion weights.",
        )
    layers = tuple(layer + 1 for layer in LAYERS)  # 0 is the embedding
    return ChatReader(
        encoder, tokenizer, TEMPLATE, max_tokens, layers, keeps_end=True, is_before_norm=True, alternates=True
    )


@dataclass(eq=False)
class Ideogram4(ChatModel[TokenConditioning]):
    """Two transformers, the language model of a Qwen3-VL, a VAE; implements `ModelFamily`.

    A prompt without tokens, which has no template either, is predicted by the second transformer.
    """

    def encode_guided(self, negative: str, prompt: str) -> TokenConditioning:
        """Return the conditioning of a guided sample: the second transformer, if there is one, reads no prompt."""
        if GUIDE not in self.modules:
            return self.encode_prompts([negative, prompt])
        text = self.encode_prompts([prompt])
        return TokenConditioning.join([self.without_prompt(text), text])

    def without_prompt(self, conditioning: Conditioning) -> TokenConditioning:
        """Return a conditioning of as many prompts that the second transformer predicts."""
        text = self._text(conditioning)
        return TokenConditioning(text.states_BLD[:, :0], (0,) * len(text))

    def predict(
        self,
        noisy_BCHW: torch.Tensor,
        timesteps_B: torch.Tensor,
        conditioning: Conditioning,
        inputs: Mapping[str, torch.Tensor] = NO_INPUTS,
    ) -> torch.Tensor:
        """Return the velocity (B, 32, H, W), each transformer's of its prompts."""
        text = self._text(conditioning)
        count = sum(not length for length in text.lengths)
        if count in (0, len(text)):
            return super().predict(noisy_BCHW, timesteps_B, text)
        assert not any(text.lengths[:count]), "those without a prompt are the first of a batch"
        halves, numbers = [], range(len(text))
        for row in (slice(None, count), slice(count, None)):
            halves.append(super().predict(noisy_BCHW[row], timesteps_B[row], text.select(numbers[row])))
        return torch.cat(halves)

    def _denoiser_of(self, text: TokenConditioning) -> str:
        return self.spec.denoiser.name if max(text.lengths) > 0 else GUIDE

    def _output(self, given: DenoiserInputs[TokenConditioning]) -> torch.Tensor:
        """Return the output (B, 32, H, W) for prompts that all have tokens, or all have none."""
        text, noisy_BCHW = given.text, given.noisy_BCHW
        part, read = self._denoiser_of(text), dict[str, torch.Tensor | None]()
        if part != GUIDE:
            visible = visible_tokens(text.lengths, noisy_BCHW.device)
            read = {"encoder_hidden_states": given.cast(text.states_BLD), "encoder_attention_mask": visible}
        output = self._forward(part)(
            hidden_states=to_tokens(noisy_BCHW),
            timestep=given.cast(given.time_B),  # as in the pipeline
            position_ids=positions(text.states_BLD.shape[1], noisy_BCHW),
            **read,
            return_dict=False,
        )
        return to_latents(output[0], *noisy_BCHW.shape[-2:])


def to_tokens(latents_BCHW: torch.Tensor) -> torch.Tensor:
    """Return latents as tokens (B, H/2 * W/2, 4 C), row by row: of a square's places each has its channels together."""
    rows = latents_BCHW.unflatten(3, (-1, _SIDE)).unflatten(2, (-1, _SIDE))  # (B, C, H/2, 2, W/2, 2)
    tokens: torch.Tensor = rows.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
    return tokens


def to_latents(tokens_BTC: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return tokens as latents (B, C, H, W) of a height and a width."""
    rows = tokens_BTC.unflatten(2, (_SIDE, _SIDE, -1)).unflatten(1, (height // _SIDE, width // _SIDE))
    latents: torch.Tensor = rows.permute(0, 5, 1, 3, 2, 4).flatten(4).flatten(2, 3)
    return latents


def positions(num_text: int, latents_BCHW: torch.Tensor) -> torch.Tensor:
    """Return the positions (1, L + T, 3) of text tokens and of an image's tokens, on the device of its latents."""
    device = latents_BCHW.device
    text_L3 = torch.arange(num_text, device=device)[:, None].expand(-1, 3)
    rows, columns = (torch.arange(side // _SIDE, device=device) for side in latents_BCHW.shape[-2:])
    first = rows.new_zeros(len(rows), len(columns))
    image_T3 = torch.stack([first, first + rows[:, None], first + columns], dim=-1).flatten(0, 1) + _FIRST_POSITION
    return torch.cat([text_L3, image_T3])[None]


def load(request: LoadRequest[Ideogram4Settings]) -> Ideogram4:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError if a file is missing or the model is not Ideogram 4.
    """
    files = read_model(request, IDEOGRAM4)
    put_places_first(files.parts["vae"], name=files.name)
    tokenizer = load_chat_tokenizer(files.tokenizers.get("text_encoder"))
    return Ideogram4(
        **flow_facts(files, IDEOGRAM4.without({GUIDE} - files.parts.keys()), "ideogram4"),
        reader=prompt_reader(files.parts["text_encoder"], tokenizer, request.settings.most_tokens),
    )


# The forward pass of the transformer, for the memory estimate to trace.


def transformer_passes(transformer: Any, spec: FamilySpec) -> TracedPasses:
    """Return the forward pass of an `Ideogram4Transformer2DModel` with text."""
    config = transformer.config

    def inputs(size: InputSize) -> dict[str, Any]:
        return {
            "hidden_states": size.patches(config.in_channels),
            "timestep": torch.empty(size.batch),
            "position_ids": torch.empty(1, size.tokens + size.num_patches, 3, dtype=torch.long),
            "encoder_hidden_states": size.text(config.llm_features_dim),
            "encoder_attention_mask": size.mask(),
        }

    return forward_pass(transformer, spec, inputs)
