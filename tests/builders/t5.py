"""A tiny random T5 encoder, with the tokenizer of the benchmarks."""

from __future__ import annotations

import struct

from transformers import T5Config, T5EncoderModel

from benchmarks.t5_tokenizer import NUM_SENTINELS, pieces, write_t5_tokenizer

__all__ = ["NUM_SENTINELS", "pieces", "sentencepiece_model", "tiny_t5", "write_t5_tokenizer"]


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
