"""The token ids of a language model that reads prompts as messages of a chat (Qwen3, Qwen2.5-VL, Mistral)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from modules.families.parts.tokenizer_file import read_tokenizer
from modules.system.errors import DarkroomError


@dataclass(frozen=True)
class ChatTokenizer:
    """The tokenizer of a language model; it knows the special tokens of its template where they are in a text."""

    tokenizer: Tokenizer

    def ids(self, text: str) -> list[int]:
        """Return the ids of a text's tokens."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def count(self, prompt: str) -> int:
        """Return the number of tokens of a prompt, without the template."""
        return len(self.ids(prompt))

    def beyond(self, prompt: str, num_tokens: int) -> str:
        """Return the rest of a prompt after its first tokens."""
        offsets = self.tokenizer.encode(prompt, add_special_tokens=False).offsets
        return prompt[offsets[num_tokens][0] :] if len(offsets) > num_tokens else ""

    def id_of(self, token: str) -> int:
        """Return the id of one of the vocabulary's tokens. Raises DarkroomError where it does not have it."""
        found: int | None = self.tokenizer.token_to_id(token)
        if found is None:
            raise DarkroomError(
                f"The model's tokenizer has no token {token}.", advice="It belongs to another model; download it again."
            )
        return found


def load_chat_tokenizer(folder: Path | None) -> ChatTokenizer:
    """Return the tokenizer of a model's folder. Raises DarkroomError where it is missing (the program has none) or
    damaged.
    """
    tokenizer = read_tokenizer(folder)
    if tokenizer is None:
        raise DarkroomError(
            "The model has no tokenizer: tokenizer/tokenizer.json is missing.",
            advice="Download it again, as a diffusers folder or repository.",
        )
    return ChatTokenizer(tokenizer)
