"""The shared base of flow models whose prompts a frozen language model reads as messages of a chat."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from modules.families.parts.chat_text import ChatReader
from modules.families.parts.conditioning import TokenConditioning
from modules.families.parts.text_model import FlowModel, Text


@dataclass(eq=False)
class ChatModel(FlowModel[Text], ABC):
    """A loaded flow model with the `reader` of its prompts. Its conditioning is a `TokenConditioning`."""

    text_class: ClassVar[type[Any]] = TokenConditioning

    reader: ChatReader

    def reaches(self, part: str, name: str) -> bool:
        """Return whether a denoising loss reaches a layer: the transformer's are reached, the text is not trained."""
        return part == self.spec.denoiser.name

    def encode_prompts(self, prompts: Sequence[str], padded_like: Sequence[str] = ()) -> Text:
        """Return the states of prompts. None depends on the others, so `padded_like` changes nothing."""
        text: Text = self.text_class.of(self.reader.encode(self._forward("text_encoder"), prompts))
        return text

    def text_identity(self) -> str:
        """Return everything but the weights that affects how a prompt is encoded."""
        return self.reader.identity()

    def count_tokens(self, prompt: str) -> int:
        """Return the number of tokens of a prompt, without the template."""
        return self.reader.tokenizer.count(prompt)
