"""Prompts to CLIP token ids, in chunks of 75 between a start and an end token.

Prompts longer than CLIP's 77 tokens are split into chunks. Each chunk is encoded on its own, and the states are
concatenated, as in A1111, Forge and kohya's trainers, so that prompts have the same meaning there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from modules.data.captions.sources import split_at_placeholders
from modules.families.parts.clip_vocabulary import END_TOKEN, START_TOKEN, build_clip_tokenizer
from modules.families.parts.part_classes import CLIP_CHUNK_TOKENS
from modules.families.parts.prompt_weights import weighted_texts
from modules.system.errors import DarkroomError
from modules.system.regular_files import read_json_object

OPEN_CLIP_PAD = "!"  # id 0: OpenCLIP pads with zeros
_MAX_TOKEN_CHARS = 100
_MAX_COUNTED_WORDS = 100_000


Token = tuple[int, float]
"""A token's id and its weight."""


@dataclass(frozen=True)
class ClipTokenizer:
    """A CLIP tokenizer with the ids of its start, end and padding tokens.

    `embeddings` are the ids of embeddings by placeholder. They are negative: no token of the vocabulary has such an id,
    and the encoders that take the pooled state from the largest id still find the end token.
    """

    tokenizer: Tokenizer
    start_id: int
    end_id: int
    pad_id: int
    embeddings: Mapping[str, tuple[int, ...]] = field(default_factory=dict, hash=False)

    def chunks(self, prompt: str) -> list[list[int]]:
        """Return the prompt's token ids in chunks of 77: start, up to 75 tokens, end, padding. At least one chunk."""
        return [list(chunk) for chunk in _chunks(self, prompt)]

    def weighted_chunks(self, prompt: str) -> list[tuple[list[int], list[float]]]:
        """Return the chunks of a prompt with weights (see `prompt_weights`), each with the weight of every token."""
        units = [(unit, piece.weight) for piece in weighted_texts(prompt) for unit in self._units(piece.text)]
        return [
            (
                self._with_start_and_end([i for i, _ in piece]),
                [1.0, *(weight for _, weight in piece), *[1.0] * (CLIP_CHUNK_TOKENS + 1 - len(piece))],
            )
            for piece in _pieces(units)
        ]

    def with_embeddings(self, embeddings: Mapping[str, tuple[int, ...]]) -> ClipTokenizer:
        """Return the tokenizer with these embeddings: their negative ids by placeholder."""
        return replace(self, embeddings=dict(embeddings))

    def ids(self, text: str) -> list[int]:
        """Return the ids of a text's tokens, without start, end and padding."""
        return [i for unit in self._units(text) for i in unit]

    def count(self, prompt: str) -> int:
        """Return the number of tokens of a prompt, without start, end and padding."""
        if self.embeddings or not (prompt.isascii() and prompt.isprintable()):
            return len(self.ids(prompt))
        return sum(map(self._count_of_word, prompt.split()))  # no token continues after a space

    def _count_of_word(self, word: str) -> int:
        count = self._counts_of_words.get(word)
        if count is None:
            count = len(self.ids(word))
            if len(self._counts_of_words) < _MAX_COUNTED_WORDS:
                self._counts_of_words[word] = count
        return count

    @cached_property
    def _counts_of_words(self) -> dict[str, int]:
        return {}

    def beyond(self, prompt: str, num_tokens: int) -> str:
        """Return the rest of a prompt after its first `num_tokens` tokens, as it is written."""
        offsets = self.tokenizer.encode(prompt, add_special_tokens=False).offsets
        return prompt[offsets[num_tokens][0] :] if len(offsets) > num_tokens else ""

    def identity(self) -> str:
        """Return a fingerprint of everything that affects the ids of a prompt."""
        return _identity(self)

    def _units(self, text: str) -> list[tuple[int, ...]]:
        """Return the ids of a text; an embedding's ids are together, so that they stay in one chunk."""
        units: list[tuple[int, ...]] = []
        for piece, placeholder in split_at_placeholders(text, self.embeddings):
            if placeholder is None:
                units += [(i,) for i in self.tokenizer.encode(piece, add_special_tokens=False).ids]
            else:
                units.append(self.embeddings[placeholder])
        return units

    def _with_start_and_end(self, piece: list[int]) -> list[int]:
        return [self.start_id, *piece, self.end_id, *[self.pad_id] * (CLIP_CHUNK_TOKENS - len(piece))]


# A step needs the same prompts several times, and the next epoch has the same ones again.
@lru_cache(maxsize=4096)
def _chunks(tokenizer: ClipTokenizer, prompt: str) -> tuple[tuple[int, ...], ...]:
    pieces = _pieces([(unit, 1.0) for unit in tokenizer._units(prompt)])
    return tuple(tuple(tokenizer._with_start_and_end([i for i, _ in piece])) for piece in pieces)


def _pieces(units: Sequence[tuple[tuple[int, ...], float]]) -> list[list[Token]]:
    """Return units of ids, each with its weight, in pieces of up to 75 tokens, at least one.

    A unit that does not fit in the rest of a piece begins the next one, as in A1111; one of more tokens is divided.
    """
    pieces: list[list[Token]] = [[]]
    for ids, weight in units:
        if len(pieces[-1]) + len(ids) > CLIP_CHUNK_TOKENS and len(ids) <= CLIP_CHUNK_TOKENS:
            pieces.append([])
        for i in ids:
            if len(pieces[-1]) == CLIP_CHUNK_TOKENS:
                pieces.append([])
            pieces[-1].append((i, weight))
    return pieces


def load_clip_tokenizer(folder: Path | None, *, usual_pad: str = END_TOKEN) -> ClipTokenizer:
    """Return the tokenizer of a model's tokenizer folder, or the bundled one if there is no such folder.

    The padding token is the folder's own, or `usual_pad` where it names none: the end token for OpenAI's CLIP, "!" for
    OpenCLIP's (SD 2.x and SDXL's second encoder). Raises DarkroomError if the folder's files are damaged.
    """
    if folder is not None and not folder.is_dir():
        folder = None
    try:
        tokenizer = _build_tokenizer(*(_read(folder) if folder is not None else (None, None)))
    except ValueError as error:
        raise DarkroomError(
            f"The tokenizer in {folder} is damaged: {error}.", advice="Download the model again."
        ) from error
    pad = (_pad_token(folder) if folder is not None else None) or usual_pad
    start_id, end_id, pad_id = (tokenizer.token_to_id(token) for token in (START_TOKEN, END_TOKEN, pad))
    assert start_id is not None  # build_clip_tokenizer adds both
    assert end_id is not None
    return ClipTokenizer(tokenizer, start_id, end_id, end_id if pad_id is None else pad_id)


# Building a tokenizer takes a tenth of a second, and each check of a config and each loaded model needs one or two.
# The key is the text of its files, so a changed file is read again; callers do not modify the returned tokenizer.
@lru_cache(maxsize=4)
def _build_tokenizer(vocabulary_json: str | None, merges_text: str | None) -> Tokenizer:
    """Return the tokenizer for the contents of a vocabulary and a merges file, or the bundled one."""
    if vocabulary_json is None or merges_text is None:
        return build_clip_tokenizer()
    try:
        vocabulary = json.loads(vocabulary_json)
    except (ValueError, RecursionError):
        return build_clip_tokenizer()
    pairs = [line.split(" ") for line in merges_text.split("\n") if line and not line.startswith("#version")]
    merges = [(p[0], p[1]) for p in pairs if len(p) == 2]
    _require_consistent(vocabulary, merges)
    return build_clip_tokenizer(vocabulary, merges)


def _require_consistent(vocabulary: Any, merges: list[tuple[str, str]]) -> None:
    """Raise ValueError if the library would fail: it needs an id for every token that merges combine."""
    if not isinstance(vocabulary, dict) or not all(type(n) is int and 0 <= n < 2**32 for n in vocabulary.values()):
        raise ValueError("vocab.json is not a list of tokens with their ids")
    unknown = next((t for a, b in merges for t in (a, b, a + b) if t not in vocabulary), None)
    if unknown is not None:
        raise ValueError(f"merges.txt combines {unknown[:40]!r}, which vocab.json does not contain")


@lru_cache(maxsize=8)
def _identity(tokenizer: ClipTokenizer) -> str:
    facts = (
        f"{tokenizer.tokenizer.to_str()}|{tokenizer.start_id}|{tokenizer.end_id}|{tokenizer.pad_id}|{CLIP_CHUNK_TOKENS}"
    )
    if tokenizer.embeddings:
        facts += f"|{sorted(tokenizer.embeddings.items())}"
    return hashlib.blake2b(facts.encode(), digest_size=16).hexdigest()


def _read(folder: Path) -> tuple[str | None, str | None]:
    try:
        return (folder / "vocab.json").read_text(encoding="utf-8"), (folder / "merges.txt").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None, None


def _pad_token(folder: Path) -> str | None:
    """Return the padding token of a folder, from the same file that transformers uses.

    Folders older than its `added_tokens_decoder` have it in special_tokens_map.json; SD 2's tokenizer_config.json has a
    different one.
    """
    config, special = (
        read_json_object(folder / f"{name}.json") or {} for name in ("tokenizer_config", "special_tokens_map")
    )
    for settings in (config, special) if "added_tokens_decoder" in config else (special, config):
        if pad := settings.get("pad_token"):
            return str(pad.get("content") if isinstance(pad, dict) else pad)[:_MAX_TOKEN_CHARS]
    return None
