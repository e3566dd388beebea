"""Vocabularies in tokenizer.json: a damaged one is refused by a sentence, and its padding and truncation are off."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from modules.families.parts.chat_tokens import load_chat_tokenizer
from modules.system.errors import DarkroomError
from tests.builders.z_image import write_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b'{"model": {"type": "BPE", "vocab": 3}}'])
def test_a_damaged_vocabulary_is_refused(folder: Path, content: bytes) -> None:
    (folder / "tokenizer.json").write_bytes(content)
    with pytest.raises(DarkroomError, match="is damaged"):
        load_chat_tokenizer(folder)


def test_a_file_that_is_too_large_is_not_read(folder: Path) -> None:
    with (folder / "tokenizer.json").open("r+b") as file:
        file.truncate(100_000_000)
    with pytest.raises(DarkroomError, match="larger than"):
        load_chat_tokenizer(folder)


def test_prompts_are_neither_truncated_nor_padded_by_the_file(folder: Path) -> None:
    """A tokenizer that was saved while it padded or truncated writes that into its file."""
    file = str(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(file)
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=6)
    tokenizer.save(file)
    assert [load_chat_tokenizer(folder).count(text) for text in ("ab", "a red disc")] == [2, 10]
