"""The token ids of a language model that reads prompts as messages of a chat (Qwen3, Qwen2.5-VL, Mistral)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from modules.families.parts.tokenizer_file import MAX_BYTES, read_tokenizer, whole_tokenizer
from modules.system.errors import DarkroomError
from modules.system.regular_files import read_regular

# How Qwen2's vocabulary divides a text into words before it is merged (transformers' `PRETOKENIZE_REGEX`).
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


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
        """Return the id of one of the vocabulary's tokens. Raises DarkroomError if it does not have it."""
        token_id: int | None = self.tokenizer.token_to_id(token)
        if token_id is None:
            raise DarkroomError(
                f"The model's tokenizer has no token {token}.", advice="It belongs to another model; download it again."
            )
        return token_id


def load_chat_tokenizer(folder: Path | None) -> ChatTokenizer:
    """Return the tokenizer of a model's folder. Raises DarkroomError if it is missing (the program has none) or
    damaged.
    """
    tokenizer = read_tokenizer(folder, _tokenizer_in)
    if tokenizer is None:
        raise DarkroomError(
            f"The model has no tokenizer: {folder.name if folder else 'tokenizer'}/tokenizer.json is missing.",
            advice="Download it again, as a diffusers folder or repository.",
        )
    return ChatTokenizer(tokenizer)


def _tokenizer_in(folder: Path) -> Tokenizer | None:
    if (whole := whole_tokenizer(folder)) is not None:
        return whole
    files = [folder / name for name in ("vocab.json", "merges.txt", "tokenizer_config.json")]
    return _qwen_tokenizer(*files) if all(file.is_file() for file in files) else None


def _qwen_tokenizer(vocabulary: Path, merges: Path, settings: Path) -> Tokenizer:
    """Return the tokenizer of a folder without tokenizer.json, as transformers' `Qwen2Tokenizer` builds it: Qwen-Image
    has one.
    """
    ids, config = (json.loads(read_regular(file, MAX_BYTES)) for file in (vocabulary, settings))
    lines = read_regular(merges, MAX_BYTES).decode("utf-8").splitlines()
    parted = [line.partition(" ") for line in lines if line and not line.startswith("#version")]
    pairs = [(left, right) for left, _, right in parted]
    tokenizer = Tokenizer(models.BPE(ids, pairs))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_WORDS), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    added = sorted((int(index), token) for index, token in config.get("added_tokens_decoder", {}).items())
    flags = ("special", "normalized", "lstrip", "rstrip", "single_word")
    tokenizer.add_tokens(
        [AddedToken(t["content"], **{flag: bool(t.get(flag, False)) for flag in flags}) for _, t in added]
    )
    if wrong := [token["content"] for index, token in added if tokenizer.token_to_id(token["content"]) != index]:
        raise ValueError(f"the id of {wrong[0]} is not behind the vocabulary's")
    return tokenizer
