"""A tokenizer of letters and a few words for T5, which models with random weights need: the program ships none."""

from __future__ import annotations

import json
import string
from pathlib import Path

from transformers import T5Tokenizer

WORDS = ("▁a", "▁disc", "▁red", "ed", "ing", "▁of")
NUM_SENTINELS = 100


def pieces() -> list[tuple[str, float]]:
    """T5's special tokens, a few words, and every printable character."""
    letters = [*string.ascii_letters, *string.digits, *string.punctuation]
    scores = [*((word, -2.0) for word in WORDS), ("▁", -3.0), *((letter, -6.0) for letter in letters)]
    return [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *scores]


def write_t5_tokenizer(folder: Path) -> None:
    """Write the tokenizer in transformers' format, as a tokenizer.json."""
    sentinels = [(f"<extra_id_{index}>", 0.0) for index in range(NUM_SENTINELS - 1, -1, -1)]
    T5Tokenizer(vocab=[*pieces(), *sentinels]).save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "model_max_length": 512}))
