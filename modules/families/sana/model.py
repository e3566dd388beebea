"""Sana: loading it from a diffusers folder or a Hugging Face repository, and running its parts.

Prompts are Gemma 2's last states of a prompt in lower case, which it reads after an instruction. The instruction
describes how a prompt is enhanced (section 2.3 of the paper). Its states are left out, but the prompt's are what Gemma
makes of it after such a request. Negative prompts and the empty one are read alone (`SanaPipeline`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from modules.diffusion.flow import flow_process_of
from modules.families.parts.chat_text import ChatReader, ChatTemplate
from modules.families.parts.chat_tokens import ChatTokenizer
from modules.families.parts.conditioning import TokenConditioning, visible_tokens
from modules.families.parts.gemma import START, InstructedModel
from modules.families.parts.gemma import load_tokenizer as load_gemma_tokenizer
from modules.families.parts.lora_names import naming_of
from modules.families.parts.read_model import read_model
from modules.families.parts.text_model import DenoiserInputs
from modules.families.parts.traced_passes import InputSize, TracedPasses, forward_pass
from modules.families.protocol import LoadRequest
from modules.families.sana.spec import CONVENTION, MAX_TOKENS, SANA, SanaSettings
from modules.families.spec import FamilySpec
from modules.system.errors import DarkroomError

INSTRUCTION = "\n".join(
    (
        "Given a user prompt, generate an 'Enhanced prompt' that provides detailed visual descriptions suitable for "
        "image generation. Evaluate the level of detail in the user prompt:",
        "- If the prompt is simple, focus on adding specifics about colors, shapes, sizes, textures, and spatial "
        "relationships to create vivid and concrete scenes.",
        "- If the prompt is already detailed, refine and enhance the existing details slightly without "
        "overcomplicating.",
        "Here are examples of how to transform or refine prompts:",
        "- User Prompt: A cat sleeping -> Enhanced: A small, fluffy white cat curled up in a round shape, sleeping "
        "peacefully on a warm sunny windowsill, surrounded by pots of blooming red flowers.",
        "- User Prompt: A busy city street -> Enhanced: A bustling city street scene at dusk, featuring glowing street "
        "lamps, a diverse crowd of people in colorful clothing, and a double-decker bus passing by towering glass "
        "skyscrapers.",
        "Please generate only the enhanced description for the prompt below and avoid including any additional "
        "commentary or evaluations:",
        "User Prompt: ",
    )
)
"""The complex human instruction of `SanaPipeline`, with which the published models were trained."""


class LowerCaseTokenizer(ChatTokenizer):
    """A tokenizer that counts the tokens of prompts in lower case, as they are read."""

    def count(self, prompt: str) -> int:
        """Return the number of tokens of a prompt, without the instruction."""
        return super().count(normalize_prompt(prompt))

    def beyond(self, prompt: str, num_tokens: int) -> str:
        """Return the rest of a prompt after its first tokens."""
        return super().beyond(normalize_prompt(prompt), num_tokens)


@dataclass(frozen=True, eq=False)
class InstructedReader(ChatReader):
    """Reads prompts after the instruction, and leaves out its states, except the first, up to the token `begin`."""

    begin: int = 1

    def identity(self) -> str:
        """Return everything but the encoder's weights that affects how a prompt is encoded."""
        return f"{super().identity()}|{self.begin} {self.max_tokens}"

    def _encode(self, forward: Callable[..., Any], prompt: str) -> torch.Tensor:
        states_LD = super()._encode(forward, prompt)
        return torch.cat([states_LD[:1], states_LD[self.begin :]])


def normalize_prompt(prompt: str) -> str:
    """Return a prompt as it is read: in lower case, without blanks at its ends."""
    return prompt.lower().strip()


def load_tokenizer(folder: Path | None) -> LowerCaseTokenizer:
    """Return the tokenizer of a model's folder. Raises DarkroomError if it is missing, damaged or not Gemma's."""
    return LowerCaseTokenizer(load_gemma_tokenizer(folder).tokenizer)


def plain_reader(encoder: Any, tokenizer: ChatTokenizer) -> ChatReader:
    """Return how negative prompts and the empty one are read."""
    return ChatReader(encoder, tokenizer, ChatTemplate(START, ""), MAX_TOKENS, layers=(-1,))


def instruct(reader: ChatReader) -> InstructedReader:
    """Return the reader of prompts after the instruction, from the plain reader.

    As in the pipeline, the prompt begins one token before the end of the instruction alone: that token is a blank,
    which becomes part of the prompt's first word in Gemma's vocabulary.
    """
    before = f"{START}{INSTRUCTION}"
    begin = len(reader.tokenizer.ids(before)) - 1
    plain = replace(reader, template=ChatTemplate(before, ""), max_tokens=begin + MAX_TOKENS - 1)
    return InstructedReader(plain.encoder, plain.tokenizer, plain.template, plain.max_tokens, plain.layers, begin=begin)


@dataclass(eq=False)
class Sana(InstructedModel):
    """A transformer, a Gemma 2, an autoencoder; implements `ModelFamily`."""

    def normalize_prompt(self, prompt: str) -> str:
        """Return a prompt in lower case, without blanks at its ends."""
        return normalize_prompt(prompt)

    def _output(self, given: DenoiserInputs[TokenConditioning]) -> torch.Tensor:
        """Return the output (B, 32, H, W). Equally long prompts need no mask."""
        return self._denoise(
            hidden_states=given.noisy_BCHW,
            encoder_hidden_states=given.cast(given.text.states_BLD),
            timestep=given.time_B * self.denoiser.config.timestep_scale,
            encoder_attention_mask=visible_tokens(given.text.lengths, given.noisy_BCHW.device),
        )


def load(request: LoadRequest[SanaSettings]) -> Sana:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError if a file is missing or the model is not Sana.
    """
    files = read_model(request, SANA)
    if files.parts["transformer"].config.guidance_embeds:
        raise DarkroomError(
            f"{files.name} is Sana Sprint, which was distilled for a few steps and is not supported.",
            advice="Choose Sana or Sana 1.5.",
        )
    plain = plain_reader(files.parts["text_encoder"], load_tokenizer(files.tokenizers.get("text_encoder")))
    return Sana(
        spec=SANA,
        modules=files.parts,
        process=flow_process_of(_with_shift(files.scheduler), CONVENTION),
        scheduler=files.scheduler,
        folder=files.folder,
        lora_naming=naming_of("sana", files.parts, prediction="flow"),
        reader=instruct(plain),
        plain=plain,
    )


def _with_shift(scheduler: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a scheduler's config with its shift under the name that Euler's has: the published one is DPM++'s."""
    return {"shift": scheduler["flow_shift"], **scheduler} if "flow_shift" in scheduler else scheduler


# The forward pass of the transformer, for the memory estimate to trace.


def transformer_passes(transformer: Any, spec: FamilySpec) -> TracedPasses:
    """Return the forward pass of a `SanaTransformer2DModel`, with the mask that prompts of several lengths need."""
    config = transformer.config

    def inputs(size: InputSize) -> dict[str, Any]:
        return {
            "hidden_states": size.latents(config.in_channels),
            "encoder_hidden_states": size.text(config.caption_channels),
            "encoder_attention_mask": size.mask(),
            "timestep": size.times(),
        }

    return forward_pass(transformer, spec, inputs)
