"""A tiny random T5 encoder, and a tokenizer of letters and a few words for it."""

from __future__ import annotations

import json
import string
import struct
from pathlib import Path

from transformers import T5Config, T5EncoderModel, T5Tokenizer

WORDS = ("▁a", "▁disc", "▁red", "ed", "ing", "▁of")
NUM_SENTINELS = 100


def pieces() -> list[tuple[str, float]]:
    """T5's special tokens, a few words, and every printable character."""
    letters = [*string.ascii_letters, *string.digits, *string.punctuation]
    scores = [*((word, -2.0) for word in WORDS), ("▁", -3.0), *((letter, -6.0) for letter in letters)]
    return [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *scores]


def tiny_t5(*, d_model: int = 24) -> T5EncoderModel:
    """An encoder as T5 v1.1's, with three gated layers, whose heads are together narrower than the model."""
    return T5EncoderModel(
        T5Config(
            vocab_size=len(pieces()) + NUM_SENTINELS + 4,  # T5's has more rows than its tokenizer, too
            d_model=d_model,
            d_kv=4,
            num_heads=4,
            d_ff=32,
            num_layers=3,
            feed_forward_proj="gated-gelu",
            tie_word_embeddings=False,
        )
    )


def write_t5_tokenizer(folder: Path) -> None:
    """Write the tokenizer in transformers' format, as a tokenizer.json."""
    sentinels = [(f"<extra_id_{index}>", 0.0) for index in range(NUM_SENTINELS - 1, -1, -1)]
    T5Tokenizer(vocab=[*pieces(), *sentinels]).save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "model_max_length": 512}))


def sentencepiece_model(
    vocabulary: list[tuple[str, float]], *, model_type: int = 1, normalization: bytes = b""
) -> bytes:
    """Return the bytes of a `spiece.model`: a protobuf message of pieces, of the trainer and of the normalizer."""
    message = b"".join(_field(1, _field(1, p.encode()) + b"\x15" + struct.pack("<f", s)) for p, s in vocabulary)
    return message + _field(2, b"\x18" + _varint(model_type)) + _field(3, _field(2, normalization))


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    low, high = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _varint(high) if high else bytes([low])
