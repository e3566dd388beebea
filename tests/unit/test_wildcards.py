"""Wildcards in prompts: choices, files, seeds, and what stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.data.wildcards import expand
from modules.system.errors import DarkroomError


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "animals").mkdir()
    (tmp_path / "colour.txt").write_text("red\n\n# a comment\ngreen\n{dark|light} blue\n", encoding="utf-8")
    (tmp_path / "animals" / "cat.txt").write_text("\ufeffa __colour__ cat\n", encoding="utf-8")
    (tmp_path / "endless.txt").write_text("a __endless__\n", encoding="utf-8")
    return tmp_path


def test_the_same_seed_gives_the_same_text_and_other_seeds_all_others(files: Path) -> None:
    prompt = "{a|the} __colour__ {house|boat|{big|small} tree}"
    texts = {expand(prompt, seed=seed, folder=files).text for seed in range(400)}
    assert expand(prompt, seed=7, folder=files) == expand(prompt, seed=7, folder=files)
    colours, things = ("red", "green", "dark blue", "light blue"), ("house", "boat", "big tree", "small tree")
    assert texts == {f"{a} {c} {t}" for a in ("a", "the") for c in colours for t in things}
    inside = {expand("__animals/cat__", seed=seed, folder=files).text for seed in range(60)}
    assert inside == {f"a {colour} cat" for colour in colours}


def test_what_is_no_wildcard_stays_as_it_is(files: Path) -> None:
    plain = "a {photo} of (a house:1.2), __init__, snake_case__ __"
    found = expand(plain, seed=1, folder=files)
    assert found.text == plain
    assert found.missing == ("init",)
    assert expand("__colour__", seed=1).missing == ("colour",)
    assert expand("__../colour__", seed=1, folder=files / "animals").text == "__../colour__"


def test_a_file_without_an_end_is_an_error(files: Path) -> None:
    with pytest.raises(DarkroomError, match="more than 200 wildcards"):
        expand("__endless__", seed=1, folder=files)
