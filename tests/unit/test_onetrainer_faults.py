"""Generated files of OneTrainer with faults: missing, unknown and double keys, any values, secrets, other encodings.

The files are those of `tests/builders/onetrainer_files.py`, in every version. Whatever is wrong with one, reading it
gives a config and plain sentences, never an exception.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.config.codec import LoadedConfig, as_text, decode, encode, load_file, save_file
from modules.config.imports.any_file import load_any
from modules.config.schema import Config
from modules.settings.edit import get_path
from tests.builders.mutations import without_some
from tests.builders.onetrainer_files import NEWEST, Tree, aged, files
from tests.unit.strategies import garbage, odd_texts
from tests.unit.test_codec import GROUPED, Grouping, assert_sound, holder_of, places

VERSIONS = range(NEWEST + 1)
_KEYS = st.text(min_size=1, max_size=12) | odd_texts


def some_files(version: int, every: int = 23) -> list[Tree]:
    """A few files of a version, of different model types and methods."""
    return [aged(tree, version) for _, tree in islice(files([version]), version, None, every)]


FILES: Mapping[int, list[Tree]] = {version: some_files(version) for version in VERSIONS}
LARGEST: Mapping[int, Tree] = {version: max(trees, key=lambda tree: len(str(tree))) for version, trees in FILES.items()}
ANY_FILE = st.sampled_from([tree for trees in FILES.values() for tree in trees])


def assert_told(loaded: LoadedConfig) -> None:
    """The config is valid and loads again, and each problem is a sentence without raw names of Python."""
    assert_sound(loaded)
    for problem in loaded.problems:
        assert problem.message.endswith((".", "?")), problem
        assert "Error" not in problem.message, problem


# -- missing keys


@GROUPED
@pytest.mark.parametrize("version", VERSIONS)
def test_each_key_of_each_version_may_be_missing(version: int, grouped: Grouping) -> None:
    """In OneTrainer itself a migration raised KeyError for a file that lacked a key of its time."""
    whole = LARGEST[version]
    for group in grouped([place for place in places(whole) if isinstance(place[-1], str)]):
        tree = deepcopy(whole)
        for place in group:
            del holder_of(tree, place)[place[-1]]
        assert isinstance(decode(tree).config, Config)


@given(tree=ANY_FILE, seed=st.integers(0, 2**32), share=st.floats(0, 1))
def test_any_keys_of_any_version_may_be_missing(tree: Tree, seed: int, share: float) -> None:
    rng = random.Random(seed)
    assert_told(decode(without_some(tree, rng, share)))


# -- unknown keys and any values


@given(data=st.data(), tree=ANY_FILE)
def test_any_values_anywhere_in_any_version(data: st.DataObject, tree: Tree) -> None:
    tree = deepcopy(tree)
    changes = data.draw(st.lists(st.tuples(st.sampled_from(places(tree)), garbage), min_size=1, max_size=6))
    for place, value in sorted(changes, key=lambda change: -len(change[0])):
        holder_of(tree, place)[place[-1]] = deepcopy(value)
    assert_told(decode(tree))


_WITHOUT_FUTURE = {"concept_stats", "scheduler_params"}  # statistics of images, and arguments of a class


@pytest.mark.parametrize("version", VERSIONS)
def test_keys_of_the_future_are_kept_and_reported(version: int) -> None:
    """At every place of a file where OneTrainer could add one."""
    whole = LARGEST[version]
    objects = [p for p in places(whole) if isinstance(value_at(whole, p), dict) and not {*p} & _WITHOUT_FUTURE]
    for place in [(), *objects]:
        tree = deepcopy(whole)
        value_at(tree, place)["from_the_future"] = "zogwort"
        loaded = decode(tree)
        assert "zogwort" in json.dumps(encode(loaded.config)), place
        if place in ((), ("optimizer",)):  # the parts of other types of models are only counted
            assert any("from_the_future" in p.message for p in loaded.problems), place
        assert decode(encode(loaded.config)).config == loaded.config, place


def value_at(tree: Any, place: tuple[Any, ...]) -> Any:
    """Return what is at a place of a tree."""
    for step in place:
        tree = tree[step]
    return tree


@pytest.mark.parametrize("stated", [*range(-1, NEWEST + 3), 99, 10**400, "7", 3.0, 7.5, "new", None, True, [], {}])
@pytest.mark.parametrize("version", [0, 5, NEWEST])
def test_any_version_may_be_stated(version: int, stated: Any) -> None:
    """Also a wrong one: keys older than it are migrated as well, and newer ones are read."""
    for tree in FILES[version][:3]:
        loaded = decode({**tree, "__version": stated})
        assert_told(loaded)
        assert loaded.was_migrated
        assert loaded.config.training.trains == decode(tree).config.training.trains


# -- secrets

_TOKEN = "hf_zogwort_secret"
_SECRETS: tuple[Tree, ...] = (
    {"secrets": {"huggingface_token": _TOKEN, "cloud": {"api_key": _TOKEN, "password": _TOKEN}}},
    {"huggingface_token": _TOKEN},
    {"cloud": {"enabled": True, "secrets": {"api_key": _TOKEN}, "api_key": _TOKEN, "host": _TOKEN, "run_id": "job1"}},
    {"sample": {"hf_token": _TOKEN}, "api_key": [_TOKEN, {"a": _TOKEN}]},
    {"tracker": {"token": _TOKEN, "wandb_token": _TOKEN, "smtp_passwd": _TOKEN}},
)


@pytest.mark.parametrize("secrets", _SECRETS, ids=lambda secrets: " ".join(secrets))
@pytest.mark.parametrize("version", VERSIONS)
def test_no_secret_of_a_file_is_stored_or_shown(version: int, secrets: Tree, tmp_path: Path) -> None:
    """Neither of the config nor of the lists next to it: not in our config, its files or the report."""
    tree = deepcopy(LARGEST[version]) | deepcopy(secrets)
    for name in ("concepts", "samples"):
        entries = tree.setdefault(name, [{"name": "a", "prompt": "a"}])
        entries[0] |= {"huggingface_token": _TOKEN, "text": {**entries[0].get("text", {}), "password": _TOKEN}}
    inside = decode(tree)
    for name, key in (("concepts", "concept_file_name"), ("samples", "sample_definition_file_name")):
        (tmp_path / f"{name}.json").write_text(json.dumps(tree.pop(name)))
        tree[key] = f"{name}.json"
    (tmp_path / "args.json").write_text(json.dumps(tree))
    (tmp_path / "secrets.json").write_text(json.dumps({"huggingface_token": _TOKEN}))
    for loaded in (inside, load_any(tmp_path / "args.json")):
        save_file(loaded.config, tmp_path / "saved" / "ours.json", confirmed=[tmp_path / "saved" / "concepts.json"])
        written = "".join(path.read_text() for path in (tmp_path / "saved").iterdir())
        for text in (written, as_text(loaded.config), str(loaded.config), *map(str, loaded.problems)):
            assert _TOKEN not in text, text[:200]
        assert any("secrets import" in str(p) for p in loaded.problems)


@pytest.mark.parametrize("cut", [0.2, 0.5, 0.9])
def test_a_broken_file_shows_no_secret_of_it(cut: float, tmp_path: Path) -> None:
    text = json.dumps({"__version": 11, "a": 1, "secrets": {"huggingface_token": _TOKEN}, "z": [1] * 30}, indent=1)
    for broken in (
        text[: int(len(text) * cut)],
        text.replace(f'"{_TOKEN}"', _TOKEN),
        text.replace(_TOKEN, f"{_TOKEN}\n"),
    ):
        (tmp_path / "args.json").write_text(broken)
        assert _TOKEN not in " ".join(map(str, load_any(tmp_path / "args.json").problems))


# -- the text of a file


def twice(tree: Tree) -> str:
    """Return a file in which each key of the root occurs twice; the last one counts."""
    pairs = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in tree.items()]
    first = [f"{json.dumps(key)}: [17]" for key in tree]
    return "{" + ", ".join([*first, *pairs]) + "}"


_SAME: Mapping[str, Callable[[Tree], bytes]] = {
    "byte order mark": lambda tree: json.dumps(tree).encode("utf-8-sig"),
    "CRLF": lambda tree: json.dumps(tree, indent=4).replace("\n", "\r\n").encode(),
    "CR": lambda tree: json.dumps(tree, indent=4).replace("\n", "\r").encode(),
    "not ASCII": lambda tree: json.dumps(tree, ensure_ascii=False).encode(),
    "double keys": lambda tree: twice(tree).encode(),
    "spaces around": lambda tree: f"\n\n {json.dumps(tree)} \n".encode(),
}


@pytest.mark.parametrize("written", _SAME)
@pytest.mark.parametrize("version", VERSIONS)
def test_the_same_file_in_other_words(version: int, written: str, tmp_path: Path) -> None:
    tree = {key: value for key, value in LARGEST[version].items() if key not in ("concepts", "samples")}
    (tmp_path / "args.json").write_bytes(_SAME[written](tree))
    loaded = load_file(tmp_path / "args.json")
    assert loaded.config == decode(tree).config
    assert any("occur twice" in p.message for p in loaded.problems) == (written == "double keys")


_UNREADABLE: Mapping[str, Callable[[Tree], bytes]] = {
    "UTF-16": lambda tree: json.dumps(tree).encode("utf-16"),
    "UTF-16 without a mark": lambda tree: json.dumps(tree).encode("utf-16-le"),
    "UTF-32": lambda tree: json.dumps(tree).encode("utf-32"),
    "latin 1": lambda tree: json.dumps({**tree, "save_filename_prefix": "é"}, ensure_ascii=False).encode("latin-1"),
    "a list": lambda tree: json.dumps([tree]).encode(),
    "a text": lambda tree: json.dumps(json.dumps(tree)).encode(),
    "two files": lambda tree: (json.dumps(tree) * 2).encode(),
    "a comma too many": lambda tree: json.dumps(tree).replace("}", ",}").encode(),
    "a comment": lambda tree: b"// mine\n" + json.dumps(tree).encode(),
    "zeros": lambda tree: bytes(len(json.dumps(tree))),
    "zeros at the end": lambda tree: json.dumps(tree).encode() + bytes(4096),
    "null": lambda tree: b"null",
    "a number": lambda tree: b"11",
    "true": lambda tree: b"true",
    "nothing": lambda tree: b"",
}


@pytest.mark.parametrize("written", _UNREADABLE)
def test_a_file_that_is_none_is_refused_with_a_sentence(written: str, tmp_path: Path) -> None:
    for version in (0, NEWEST):
        (tmp_path / "args.json").write_bytes(_UNREADABLE[written](LARGEST[version]))
        loaded = load_any(tmp_path / "args.json")
        assert loaded.config == Config()
        (problem,) = loaded.problems
        assert (problem.path, problem.severity) == ("", "error")
        assert problem.message.startswith(f"{tmp_path / 'args.json'} ")
        assert problem.message.endswith(".")


@given(data=st.data())
def test_a_file_may_end_anywhere(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    content = json.dumps(data.draw(ANY_FILE)).encode()
    path = tmp_path_factory.mktemp("cut") / "args.json"
    path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    loaded = load_any(path)
    assert loaded.config == Config()
    assert [p.severity for p in loaded.problems] == ["error"]


def numbers_in(tree: Tree) -> Iterator[tuple[Any, ...]]:
    """Yield the places of the numbers in a file."""
    return (p for p in places(tree) if isinstance(v := value_at(tree, p), int | float) and not isinstance(v, bool))


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999", "-0.0", "9" * 5000, "1e-400", '"inf"'])
@pytest.mark.parametrize("version", VERSIONS)
def test_numbers_that_are_none_or_huge(version: int, text: str, tmp_path: Path) -> None:
    """As JSON text: all numbers of a file at once, and what is read is written and read again."""
    tree = deepcopy(LARGEST[version])
    for place in [p for p in numbers_in(tree) if p[-1] != "__version"]:
        holder_of(tree, place)[place[-1]] = "@@"
    (tmp_path / "args.json").write_text(json.dumps(tree).replace('"@@"', text))
    loaded = load_file(tmp_path / "args.json")
    assert_told(loaded)
    learning_rate = get_path(loaded.config, "training.learning_rate")
    assert learning_rate == learning_rate >= 0
