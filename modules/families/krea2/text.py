"""The prompts of Krea 2: the states of several layers of Qwen3-VL's language model, in the template of Qwen-Image.

The template is a sentence of the system and one message of the user, with the beginning of an answer. The states of its
first part are cut off; its end is kept. diffusers' pipeline puts padding between the prompt and that end, masked, with
positions that do not count it: the states are those of the same tokens without it (`Krea2Pipeline`, 0.42).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from modules.families.krea2.spec import MAX_TOKENS
from modules.families.parts.chat_text import DESCRIBE_IMAGE, ChatReader
from modules.families.parts.chat_tokens import ChatTokenizer
from modules.system.errors import DarkroomError


def prompt_reader(encoder: Any, tokenizer: ChatTokenizer, layers: tuple[int, ...]) -> ChatReader:
    """Return how prompts are read. The part of the template that is cut off has 34 tokens in Qwen's vocabulary."""
    dropped = tokenizer.count(DESCRIBE_IMAGE.before)
    most = dropped + MAX_TOKENS
    return ChatReader(encoder, tokenizer, DESCRIBE_IMAGE, most, layers, dropped=dropped, keeps_end=True)


def read_layers(num_layers: int, num_read: int, given: Sequence[int] | None = None) -> tuple[int, ...]:
    """Return which of a text encoder's hidden states the transformer reads, as indices of `hidden_states`.

    `given` are those in the model's index (`text_encoder_select_layers`). Without them they are `num_read` of the
    encoder's `num_layers` at even distances: 2, 5, ..., 35 of 36. Raises DarkroomError for layers that it does not
    have.
    """
    step = num_layers // num_read
    layers = tuple(given) if given else tuple(range(step - 1, step * num_read, step)) if step else ()
    if len(layers) != num_read or not all(0 <= layer <= num_layers for layer in layers):
        raise DarkroomError(
            f"The text encoder has {num_layers} layers, of which the transformer cannot read {num_read}.",
            advice="Choose a base model whose text encoder is Krea 2's.",
        )
    return layers
