"""Prompts to the token ids of T5 (Raffel et al. 2020): as in transformers' `T5Tokenizer`, with an end token.

A model's folder has the vocabulary as `tokenizer.json`, or only as sentencepiece's `spiece.model`. The program contains
none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from tokenizers import Encoding, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE, Unigram

from modules.data.captions.sources import split_at_placeholders
from modules.families.parts.tokenizer_file import read_tokenizer, whole_tokenizer
from modules.formats.sentencepiece_model import read_sentence_pieces
from modules.system.errors import DarkroomError

PAD_TOKEN, END_TOKEN, _UNKNOWN_TOKEN = "<pad>", "</s>", "<unk>"
_SPECIAL_OF_BYTES = (PAD_TOKEN, END_TOKEN, _UNKNOWN_TOKEN)
_UNKNOWN_ID = 2
_NUM_SENTINELS = 100  # <extra_id_0> to <extra_id_99>, behind the pieces, the last one first


@dataclass(frozen=True)
class T5Tokenizer:
    """The tokenizer of a T5 with the ids of its end and padding tokens.

    `embeddings` are the ids of embeddings by placeholder; they are negative (`token_rows`). `is_lower_case`: all text
    is read in lower case.
    """

    tokenizer: Tokenizer
    end_id: int
    pad_id: int
    is_lower_case: bool = False
    embeddings: Mapping[str, tuple[int, ...]] = field(default_factory=dict, hash=False)

    def read(self, prompt: str, max_tokens: int) -> list[int]:
        """Return the ids of a prompt with the end token, at most `max_tokens`: what is beyond is left out."""
        return [*self.ids(prompt)[: max_tokens - 1], self.end_id]

    def with_embeddings(self, embeddings: Mapping[str, tuple[int, ...]]) -> T5Tokenizer:
        """Return the tokenizer with these embeddings: their negative ids by placeholder."""
        return replace(self, embeddings=dict(embeddings))

    def ids(self, text: str) -> list[int]:
        """Return the ids of a text's tokens, without the end token."""
        ids: list[int] = []
        for piece, placeholder in split_at_placeholders(text, self.embeddings):
            if placeholder is None:
                ids += self._encoding(piece).ids
            else:
                ids += self.embeddings[placeholder]
        return ids

    def count(self, prompt: str) -> int:
        """Return the number of tokens of a prompt, without the end token."""
        return len(self.ids(prompt))

    def beyond(self, prompt: str, num_tokens: int) -> str:
        """Return the rest of a prompt after its first `num_tokens` tokens, as it is written."""
        offsets = self._encoding(prompt).offsets
        return prompt[offsets[num_tokens][0] :].lstrip() if len(offsets) > num_tokens else ""

    def identity(self) -> str:
        """Return a fingerprint of everything that affects the ids of a prompt."""
        return _identity(self)

    def _encoding(self, text: str) -> Encoding:
        return self.tokenizer.encode(text.lower() if self.is_lower_case else text, add_special_tokens=False)


def load_t5_tokenizer(folder: Path | None) -> T5Tokenizer:
    """Return the tokenizer in a model's tokenizer folder. Raises DarkroomError if it is missing or damaged."""
    tokenizer = read_tokenizer(folder, _tokenizer_in)
    if tokenizer is None:
        where = folder.name if folder is not None else "tokenizer"
        raise DarkroomError(
            f"The model has no tokenizer for T5: {where} contains neither tokenizer.json nor spiece.model.",
            advice="Download it again, as a diffusers folder or repository.",
        )
    end_id, pad_id = (tokenizer.token_to_id(token) for token in (END_TOKEN, PAD_TOKEN))
    if end_id is None or pad_id is None:
        raise DarkroomError(
            f"The tokenizer in {folder} is not T5's: it has no {END_TOKEN if end_id is None else PAD_TOKEN}.",
            advice="Download the model again.",
        )
    return T5Tokenizer(tokenizer, end_id, pad_id)


def byte_tokenizer() -> T5Tokenizer:
    """Return the tokenizer of a ByT5, which has an id for each byte behind the three special ones (Xue et al. 2022)."""
    letters = _letters_of_bytes()
    tokenizer = Tokenizer(BPE({**dict(zip(_SPECIAL_OF_BYTES, range(3), strict=True)), **letters}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return T5Tokenizer(tokenizer, end_id=1, pad_id=0)


def _letters_of_bytes() -> dict[str, int]:
    """Return the ids of the letters by which byte-level tokenizers stand for bytes: their own, or one beyond a byte."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in visible]
    letters = {**{byte: byte for byte in visible}, **{byte: 256 + index for index, byte in enumerate(others)}}
    return {chr(letter): byte + len(_SPECIAL_OF_BYTES) for byte, letter in letters.items()}


def load_lower_case_t5_tokenizer(folder: Path | None) -> T5Tokenizer:
    """Return the tokenizer of a model that reads all text in lower case; raises as `load_t5_tokenizer` does."""
    return replace(load_t5_tokenizer(folder), is_lower_case=True)


def _tokenizer_in(folder: Path) -> Tokenizer | None:
    if (whole := whole_tokenizer(folder)) is not None:
        return whole
    pieces = folder / "spiece.model"
    return _tokenizer_of_pieces(pieces) if pieces.is_file() else None


def _tokenizer_of_pieces(file: Path) -> Tokenizer:
    """Return the tokenizer of a sentencepiece model, as transformers' `T5Converter` builds it."""
    vocabulary = read_sentence_pieces(file)
    sentinels = [f"<extra_id_{index}>" for index in range(_NUM_SENTINELS - 1, -1, -1)]
    tokenizer = Tokenizer(Unigram([*vocabulary.pieces, *((name, 0.0) for name in sentinels)], _UNKNOWN_ID, False))
    if vocabulary.normalization:
        tokenizer.normalizer = normalizers.Precompiled(vocabulary.normalization)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")]
    )
    special = [PAD_TOKEN, END_TOKEN, _UNKNOWN_TOKEN, *sentinels]
    tokenizer.add_special_tokens([token for token in special if tokenizer.token_to_id(token) is not None])
    return tokenizer


@lru_cache(maxsize=8)
def _identity(tokenizer: T5Tokenizer) -> str:
    facts = f"{tokenizer.tokenizer.to_str()}|{tokenizer.end_id}|{tokenizer.pad_id}"
    if tokenizer.is_lower_case:
        facts += "|lower case"
    if tokenizer.embeddings:
        facts += f"|{sorted(tokenizer.embeddings.items())}"
    return hashlib.blake2b(facts.encode(), digest_size=16).hexdigest()
