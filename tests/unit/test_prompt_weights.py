"""Weights in prompts: what is read, and that plain prompts keep their tokens."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from modules.families.parts.clip_tokens import load_clip_tokenizer
from modules.families.parts.prompt_weights import weighted_texts, without_weights


@pytest.mark.parametrize(
    ("prompt", "pieces"),
    [
        ("a cat", [("a cat", 1)]),
        ("", []),
        ("a (cat:1.2) b", [("a ", 1), ("cat", 1.2), (" b", 1)]),
        ("a (cat: .5 )", [("a ", 1), ("cat", 0.5)]),
        ("(a) [b]", [("a", 1.1), (" ", 1), ("b", 1 / 1.1)]),
        ("((a))", [("a", 1.21)]),
        ("(b (c:2) d:0.5)", [("b ", 0.5), ("c", 1), (" d", 0.5)]),
        (r"\(a\) \[b\]", [("(a) [b]", 1)]),
        ("time 10:30, (a:b)", [("time 10:30, ", 1), ("a:b", 1.1)]),
        ("(a:1.5", [("(a:1.5", 1)]),
        ("a ]) b:1.5)", [("a ]) b:1.5)", 1)]),
    ],
)
def test_weights_are_read(prompt: str, pieces: list[tuple[str, float]]) -> None:
    found = weighted_texts(prompt)
    assert [p.text for p in found] == [text for text, _ in pieces]
    assert [p.weight for p in found] == pytest.approx([weight for _, weight in pieces])
    assert without_weights(prompt) == "".join(text for text, _ in pieces)


@given(prompt=st.text("ab()[]:\\.12 ,", max_size=40))
def test_any_prompt_is_read(prompt: str) -> None:
    assert all(p.text for p in weighted_texts(prompt))
    assert len(without_weights(prompt)) <= len(prompt)


def test_tokens_have_the_weight_of_their_piece() -> None:
    tokenizer = load_clip_tokenizer(None)
    plain = " ".join(["cat"] * 70)
    assert tokenizer.weighted_chunks(plain) == [(tokenizer.chunks(plain)[0], [1.0] * 77)]
    first, second = tokenizer.weighted_chunks(f"{plain} (dog dog dog dog dog dog:1.5) cat")
    assert [ids for ids, _ in (first, second)] == tokenizer.chunks(f"{plain} dog dog dog dog dog dog cat")
    assert first[1] == [1.0] * 71 + [1.5] * 5 + [1.0]
    assert second[1] == [1.0, 1.5] + [1.0] * 75
    assert tokenizer.weighted_chunks("") == [(tokenizer.chunks("")[0], [1.0] * 77)]


@given(st.text(st.one_of(st.characters(max_codepoint=127), st.sampled_from("é 　ｆ<|>'s12")), max_size=60))
@example("<|endoftext|> it's 12,  don't")
def test_tokens_counted_word_by_word_are_those_of_the_text(text: str) -> None:
    """A check counts a million captions so, many of which have the same words."""
    tokenizer = load_clip_tokenizer(None)
    assert tokenizer.count(text) == len(tokenizer.ids(text))
    if text.isascii():
        assert tokenizer.count(text) <= len(text), "so short captions need not be counted"
