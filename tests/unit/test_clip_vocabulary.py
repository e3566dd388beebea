"""The bundled CLIP vocabulary gives the ids of transformers' CLIPTokenizer, and a damaged file is rejected."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import CLIPTokenizer

from modules.families.parts import clip_vocabulary as module
from modules.families.parts.clip_vocabulary import (
    END_TOKEN,
    START_TOKEN,
    build_clip_tokenizer,
    clip_merges,
    clip_vocabulary,
)

NASTY = [
    "",
    " ",
    "   leading and trailing   ",
    "a photo of a cat",
    "A PHOTO OF A CAT",
    "line one\nline two\r\n\tline three",
    "it's they're I'd you'll we've I'm can't 'tis rock'n'roll ''s",
    "IT'S 'S 'RE",
    "1234567890 3.14 1,000 ½ ² Ⅷ ٣",
    "snake_case-kebab.case/path\\back",
    "<|startoftext|>",
    "x<|endoftext|>y <|endoftext|>",
    "<|ENDOFTEXT|> <|startoftext",
    "((masterpiece:1.2)), [bad], {x|y}, <lora:zog:0.8>",
    "naïve café Ångström fiancée",
    "naïve café",
    "İstanbul ẞ straße ǅ ſ K",
    "写真 の 猫 고양이 кошка قطة חתול แมว",
    "😀🙂👩‍👩‍👧‍👦🏳️‍🌈 emoji😀inside",
    "\u200b zero\u200bwidth\u00a0nbsp\u2028line\u3000wide\u0085next",
    "\x00\x01\x7f\ufeff\ufffd",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𒀀 \U0010ffff",
    "a" * 500,
    "supercalifragilisticexpialidocious " * 20,
    "</w> a</w> Ġ ÿ Ā",
    "! \" # $ % & ' ( ) * + , - . / : ; < = > ? @ [ \\ ] ^ _ ` { | } ~",
]


@pytest.fixture(scope="module")
def ours() -> Tokenizer:
    return build_clip_tokenizer()


@pytest.fixture(scope="module")
def theirs() -> CLIPTokenizer:
    return CLIPTokenizer(vocab=clip_vocabulary(), merges=clip_merges())


def test_sizes_and_special_ids() -> None:
    vocabulary = clip_vocabulary()
    assert len(clip_merges()) == 48_894
    assert len(vocabulary) == 49_408
    assert sorted(vocabulary.values()) == list(range(49_408))
    assert (vocabulary["!"], vocabulary[START_TOKEN], vocabulary[END_TOKEN]) == (0, 49_406, 49_407)


def test_known_ids(ours: Tokenizer) -> None:
    assert ours.encode("a photo of a cat").ids == [49406, 320, 1125, 539, 320, 2368, 49407]


@pytest.mark.parametrize("text", NASTY)
def test_parity_on_nasty_strings(ours: Tokenizer, theirs: CLIPTokenizer, text: str) -> None:
    assert ours.encode(text).ids == theirs(text).input_ids


@given(text=st.text(max_size=80))
def test_parity_on_any_text(ours: Tokenizer, theirs: CLIPTokenizer, text: str) -> None:
    assert ours.encode(text).ids == theirs(text).input_ids


@given(words=st.lists(st.sampled_from([*NASTY, "cat", "'s", "<|", "|>", "7", "é", "\u0301", "ſ", " "]), max_size=6))
def test_parity_on_joined_pieces(ours: Tokenizer, theirs: CLIPTokenizer, words: list[str]) -> None:
    text = "".join(words)
    assert ours.encode(text).ids == theirs(text).input_ids


def test_callers_get_their_own_copies() -> None:
    clip_merges().clear()
    clip_vocabulary().clear()
    assert len(clip_merges()) == 48_894
    assert len(clip_vocabulary()) == 49_408


def test_damaged_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = tmp_path / "clip_merges.txt.gz"
    packed = bytearray(module._MERGES_FILE.read_bytes())
    packed[len(packed) // 2] ^= 1
    damaged.write_bytes(bytes(packed))
    monkeypatch.setattr(module, "_MERGES_FILE", damaged)
    with pytest.raises(ValueError, match="damaged"):
        build_clip_tokenizer()


def test_needs_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; from modules.families.parts.clip_vocabulary import build_clip_tokenizer; "
        "build_clip_tokenizer(); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'diffusers')))"
    )
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
