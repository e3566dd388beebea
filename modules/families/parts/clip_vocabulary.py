"""The CLIP tokenizer from the bundled vocabulary: no network, no torch, no transformers.

The window counts tokens with it, and the families use it where a model's folder has no tokenizer. The merges are in
`vocabulary/clip_merges.txt.gz` next to this file (OpenAI CLIP, MIT; see the README there).
"""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

START_TOKEN = "<|startoftext|>"
END_TOKEN = "<|endoftext|>"

_MERGES_FILE = Path(__file__).parent / "vocabulary" / "clip_merges.txt.gz"
_MERGES_SHA256 = "5f6c91a3727038ae46523c18c13e3275d6713eea9fd2ccfeb5139351419ee21f"
_END_OF_WORD = "</w>"
# CLIP's own word pattern (openai/CLIP clip/simple_tokenizer.py), in the dialect of the tokenizers library.
_WORDS = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


def clip_merges() -> list[tuple[str, str]]:
    """Return CLIP's 48,894 byte-pair merges, best rank first.

    Raises ValueError when the sha256 of the bundled file is not the expected one: a damaged vocabulary would silently
    train a model on the wrong tokens.
    """
    return list(_read_merges(_MERGES_FILE))


def clip_vocabulary() -> dict[str, int]:
    """Return CLIP's 49,408 tokens and their ids: bytes, bytes that end a word, merges, start and end.

    Raises ValueError when the bundled file is damaged, as `clip_merges` does.
    """
    symbols = _byte_symbols()
    tokens = [*symbols, *(symbol + _END_OF_WORD for symbol in symbols)]
    tokens += [left + right for left, right in clip_merges()]
    tokens += [START_TOKEN, END_TOKEN]
    return {token: index for index, token in enumerate(tokens)}


def build_clip_tokenizer(
    vocabulary: dict[str, int] | None = None, merges: list[tuple[str, str]] | None = None
) -> Tokenizer:
    """Return a tokenizer with the same ids as transformers' CLIPTokenizer, start and end token included.

    It uses the bundled vocabulary and merges unless a model has its own. It neither pads nor truncates; that is the
    caller's task. Decoding leaves the `</w>` marks in, as the library's own decoder does. Raises
    ValueError when the bundled file is damaged, as `clip_merges` does.
    """
    vocabulary = vocabulary or clip_vocabulary()
    model = BPE(
        vocab=vocabulary,
        merges=merges or clip_merges(),
        continuing_subword_prefix="",
        end_of_word_suffix=_END_OF_WORD,
        fuse_unk=False,
        unk_token=END_TOKEN,
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.RobertaProcessing(
        (END_TOKEN, vocabulary[END_TOKEN]),
        (START_TOKEN, vocabulary[START_TOKEN]),
        trim_offsets=False,
        add_prefix_space=False,
    )
    tokenizer.add_special_tokens([START_TOKEN, END_TOKEN])
    return tokenizer


@cache
def _read_merges(path: Path) -> tuple[tuple[str, str], ...]:
    packed = path.read_bytes()
    sha256 = hashlib.sha256(packed).hexdigest()
    if sha256 != _MERGES_SHA256:
        raise ValueError(
            f"The CLIP vocabulary {path.name} is damaged: its sha256 is {sha256}, expected {_MERGES_SHA256}. "
            "Restore the file from the program's source."
        )
    merges = []
    for line in gzip.decompress(packed).decode("utf-8").rstrip("\n").split("\n"):
        left, right = line.split(" ")
        merges.append((left, right))
    return tuple(merges)


def _byte_symbols() -> list[str]:
    """Return one printable character per byte, in CLIP's order: printable bytes first, then the others.

    Radford et al. 2019 (GPT-2), `bytes_to_unicode`: the unprintable bytes move to U+0100 and up, in order.
    """
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    num_others = 256 - len(printable)
    return [chr(code) for code in printable] + [chr(256 + index) for index in range(num_others)]
