"""The operations on captions: each one, their order, and what holds for any caption."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.data.captions.operations import ORDER, CaptionRules, final_text, has_single_brace, resolve_wildcards
from modules.data.captions.rules import caption_rules, faults_of
from modules.data.captions.settings import CaptionChanges
from modules.data.captions.tags import CAPITALIZATIONS, SpecialTags
from modules.settings.field import records_of


def final(text: str, seed: int = 0, **rules: Any) -> str:
    return final_text(text, CaptionRules(**{"keep_count": 0, **rules}), random.Random(seed))


def share(holds: Callable[[str], bool], **rules: Any) -> float:
    """How often something holds for the final text of `a, b, c, d`."""
    return sum(holds(final("a, b, c, d", seed, **rules)) for seed in range(2000)) / 2000


def contains(tag: str, text: str) -> bool:
    return tag in text


# -- each operation


def test_nothing_is_on_by_default() -> None:
    text = "  a,b ,,c {d|e} ||| (f:1.2)\n"
    assert final(text) == text
    assert caption_rules(CaptionChanges()) == CaptionRules()
    assert final_text(text, caption_rules(CaptionChanges()), random.Random(0)) == text


def test_shuffling_keeps_the_first_tags() -> None:
    texts = {final("a, b, c, d, e", seed, shuffle=True, keep_count=2) for seed in range(100)}
    assert texts == {f"a, b, {x}, {y}, {z}" for x, y, z in ("cde", "ced", "dce", "dec", "ecd", "edc")}


def test_a_separator_keeps_tags_at_the_start_and_at_the_end() -> None:
    rules: dict[str, Any] = {"shuffle": True, "separator": "|||", "keep_count": 3}
    texts = {final("a, b ||| c, d ||| e", seed, **rules) for seed in range(40)}
    assert texts == {"a, b, c, d, e", "a, b, d, c, e"}
    assert final("a ||| b", separator="|||") == "a, b"  # the mark itself is never trained
    assert final("a, b, c", 3, **rules) == "a, b, c"  # without the mark the count holds


def test_tags_of_a_group_stay_together() -> None:
    texts = {final("a;;;b, c", seed, shuffle=True, group_separator=";;;") for seed in range(20)}
    assert texts == {"a, b, c", "c, a, b"}


def test_another_delimiter() -> None:
    assert final("one. two . three", delimiter=".", drop_probability=1.0, keep_count=2) == "one. two"
    texts = {final("a b c", seed, delimiter=" ", shuffle=True, keep_count=1) for seed in range(20)}
    assert texts == {"a b c", "a c b"}


def test_full_dropout_drops_all_free_tags_at_once() -> None:
    rules: dict[str, Any] = {"drop_mode": "full", "drop_probability": 0.3, "keep_count": 1}
    assert {final("a, b, c, d", seed, **rules) for seed in range(50)} == {"a", "a, b, c, d"}
    assert share(lambda t: t == "a", **rules) == pytest.approx(0.3, abs=0.04)


def test_random_dropout_drops_each_tag_on_its_own() -> None:
    rules: dict[str, Any] = {"drop_mode": "random", "drop_probability": 0.3, "keep_count": 1}
    assert share(lambda t: "a" in t, **rules) == 1
    for tag in "bcd":
        assert 1 - share(partial(contains, tag), **rules) == pytest.approx(0.3, abs=0.04)


def test_weighted_dropout_grows_to_the_last_tag() -> None:
    rules: dict[str, Any] = {"drop_mode": "random_weighted", "drop_probability": 0.8}
    for tag, expected in zip("abcd", (0.2, 0.4, 0.6, 0.8), strict=True):
        assert 1 - share(partial(contains, tag), **rules) == pytest.approx(expected, abs=0.04)


@pytest.mark.parametrize("mode", ["full", "random", "random_weighted"])
def test_special_tags(mode: str) -> None:
    text = "photograph, a cat, telephoto, hat \\(blue\\)"

    def left(special: SpecialTags) -> str:
        found = [
            final(text, seed, drop_mode=mode, drop_probability=1.0, special=special)
            for seed in range(20 if mode == "random_weighted" else 1)
        ]
        return min(found, key=len)

    assert left(SpecialTags("whitelist", ("a cat",))) == "a cat"
    assert left(SpecialTags("blacklist", ("a cat",))) == "photograph, telephoto, hat \\(blue\\)"
    assert left(SpecialTags("whitelist", ("photo.*",))) == ""
    assert left(SpecialTags("whitelist", ("photo.*",), is_regex=True)) == "photograph"
    assert left(SpecialTags("whitelist", (r"hat \(blue\)",), is_regex=True)) == "hat \\(blue\\)"


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("capslock", "AN OLD CAT, DON'T"), ("title", "An Old Cat, Don't"), ("first", "An old cat, Don't")],
)
def test_capitalization(mode: str, expected: str) -> None:
    rules: dict[str, Any] = {"capitalizations": (mode,), "capitalization_probability": 1.0}
    assert final("an old cat, don't", **rules) == expected
    assert final("an OLD cat, don't", lowercase_first=True, **rules) == expected
    assert final("an OLD cat", capitalization_probability=0.0, lowercase_first=True) == "an old cat"


def test_random_capitals() -> None:
    rules: dict[str, Any] = {"capitalizations": ("random",), "capitalization_probability": 1.0}
    texts = {final("an old cat", seed, **rules) for seed in range(50)}
    assert len(texts) > 40
    assert {t.lower() for t in texts} == {"an old cat"}


def test_capitalization_has_its_probability() -> None:
    rules: dict[str, Any] = {"capitalizations": ("capslock",), "capitalization_probability": 0.25}
    assert share(lambda t: "C" in t, **rules) == pytest.approx(0.25, abs=0.04)


def test_replacements_are_of_whole_words_and_in_order() -> None:
    rules = caption_rules(CaptionChanges(replacements="man => person\n\nperson => sks\\1 person\n cat =>\n"))
    assert final_text("a man, a woman, cat", rules, random.Random(0)) == "a sks\\1 person, a woman"


def test_the_trigger_word_is_in_every_caption_once() -> None:
    assert final("a cat", trigger_word="sks") == "sks, a cat"
    assert final("", trigger_word="sks") == "sks"
    assert final("a sks cat", trigger_word="sks") == "a sks cat"
    assert final("a sksy cat", trigger_word="sks") == "sks, a sksy cat"
    loud: dict[str, Any] = {"capitalizations": ("capslock",), "capitalization_probability": 1.0, "keep_count": 9}
    assert final("a sks cat, b", trigger_word="sks", **loud) == "a sks cat, B"
    assert final("a, sks cat, b", trigger_word="sks", drop_mode="full", drop_probability=1.0) == "sks cat"


@pytest.mark.parametrize(
    ("prefix", "suffix", "expected"),
    [
        ("photo of", "", "photo of a cat"),
        ("photo of ", " at night", "photo of a cat at night"),
        ("", ", masterpiece", "a cat, masterpiece"),
        ("best quality,", ".", "best quality, a cat."),
    ],
)
def test_prefix_and_suffix(prefix: str, suffix: str, expected: str) -> None:
    assert final("a cat", prefix=prefix, suffix=suffix) == expected


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("a cat, blurry, b", "a cat, b"),
        ("blurry, a cat", "a cat"),
        ("a cat,b,blurry", "a cat,b"),
        ("blurry", ""),
        ("a blurry cat, b", "a  cat, b"),
        ("a cat,, b", "a cat,, b"),  # nothing was replaced
    ],
)
def test_an_empty_replacement_or_option_leaves_no_empty_tag(text: str, changed: str) -> None:
    assert final(text, replacements=(("blurry", ""),)) == changed
    assert final(text.replace("blurry", "{|}"), wildcards=True) == changed
    sks = final(text, replacements=(("blurry", ""),), trigger_word="sks")
    assert sks == (f"sks, {changed}" if changed else "sks")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a {red|blue} car", False),
        ("a {red|{dark|light} blue} car", False),
        (r"a \{red car, 1\}", False),
        ("a {red|blue car", True),
        ("a {red|{blue} car", True),
        ("a red} car", True),
        (r"a {red|blue\} car", True),
        ("}{", True),
    ],
)
def test_a_brace_without_its_counterpart_is_found(text: str, expected: bool) -> None:
    assert has_single_brace(text) == expected


def test_wildcards() -> None:
    counts = Counter(final("a {red|blue|} car", seed, wildcards=True) for seed in range(900))
    assert counts.keys() == {"a red car", "a blue car", "a  car"}
    assert all(240 < n < 360 for n in counts.values())
    nested = {final("{a|{b|c} d}", seed, wildcards=True) for seed in range(60)}
    assert nested == {"a", "b d", "c d"}
    for text, plain in [(r"\{a\|b\}", "{a|b}"), ("a } b {", "a } b {"), ("{a", "{a"), ("{}", ""), ("{a}", "a")]:
        assert final(text, wildcards=True) == plain


# -- their order


def test_the_order() -> None:
    """Each operation acts on what the ones before it have made."""
    rules = CaptionRules(
        wildcards=True,
        replacements=(("red", "crimson, kept"),),
        drop_mode="full",
        drop_probability=1.0,
        special=SpecialTags("blacklist", ("kept",)),
        capitalizations=("capslock",),
        capitalization_probability=1.0,
        shuffle=True,
        trigger_word="sks",
        prefix="photo of",
        suffix=", end",
    )
    # The wildcard gives "red", the replacement two tags, the dropout takes one of them, the rest becomes capitals; the
    # kept tag stays first, the trigger word comes before it, and prefix and suffix around all of it.
    found = {final_text("{red}, b, c", rules, random.Random(seed)) for seed in range(20)}
    assert found == {"photo of sks, CRIMSON, B, C, end", "photo of sks, CRIMSON, C, B, end"}
    assert ORDER == (
        "wildcards",
        "replacements",
        "tag dropout",
        "capitalization",
        "shuffling",
        "trigger word",
        "prefix and suffix",
    )
    help_text = next(r.setting.help for r in records_of(CaptionChanges) if r.name == "choice")
    assert ", ".join(ORDER[:-1]) + f", {ORDER[-1]}." in help_text


# -- any caption

tags = st.lists(st.text("abcXYZ é1(){}|\\", min_size=1, max_size=6).map(str.strip).filter(bool), max_size=8)
numbers = st.integers(0, 2**32)
probabilities = st.sampled_from([0.0, 0.3, 1.0])


@given(tags=tags, keep=st.integers(0, 4), seed=numbers)
def test_shuffling_loses_and_doubles_no_tag(tags: list[str], keep: int, seed: int) -> None:
    left = final(",".join(tags), seed, shuffle=True, keep_count=keep)
    assert Counter(left.split(", ") if left else []) == Counter(tags)
    assert left.split(", ")[: min(keep, len(tags))] == (tags[:keep] if tags and keep else [])


@given(
    tags=tags,
    special=st.lists(st.sampled_from("abcX"), max_size=3).map(tuple),
    special_mode=st.sampled_from(["none", "blacklist", "whitelist"]),
    mode=st.sampled_from(["full", "random", "random_weighted"]),
    probability=probabilities,
    keep=st.integers(0, 4),
    seed=numbers,
)
def test_dropout_only_drops_what_it_may(
    tags: list[str], special: tuple[str, ...], special_mode: Any, mode: Any, probability: float, keep: int, seed: int
) -> None:
    listed = SpecialTags(special_mode, special)
    rules: dict[str, Any] = {"drop_mode": mode, "drop_probability": probability, "special": listed, "keep_count": keep}
    text = final(",".join(tags), seed, **rules)
    left = text.split(", ") if text else []
    assert left[: min(keep, len(tags))] == tags[:keep]
    remaining = iter(tags)
    assert all(tag in remaining for tag in left)  # in their order
    lost = Counter(tags) - Counter(left)
    assert all(listed.may_be_dropped(tag) for tag in lost)
    if probability == 0:
        assert left == tags
    if probability == 1 and mode != "random_weighted":
        assert left == tags[:keep] + [t for t in tags[keep:] if not listed.may_be_dropped(t)]


@given(tags=tags, modes=st.sets(st.sampled_from(CAPITALIZATIONS)), lower=st.booleans(), seed=numbers)
def test_capitalization_changes_nothing_else(tags: list[str], modes: Any, lower: bool, seed: int) -> None:
    rules: dict[str, Any] = {
        "capitalizations": tuple(sorted(modes)),
        "capitalization_probability": 0.5,
        "lowercase_first": lower,
    }
    assert final(",".join(tags), seed, **rules).casefold() == ", ".join(tags).casefold()


@given(text=st.text(max_size=40), seed=numbers, probability=probabilities, keep=st.integers(0, 3))
def test_the_same_seed_gives_the_same_text(text: str, seed: int, probability: float, keep: int) -> None:
    rules: dict[str, Any] = {
        "wildcards": True,
        "replacements": (("a", "b"),),
        "drop_mode": "random",
        "drop_probability": probability,
        "capitalizations": CAPITALIZATIONS,
        "capitalization_probability": probability,
        "shuffle": True,
        "keep_count": keep,
        "separator": "|",
        "group_separator": ";",
        "trigger_word": "sks",
        "prefix": "p",
        "suffix": "s",
    }
    found = final(text, seed, **rules)
    assert found == final(text, seed, **rules)
    assert "sks" in found


@given(text=st.text("ab{}|\\ ", max_size=30), seed=numbers)
def test_any_braces_are_resolved(text: str, seed: int) -> None:
    resolve_wildcards(text, random.Random(seed))


# -- from the settings


def test_lists_of_special_tags(tmp_path: Path) -> None:
    on = {"tag_dropout": True, "special_tags_mode": "whitelist"}
    file = tmp_path / "tags.csv"
    file.write_bytes("a cat\r\n\r\nété\r\n".encode("cp1252"))
    assert caption_rules(CaptionChanges(special_tags=" a, b b ,", **on)).special.tags == ("a", "b b")
    assert caption_rules(CaptionChanges(special_tags=str(file), **on)).special.tags == ("a cat", "été")
    assert caption_rules(CaptionChanges(special_tags="a", tag_dropout=True)).special.mode == "none"


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"randomize_capitalization": True, "capitalization_modes": "title, tiny"}, "capitalization_modes", "tiny"),
        ({"replacements": "a => b\nc"}, "replacements", "'c'"),
        ({"replacements": "=> b"}, "replacements", "old => new"),
        ({"special_tags": "(a"}, "special_tags", "regular expression"),
        ({"special_tags": "nowhere.txt"}, "special_tags", "No such file"),
    ],
)
def test_faults_of_the_settings_are_named(changes: dict[str, Any], field: str, words: str) -> None:
    on = {"tag_dropout": True, "special_tags_mode": "whitelist", "special_tags_regex": True}
    text = CaptionChanges(**{**on, **changes})
    ((path, message),) = faults_of(text)
    assert path == field
    assert words in message
    caption_rules(text)  # without them
