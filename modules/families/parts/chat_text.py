"""The text states of a language model that reads prompts as messages of a chat.

Families differ in the template around a prompt, in the hidden states that their denoiser gets, and in the padding: most
leave it out, FLUX.2's denoiser attends to it. Shapes: L tokens, D width of the hidden states, K states of each token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from modules.families.parts.chat_tokens import ChatTokenizer
from modules.families.parts.conditioning import stack_states
from modules.system.devices import tensor_on


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """The text before and after a prompt, with its special tokens."""

    before: str
    after: str


DESCRIBE_IMAGE = ChatTemplate(
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, "
    "spatial relationships of the objects and background:<|im_end|>\n<|im_start|>user\n",
    "<|im_end|>\n<|im_start|>assistant\n",
)
"""The template of Qwen-Image and Krea 2, with one message of the system and one of the user in Qwen's format."""


@dataclass(frozen=True, slots=True)
class Padding:
    """Padding up to the maximum of tokens, with the id of its token, before or after the prompt."""

    pad_id: int
    is_left: bool = False

    def length(self, num_tokens: int, most: int) -> int:
        """Return the number of tokens of a prompt with its padding, which is at most `most`."""
        return most

    def positions(self, num_tokens: int, length: int) -> list[int] | None:
        """Return the positions of a prompt's tokens and its padding; None for the language model's own."""
        return None


@dataclass(frozen=True, slots=True)
class StepPadding(Padding):
    """Padding behind a prompt up to a multiple of `step` tokens, each at the same `position`."""

    step: int = 1
    position: int = 0

    def length(self, num_tokens: int, most: int) -> int:
        """Return the number of tokens of a prompt with its padding, which is at most `most`."""
        return min(-(-num_tokens // self.step) * self.step, most)

    def positions(self, num_tokens: int, length: int) -> list[int]:
        """Return the positions of a prompt's tokens and its padding."""
        return [*range(num_tokens), *[self.position] * (length - num_tokens)]


@dataclass(frozen=True, eq=False)
class ChatReader:
    """A frozen language model with its tokenizer, and how a family reads prompts with it.

    A prompt in its template is read up to `max_tokens`, and its first `dropped` tokens, which are the template's, are
    left out of the states. `layers` are the hidden states of each token, one after the other: 0 is the embedding, n the
    output of layer n, and -1 the last one after the norm, or with `is_before_norm` before it. If they alternate, the
    first values of all layers are followed by the second ones. Without `padding` prompts are not padded. `keeps_end`: a
    prompt that is too long is truncated before the end of the template, which is still read.
    """

    encoder: Any
    tokenizer: ChatTokenizer
    template: ChatTemplate
    max_tokens: int
    layers: tuple[int, ...]
    dropped: int = 0
    padding: Padding | None = None
    keeps_end: bool = False
    is_before_norm: bool = False
    alternates: bool = False

    def encode(self, forward: Callable[..., Any], prompts: Sequence[str]) -> list[torch.Tensor]:
        """Return the states (L, K D) of each prompt, read alone, so that they depend on no other prompt of the batch.

        `forward` is the forward pass of the encoder.
        """
        with self._without_norm():
            return [self._encode(forward, prompt) for prompt in prompts]

    def ids(self, prompt: str) -> list[int]:
        """Return the ids of a prompt in its template, without padding."""
        before, after = self.template.before, self.template.after
        if self.keeps_end:
            end = self.tokenizer.ids(after)
            return [*self.tokenizer.ids(f"{before}{prompt}")[: self.max_tokens - len(end)], *end]
        return self.tokenizer.ids(f"{before}{prompt}{after}")[: self.max_tokens]

    def identity(self) -> str:
        """Return everything but the encoder's weights that affects how a prompt is encoded."""
        padding = "" if self.padding is None else f" {self.padding}"
        read = f"{self.tokenizer.tokenizer.to_str()}|{self.ids('')}|{self.max_tokens}{padding}"
        return f"{read}|before the norm" if self.is_before_norm else read

    @contextmanager
    def _without_norm(self) -> Iterator[None]:
        """Let the norm behind the last layer return its input if the states before it are read: since version 5,
        the last hidden states of transformers are those after the norm.
        """
        if not self.is_before_norm:
            yield
            return
        handle = self.encoder.norm.register_forward_hook(lambda module, given, states: given[0])
        try:
            yield
        finally:
            handle.remove()

    def _encode(self, forward: Callable[..., Any], prompt: str) -> torch.Tensor:
        ids, device = self.ids(prompt), next(self.encoder.parameters()).device
        masked: dict[str, torch.Tensor] = {}
        if self.padding is not None:
            length = self.padding.length(len(ids), self.max_tokens)
            of_tokens = {
                "attention_mask": self._pad([1] * len(ids), 0, length),
                "position_ids": self.padding.positions(len(ids), length),
            }
            masked = {name: tensor_on([row], device, torch.long) for name, row in of_tokens.items() if row is not None}
            ids = self._pad(ids, self.padding.pad_id, length)
        ids_1L = tensor_on([ids], device, torch.long)
        output = forward(input_ids=ids_1L, **masked, output_hidden_states=True, use_cache=False)
        states = [output.hidden_states[layer][0, self.dropped :] for layer in self.layers]
        if self.alternates:
            alternating: torch.Tensor = stack_states(states, dim=-1).flatten(-2)
            return alternating
        return torch.cat(states, dim=-1) if len(states) > 1 else states[0]

    def _pad(self, values: list[int], value: int, length: int) -> list[int]:
        filler = [value] * (length - len(values))
        return [*filler, *values] if self.padding is not None and self.padding.is_left else [*values, *filler]
