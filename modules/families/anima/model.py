"""Anima: loading it from a diffusers folder, a Hugging Face repository, or files of its parts, and running it.

Prompts are Qwen3's last states, read by a conditioner whose queries are T5's tokens. Both read the plain prompt,
without a template. An empty prompt has no states; one state of zeros replaces them, as in diffusers' pipeline: without
biases, the attention to zeros is zero, masked or not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from modules.families.anima.spec import ANIMA, CONDITIONER, MAX_TOKENS, AnimaSettings
from modules.families.parts.chat_tokens import ChatTokenizer, load_chat_tokenizer
from modules.families.parts.conditioning import TokenConditioning
from modules.families.parts.read_model import read_model
from modules.families.parts.t5_tokens import T5Tokenizer, load_t5_tokenizer
from modules.families.parts.text_model import DenoiserInputs, FlowModel, flow_facts
from modules.families.parts.traced_passes import InputSize, TracedPasses, forward_pass
from modules.families.protocol import LoadRequest
from modules.families.spec import FamilySpec
from modules.system.devices import tensor_on


@dataclass(frozen=True)
class PromptTokenizers:
    """The tokenizers of Qwen3 and of T5."""

    qwen: ChatTokenizer
    t5: T5Tokenizer

    def ids(self, prompt: str) -> tuple[list[int], list[int]]:
        """Return the ids of a prompt: Qwen3's, and T5's with the end token."""
        return self.qwen.ids(prompt)[:MAX_TOKENS], self.t5.read(prompt, MAX_TOKENS)

    def identity(self) -> str:
        """Return everything that affects the ids of a prompt."""
        return f"{self.qwen.tokenizer.to_str()}|{self.t5.identity()}"


def qwen_states(encoder: Any, forward: Callable[..., Any], ids: Sequence[int]) -> torch.Tensor:
    """Return Qwen3's normed states (L, D) of a prompt's tokens: alone, so that they depend on no other prompt."""
    ids_1L = tensor_on([list(ids) or [0]], next(encoder.parameters()).device, torch.long)
    states_1LD: torch.Tensor = forward(input_ids=ids_1L).last_hidden_state
    return states_1LD[0] if ids else torch.zeros_like(states_1LD[0])


def condition(
    conditioner: Any, forward: Callable[..., Any], states: Sequence[torch.Tensor], ids: Sequence[Sequence[int]]
) -> list[torch.Tensor]:
    """Return the transformer's text (L, D) of prompts from their states (S, D') and the ids of T5's tokens (L).

    A frozen conditioner reads each prompt alone, so that its text depends on no other prompt, in a cache or not. A
    trained one reads all in one pass, in which padding is masked, also without gradients (`T5Tower.encode`).
    """
    if any(p.requires_grad for p in conditioner.parameters()):
        return _condition(conditioner, forward, states, ids)
    pairs = zip(states, ids, strict=True)
    return [text_LD for s_LD, one in pairs for text_LD in _condition(conditioner, forward, [s_LD], [one])]


def _condition(
    conditioner: Any, forward: Callable[..., Any], states: Sequence[torch.Tensor], ids: Sequence[Sequence[int]]
) -> list[torch.Tensor]:
    device = next(conditioner.parameters()).device
    dtype = next(conditioner.parameters()).dtype
    longest = max(map(len, ids))
    masks = {}
    if len(ids) > 1:
        masks = {
            "target_attention_mask": _mask([len(one) for one in ids], device),
            "source_attention_mask": _mask([len(s_LD) for s_LD in states], device),
        }
    text_BLD: torch.Tensor = forward(
        source_hidden_states=torch.nn.utils.rnn.pad_sequence([s.to(device, dtype) for s in states], batch_first=True),
        target_input_ids=tensor_on([[*one, *[0] * (longest - len(one))] for one in ids], device, torch.long),
        **masks,
    )
    return [text_LD[: len(one)] for text_LD, one in zip(text_BLD, ids, strict=True)]


def _mask(lengths: Sequence[int], device: torch.device) -> torch.Tensor:
    longest = max(lengths)
    return tensor_on([[1] * length + [0] * (longest - length) for length in lengths], device, torch.long)


@dataclass(eq=False)
class Anima(FlowModel[TokenConditioning]):
    """A transformer, a Qwen3, a text conditioner, a VAE; implements `ModelFamily`."""

    text_class = TokenConditioning

    tokenizers: PromptTokenizers

    def encode_prompts(self, prompts: Sequence[str], padded_like: Sequence[str] = ()) -> TokenConditioning:
        """Return the conditioner's text of prompts; their padding is zeros, so that `padded_like` changes nothing."""
        encoder, forward = self.modules["text_encoder"], self._forward("text_encoder")
        ids = [self.tokenizers.ids(prompt) for prompt in prompts]
        states = [qwen_states(encoder, forward, qwen_ids) for qwen_ids, _ in ids]
        conditioner, run = self.modules[CONDITIONER], self._forward(CONDITIONER)
        return TokenConditioning.of(condition(conditioner, run, states, [t5_ids for _, t5_ids in ids]))

    def _output(self, given: DenoiserInputs[TokenConditioning]) -> torch.Tensor:
        """Return the output (B, 16, H, W): the transformer reads the latents as a video of one frame."""
        least = int(self.modules[CONDITIONER].config.min_sequence_length)
        height, width = map(self.spec.latents.px, given.noisy_BCHW.shape[-2:])
        output = self._denoise(
            hidden_states=given.noisy_BCHW.unsqueeze(2),
            timestep=given.time_B,
            encoder_hidden_states=pad_states(given.cast(given.text.states_BLD), least),
            attention_mask=text_mask(given.text.lengths, least, given.noisy_BCHW.device),
            padding_mask=given.noisy_BCHW.new_zeros(1, 1, height, width),
        )
        return output.squeeze(2)

    def text_identity(self) -> str:
        """Return everything but the weights that affects how a prompt is encoded."""
        return self.tokenizers.identity()

    def count_tokens(self, prompt: str) -> int:
        """Return the number of T5's tokens of a prompt, without the end token: the transformer's text has as many."""
        return self.tokenizers.t5.count(prompt)


def pad_states(states_BLD: torch.Tensor, least: int) -> torch.Tensor:
    """Return text states padded with zeros to a least length, to which the transformer attends."""
    return torch.nn.functional.pad(states_BLD, (0, 0, 0, max(0, least - states_BLD.shape[1])))


def text_mask(lengths: Sequence[int], least: int, device: torch.device) -> torch.Tensor | None:
    """Return which text tokens (B, L) each sample attends to: its own and the zeros up to the least length.

    None for all. diffusers' pipeline has no mask: its prompts, of which only those beyond the least length need one,
    get more zeros in a batch with a longer prompt. Here a batch of several lengths equals each prompt alone.
    """
    ends = [max(length, least) for length in lengths]
    longest = max(ends)
    if min(ends) == longest:
        return None
    ends_B1 = tensor_on([[end] for end in ends], device)
    return torch.arange(longest, device=device)[None] < ends_B1


def load(request: LoadRequest[AnimaSettings]) -> Anima:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError if a file is missing or the model is not Anima.
    """
    files = read_model(request, ANIMA)
    qwen = load_chat_tokenizer(files.tokenizers.get("text_encoder"))
    t5 = load_t5_tokenizer(files.tokenizers.get(CONDITIONER))
    for layer in files.parts[CONDITIONER].blocks:  # its masks need PyTorch's own choice of a kernel
        for attention in (layer.cross_attn, getattr(layer, "self_attn", None)):
            if attention is not None:
                attention.processor._attention_backend = "native"
    return Anima(
        **flow_facts(files, ANIMA, "anima"),
        tokenizers=PromptTokenizers(qwen, t5),
    )


# The forward passes of the transformer and of the text conditioner, for the memory estimate to trace.


def transformer_passes(transformer: Any, spec: FamilySpec) -> TracedPasses:
    """Return the forward pass of a `CosmosTransformer3DModel` on images."""

    def inputs(size: InputSize) -> dict[str, Any]:
        height, width = map(spec.latents.px, (size.height, size.width))
        return {
            "hidden_states": size.latents(size.channels).unsqueeze(2),
            "timestep": size.times(),
            "encoder_hidden_states": size.text(transformer.config.text_embed_dim),
            "padding_mask": torch.empty(1, 1, height, width),
        }

    return forward_pass(transformer, spec, inputs)


def conditioner_passes(conditioner: Any, spec: FamilySpec) -> TracedPasses:
    """Return the forward pass of an `AnimaTextConditioner`, with the masks that a batch needs."""

    def inputs(size: InputSize) -> dict[str, Any]:
        mask = torch.empty(size.batch, size.tokens, dtype=torch.long)
        return {
            "source_hidden_states": size.text(conditioner.config.source_dim),
            "target_input_ids": torch.empty(size.batch, size.tokens, dtype=torch.long),
            "target_attention_mask": mask,
            "source_attention_mask": mask.clone(),
        }

    return forward_pass(conditioner, spec, inputs, text=["source_hidden_states"])
