"""T5's text states for prompts (Raffel et al. 2020), with the padding that a family's denoiser sees.

FLUX.1 and SD 3 read the padding like a prompt: the encoder attends to it, and all states reach the denoiser. Chroma
and PixArt mask it in the encoder; of its states Chroma's transformer sees one, PixArt's none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from modules.families.parts.t5_tokens import T5Tokenizer
from modules.families.parts.token_rows import ExtendedEmbedding
from modules.system.devices import tensor_on


@dataclass(frozen=True, eq=False)
class T5Tower:
    """A T5 encoder with its tokenizer, and how its family reads prompts.

    Prompts are read up to `max_tokens`, the end token among them. `masks_padding`: the encoder does not attend to the
    padding. `kept_padding` is how many states of the padding each prompt keeps, None for all of them, up to
    `max_tokens`.
    """

    encoder: Any
    tokenizer: T5Tokenizer
    max_tokens: int
    masks_padding: bool
    kept_padding: int | None

    def __post_init__(self) -> None:
        """Turn dropout off, which T5's config has: in training the denoiser must see what it sees in samples."""
        for module in self.encoder.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
            elif hasattr(module, "dropout") and isinstance(module.dropout, float):
                module.dropout = 0.0  # of the attention

    def encode(self, forward: Callable[..., Any], prompts: Sequence[str]) -> list[torch.Tensor]:
        """Return the states (L, D) of each prompt, including its kept padding.

        A frozen encoder reads each prompt alone, so that its states depend on no other prompt, in a cache or not. A
        trained one reads all in one pass: several would share the weights that autocast has cast, and sum their
        gradients in 16 bits. It does so without gradients, too, with the same kernels (`_attention`): a policy compares
        probabilities of a rollout with those in its loss, which would differ in the last bits. `forward` is the
        (checkpointed) forward pass of the encoder.
        """
        if any(p.requires_grad for p in self.encoder.parameters()):
            return self._encode(forward, prompts)
        return [states_LD for prompt in prompts for states_LD in self._encode(forward, [prompt])]

    def identity(self) -> str:
        """Return everything but the encoder's weights that affects how a prompt is encoded."""
        padding = f"{'masked' if self.masks_padding else 'attended'} {self.kept_padding}"
        return f"{self.tokenizer.identity()}|{self.max_tokens}|{padding}"

    def with_embeddings(self, ids: Mapping[str, tuple[int, ...]]) -> T5Tower:
        """Return the tower that reads embeddings, whose ids are given by placeholder."""
        return replace(self, tokenizer=self.tokenizer.with_embeddings(ids))

    def embedding_states(self, forward: Callable[..., Any], placeholder: str) -> torch.Tensor:
        """Return the states (N, D) at the places of an embedding, in a prompt of it alone, in float32."""
        [states_LD] = self.encode(forward, [placeholder])
        return states_LD[: len(self.tokenizer.embeddings[placeholder])].float().clone()

    def _encode(self, forward: Callable[..., Any], prompts: Sequence[str]) -> list[torch.Tensor]:
        ids = [self.tokenizer.read(prompt, self.max_tokens) for prompt in prompts]
        kept = [self._num_kept(len(one)) for one in ids]
        # Masked padding changes no other state, so none of it is read that no prompt keeps.
        num_read = max(kept) if self.masks_padding else self.max_tokens
        device, pad = next(self.encoder.parameters()).device, self.tokenizer.pad_id
        ids_BL = tensor_on([[*one, *[pad] * (num_read - len(one))] for one in ids], device, torch.long)
        masked = {"attention_mask": _mask([len(one) for one in ids], num_read, device)} if self.masks_padding else {}
        with self._attention(device):
            states_BLD: torch.Tensor = forward(input_ids=ids_BL, **masked).last_hidden_state
        embedding = self.encoder.get_input_embeddings()
        if isinstance(embedding, ExtendedEmbedding):
            states_BLD = embedding.with_outputs(ids_BL, states_BLD)
        return [states_LD[:num] for states_LD, num in zip(states_BLD, kept, strict=True)]

    def _attention(self, device: torch.device) -> AbstractContextManager[None]:
        """Return the context in which passes with and without gradients compute the same attention.

        On a CPU, the fused attention has no gradient for the position bias: with one, torch computes the plain formula.
        """
        biases = (p for name, p in self.encoder.named_parameters() if "relative_attention_bias" in name)
        is_plain = device.type == "cpu" and any(p.requires_grad for p in biases)
        return sdpa_kernel(SDPBackend.MATH) if is_plain else nullcontext()

    def _num_kept(self, num_tokens: int) -> int:
        """Return the number of states of a prompt with this many tokens, including its kept padding."""
        padding = self.max_tokens if self.kept_padding is None else self.kept_padding
        return min(num_tokens + padding, self.max_tokens)


def _mask(lengths: Sequence[int], longest: int, device: torch.device) -> torch.Tensor:
    return tensor_on([[1] * length + [0] * (longest - length) for length in lengths], device, torch.long)
