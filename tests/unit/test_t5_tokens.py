"""T5's tokenizer from a tokenizer.json and from a sentencepiece model: the ids are those of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import T5Tokenizer as TheirTokenizer

from modules.families.parts.t5_tokens import T5Tokenizer, load_t5_tokenizer
from modules.formats.sentencepiece_model import read_sentence_pieces
from modules.system.errors import DarkroomError
from tests.builders.t5 import pieces, sentencepiece_model, write_t5_tokenizer

PROMPTS = ["", "a disc", "  a red\n disc,  of   Zogs  ", "dripping <extra_id_3> ink </s>", "unknown: é 漢", "a" * 30]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("t5") / "tokenizer"
    write_t5_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> T5Tokenizer:
    return load_t5_tokenizer(folder)


def spiece(folder: Path, content: bytes) -> Path:
    folder.mkdir()
    (folder / "spiece.model").write_bytes(content)
    return folder


def test_ids_are_those_of_transformers(folder: Path, tokenizer: T5Tokenizer, tmp_path: Path) -> None:
    theirs = TheirTokenizer.from_pretrained(folder, local_files_only=True)
    of_pieces = load_t5_tokenizer(spiece(tmp_path / "tokenizer", sentencepiece_model(pieces())))
    for prompt in PROMPTS:
        expected = theirs(prompt, truncation=True, max_length=16).input_ids
        assert tokenizer.read(prompt, 16) == expected
        assert of_pieces.read(prompt, 16) == expected
    assert (tokenizer.pad_id, tokenizer.end_id) == (0, 1) == (of_pieces.pad_id, of_pieces.end_id)


def test_tokens_are_counted_without_the_end_and_the_rest_of_a_prompt_is_named(tokenizer: T5Tokenizer) -> None:
    assert tokenizer.count("") == 0
    assert tokenizer.count("a red disc") == 3
    assert tokenizer.beyond("a  red disc", 1) == "red disc"
    assert not tokenizer.beyond("a red disc", 3)


def test_an_embedding_has_its_own_ids(tokenizer: T5Tokenizer) -> None:
    with_word = tokenizer.with_embeddings({"<zog>": (-1, -2)})
    assert with_word.read("a <ZOG> disc", 16) == [*tokenizer.ids("a"), -1, -2, *tokenizer.ids("disc"), 1]
    assert with_word.identity() != tokenizer.identity()


def test_a_sentencepiece_model_is_read(tmp_path: Path) -> None:
    file = tmp_path / "spiece.model"
    file.write_bytes(sentencepiece_model([("▁é", -1.5), ("</s>", 0.0)], normalization=b"table"))
    read = read_sentence_pieces(file)
    assert read.pieces == (("▁é", -1.5), ("</s>", 0.0))
    assert read.normalization == b"table"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "damaged: no pieces"),
        (b"\xff" * 40, "damaged: a number without an end"),
        (sentencepiece_model(pieces())[:200], "damaged: a field of a wrong type or length"),
        (sentencepiece_model(pieces(), model_type=2), "damaged: not a unigram model"),
        (sentencepiece_model([("<pad>", 0.0), ("a", 0.0), ("b", 0.0)]), "is not T5's: it has no </s>"),
    ],
    ids=["empty", "no numbers", "cut", "of pairs", "of another model"],
)
def test_a_damaged_vocabulary_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(DarkroomError, match=message):
        load_t5_tokenizer(spiece(tmp_path / "tokenizer", content))


def test_a_model_without_a_vocabulary_is_refused(tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        with pytest.raises(DarkroomError, match="no tokenizer for T5"):
            load_t5_tokenizer(folder)
