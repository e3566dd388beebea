"""Configs to and from files: no content raises, nothing is lost silently."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.config.codec import LoadedConfig, decode, encode, load_file, pack_lists, save_file
from modules.config.schema import Config
from modules.families.registry import FAMILIES
from modules.optim.optimizers.factored import Adafactor
from modules.settings.every import Every
from tests.builders.configs import laid_over
from tests.builders.for_each import for_each
from tests.unit.strategies import few, garbage, json_values, valid_configs

OURS = {"darkroom_version": 7}


def full_tree() -> dict[str, Any]:
    """Every key there is, with two entries in each list."""
    config = Config.model_validate(
        {
            "parts": {"unet": {}, "text_encoder": {}},
            "concepts": [{"path": "a"}, {"path": "b"}],
            "sampling": {"prompts": [{"prompt": "a"}, {"prompt": "b"}]},
            "training": {"schedule": {"name": "cosine"}},
            "embeddings": {"words": [{"placeholder": "<a>"}]},
            "reward": {"models": [{"kind": "hps"}]},
        }
    )
    return encode(config)


def places(tree: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where there is a value in a tree, objects and lists included."""
    keys = tree.keys() if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    return [*([place] if place else []), *(p for key in keys for p in places(tree[key], (*place, key)))]


def holder_of(tree: Any, place: tuple[Any, ...]) -> Any:
    for key in place[:-1]:
        tree = tree[key]
    return tree


PLACES = places(full_tree())


def assert_sound(loaded: LoadedConfig) -> None:
    """The config is valid and comes back from a file, whatever it was made from."""
    assert isinstance(loaded.config, Config)
    again = decode(encode(loaded.config))
    assert encode(again.config) == encode(loaded.config)
    assert again.problems == []
    for problem in loaded.problems:
        assert problem.message
        assert len(problem.message) < 500
        assert problem.severity in ("info", "warning", "error")


def write(folder: Path, content: bytes) -> Path:
    file = folder / "config.json"
    file.write_bytes(content)
    return file


# -- there and back


@few
@given(config=valid_configs())
def test_a_saved_config_loads_unchanged(tmp_path_factory: pytest.TempPathFactory, config: Config) -> None:
    file = tmp_path_factory.mktemp("saved") / "config.json"
    assert decode(encode(config)).config == config
    config = pack_lists(config)  # separate list files are tested in test_list_files
    save_file(config, file)
    loaded = load_file(file)
    assert loaded.config == config
    assert loaded.problems == []
    assert not loaded.was_migrated


def test_every_field_is_written_and_only_then_unknown_ones() -> None:
    assert encode(Config()).keys() == Config.model_fields.keys() - {"unknown", "remembered"}
    assert json.loads(json.dumps(encode(Config()))) == encode(Config())


def test_half_a_surrogate_pair_can_be_saved(tmp_path: Path) -> None:
    """JSON may hold one, UTF-8 may not; saving used to raise."""
    file = write(
        tmp_path, b'{"darkroom_version": 7, "general": {"notes": "\\ud83d!"}, "odd": ["\\udc00", "\\ud83c\\udfa8"]}'
    )
    config = load_file(file).config
    save_file(config, file)
    assert load_file(file).config == config
    assert config.general.notes == "\ud83d!"


# -- garbage


@given(raw=garbage)
def test_any_json_value_gives_a_config(raw: Any) -> None:
    assert_sound(decode(raw))


@given(place=st.sampled_from(PLACES), value=garbage)
def test_any_value_at_any_known_path(place: tuple[Any, ...], value: Any) -> None:
    tree = full_tree()
    holder_of(tree, place)[place[-1]] = value
    assert_sound(decode(tree))


@given(changes=st.lists(st.tuples(st.sampled_from(PLACES), garbage), min_size=2, max_size=8))
def test_many_wrong_values_at_once(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    tree = full_tree()
    for place, value in sorted(changes, key=lambda change: -len(change[0])):
        holder_of(tree, place)[place[-1]] = copy.deepcopy(value)
    assert_sound(decode(tree))


@given(gone=st.sets(st.sampled_from([p for p in PLACES if p[-1] != "name" or p[0] == "concepts"]), max_size=30))
def test_any_missing_keys_are_ordinary(gone: set[tuple[Any, ...]]) -> None:
    """Any but a variant's name, which decides the meaning of its siblings."""
    tree = full_tree()
    for place in sorted(gone, key=lambda p: (-len(p), [str(k) for k in p])):
        if isinstance(holder_of(tree, place), dict):
            del holder_of(tree, place)[place[-1]]
    loaded = decode(tree)
    assert_sound(loaded)
    assert loaded.problems == []


@pytest.mark.full
@for_each(FAMILIES)
def test_a_config_of_each_family_loads_without_any_of_its_keys(family: str) -> None:
    tree = encode(laid_over(Config(), {"model": {"family": family}}))
    for section in ("model", "parts", "data", "training", "sampling", "validation", "output"):
        for key in tree[section]:
            lacking = {**tree, section: {k: v for k, v in tree[section].items() if k != key}}
            assert not [p for p in decode(lacking).problems if p.severity == "error"], (section, key)


def apart(places: list[tuple[Any, ...]]) -> list[list[tuple[Any, ...]]]:
    """Groups of places of the same depth, so that none is within another; those of a group are far from each other."""
    by_depth = [[p for p in places if len(p) == depth] for depth in range(1, max(map(len, places)) + 1)]
    return [group[i :: len(group) // 8 + 1] for group in by_depth for i in range(len(group) // 8 + 1) if group[i:]]


def alone(places: list[tuple[Any, ...]]) -> list[list[tuple[Any, ...]]]:
    """A group of each place."""
    return [[place] for place in places]


Grouping = Callable[[list[tuple[Any, ...]]], list[list[tuple[Any, ...]]]]
# Places of a file that are changed at the same time, far from each other; in the full suite each alone.
GROUPED = pytest.mark.parametrize("grouped", [apart, pytest.param(alone, marks=pytest.mark.full)])


@for_each(apart([p for p in PLACES if isinstance(p[-1], str)]))
def test_null_is_accepted_everywhere(places: list[tuple[Any, ...]]) -> None:
    tree = full_tree()
    for place in places:
        holder_of(tree, place)[place[-1]] = None
    assert_sound(decode(tree))


@pytest.mark.full
@for_each([p for p in PLACES if isinstance(p[-1], str)], named=lambda p: ".".join(map(str, p)))
def test_null_is_accepted_everywhere_alone(place: tuple[Any, ...]) -> None:
    tree = full_tree()
    holder_of(tree, place)[place[-1]] = None
    assert_sound(decode(tree))


@GROUPED
@pytest.mark.daily(2)
@pytest.mark.parametrize("value", [10**400, -(10**400), float("nan"), float("inf"), "9" * 5000, [[]], {"a": {}}, True])
def test_odd_numbers_at_every_place(value: Any, grouped: Grouping) -> None:
    for places in grouped(PLACES):
        tree = full_tree()
        for place in places:
            holder_of(tree, place)[place[-1]] = copy.deepcopy(value)
        assert_sound(decode(tree))


@pytest.mark.parametrize("depth", [50, 150, 450, 900, 100_000])
def test_deep_nesting(tmp_path: Path, depth: int) -> None:
    """Depths that the parser accepts but a deep copy does not used to raise a RecursionError."""
    for opening, closing in (('{"a":', "}"), ("[", "]")):
        text = f'{{"darkroom_version": 7, "training": {{"epochs": 7}}, "odd": {opening * depth}1{closing * depth}}}'
        loaded = load_file(write(tmp_path, text.encode()))
        assert_sound(loaded)
        assert loaded.config.training.epochs == (7 if depth == 50 else 10)
        assert [p.severity for p in loaded.problems] == ["info" if depth == 50 else "error"]


@pytest.mark.parametrize("version", [0, -1, 2, 99, 10**400, "1", None, True, 1.5, [], {"a": 1}])
def test_any_version_of_ours(version: Any) -> None:
    """Version 0 used to raise KeyError."""
    loaded = decode({"darkroom_version": version, "training": {"epochs": 3}})
    assert_sound(loaded)
    assert loaded.config.training.epochs == 3


def test_a_newer_version_is_reported_and_its_settings_are_kept() -> None:
    loaded = decode({"darkroom_version": 8, "training": {"epochs": 3, "telepathy": 0.5}})
    assert "newer Darkroom" in loaded.problems[0].message
    assert loaded.config.training.epochs == 3
    assert loaded.config.unknown == {"training.telepathy": 0.5}


# -- files that are not configs


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b" ",
        b"null",
        b"[]",
        b"3",
        b'"text"',
        b'{"darkroom_version": 7, "training": {"epo',
        b"\xff\xfe{\x00}\x00",
        b"\x80\x81\x82",
        b"<html>",
        b"PK\x03\x04",
        b"\x00" * 100,
        b'{"a": 1} trailing',
        b"{'darkroom_version': 1}",
    ],
)
def test_a_file_without_a_config_gives_the_defaults_and_an_error(tmp_path: Path, content: bytes) -> None:
    loaded = load_file(write(tmp_path, content))
    assert loaded.config == Config()
    assert [p.severity for p in loaded.problems] == ["error"]
    assert loaded.problems[0].path == ""


def test_a_missing_file_a_folder_and_an_impossible_name(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path, tmp_path / ("x" * 300), tmp_path / "a\x00b"):
        loaded = load_file(path)
        assert loaded.config == Config()
        assert [p.severity for p in loaded.problems] == ["error"]


@given(text=st.text() | garbage.map(lambda v: json.dumps(v)), cut=st.integers(0, 200))
def test_any_text_and_any_piece_of_it(tmp_path_factory: pytest.TempPathFactory, text: str, cut: int) -> None:
    file = tmp_path_factory.getbasetemp() / "any.json"
    file.write_bytes(text.encode("utf-8", errors="surrogatepass")[:cut])
    assert_sound(load_file(file))


@few
@given(data=st.data())
def test_a_truncated_config_never_raises(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    whole = json.dumps(full_tree()).encode()
    file = tmp_path_factory.getbasetemp() / "truncated.json"
    file.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    loaded = load_file(file)
    assert loaded.config == Config()
    assert [p.severity for p in loaded.problems] == ["error"]


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    file = write(tmp_path, b'\xef\xbb\xbf{"darkroom_version": 7, "training": {"epochs": 3}}')
    assert load_file(file) == LoadedConfig(Config.model_validate({"training": {"epochs": 3}}))


def test_of_a_duplicate_key_the_last_one_counts(tmp_path: Path) -> None:
    file = write(
        tmp_path, b'{"darkroom_version": 7, "training": {"epochs": 3}, "training": {"epochs": 4, "epochs": 5}}'
    )
    loaded = load_file(file)
    assert loaded.config.training.epochs == 5
    (note,) = loaded.problems
    assert note.severity == "warning"
    assert "the last one counts: 'epochs', 'training'" in note.message


def test_the_schema_named_for_editors_stays_in_place(tmp_path: Path) -> None:
    loaded = decode({"$schema": "../docs/config.schema.json", "darkroom_version": 7})
    assert loaded.problems == []
    save_file(loaded.config, tmp_path / "a.json")
    assert next(iter(json.loads((tmp_path / "a.json").read_text()).items())) == (
        "$schema",
        "../docs/config.schema.json",
    )
    assert load_file(tmp_path / "a.json") == loaded


def test_missing_settings_come_from_the_config_below(tmp_path: Path) -> None:
    below = decode(
        {
            "darkroom_version": 7,
            "training": {"epochs": 77, "optimizer": {"name": "adafactor", "weight_decay": 0.5}},
            "adapter": {"rank": 8, "alpha": 4},
            "concepts": [{"name": "a"}, {"name": "b"}],
            "parts": {"unet": {"learning_rate": 0.1, "dtype": "bfloat16"}},
            "cloud": {"gpu": "A100"},
        }
    ).config
    above = {
        "darkroom_version": 7,
        "training": {"batch_size": 3, "optimizer": {"name": "adamw"}},
        "adapter": {"rank": 99},
        "concepts": [{"name": "c"}],
        "parts": {"unet": {"learning_rate": 0.2}},
        "cloud": {"name": "mine"},  # not a variant: settings below used to be lost; kept as unknown now
    }
    file = write(tmp_path, json.dumps(above).encode())
    config = load_file(file, over=below).config
    assert (config.training.epochs, config.training.batch_size) == (77, 3)
    assert (config.training.optimizer.name, config.training.optimizer.weight_decay) == ("adamw", 0.01)
    assert config.adapter.model_dump().items() >= {"rank": 99, "alpha": 4}.items()
    assert [c.name for c in config.concepts] == ["c"]
    assert (config.part("unet").learning_rate, config.part("unet").dtype) == (0.2, "bfloat16")
    assert config.unknown == {"cloud": {"name": "mine", "gpu": "A100"}}


CLOUD_AS_IT_WAS = {
    "enabled": False, "kind": "runpod", "file_sync": "scp", "remote_dir": "/workspace",
    "program_dir": "/workspace/OneTrainer", "hub_cache_dir": "/workspace/huggingface_cache", "install": True,
    "install_command": "", "update": True, "tensorboard_tunnel": True, "detach": False, "run_id": "job1",
    "create": False, "name": "OneTrainer", "offer": "", "gpu": "", "volume_gb": 100, "min_download_mbps": 0.0,
    "download_samples": True, "download_output": True, "download_saves": True, "download_backups": False,
    "download_tensorboard": False, "delete_workspace": False, "on_finish": "none", "on_error": "none",
    "on_detached_finish": "none", "on_detached_error": "none",
}  # fmt: skip


def test_a_saved_cloud_section_that_sets_nothing_leaves_no_trace() -> None:
    """Every config saved while the section existed contains all of it."""
    for cloud in (CLOUD_AS_IT_WAS, {}, {"enabled": False}):
        assert decode({"darkroom_version": 7, "cloud": cloud}) == LoadedConfig(Config())


@pytest.mark.parametrize(
    ("change", "severity"),
    [({"gpu": "A100"}, "info"), ({"enabled": True}, "warning"), ({"of_a_newer_version": 1}, "info")],
)
def test_a_saved_cloud_section_that_sets_something_is_kept_and_reported_once(
    tmp_path: Path, change: dict[str, Any], severity: str
) -> None:
    cloud = CLOUD_AS_IT_WAS | change
    loaded = decode({"darkroom_version": 7, "cloud": cloud, "unknown": {"odd": 1}})
    assert loaded.config.unknown == {"odd": 1, "cloud": cloud}
    assert [(p.path, p.severity) for p in loaded.problems] == [("cloud", severity)]
    save_file(loaded.config, tmp_path / "again.json")
    assert load_file(tmp_path / "again.json") == LoadedConfig(loaded.config)


def test_a_cloud_that_is_not_an_object_is_kept_like_any_unknown_key() -> None:
    assert decode({"darkroom_version": 7, "cloud": 5}).config.unknown == {"cloud": 5}
    assert decode({"darkroom_version": 7, "cloud": {"gpu": "A"}, "unknown": 5}).config.unknown == {
        "cloud": {"gpu": "A"}
    }


@few
@given(below=valid_configs(), raw=garbage)
def test_anything_may_be_laid_over_anything(below: Config, raw: Any) -> None:
    config = decode({"darkroom_version": 7, **raw} if isinstance(raw, dict) else raw, over=below).config
    assert encode(decode(encode(config)).config) == encode(config)


@few
@given(below=valid_configs(), above=valid_configs())
def test_a_whole_config_replaces_the_one_below(below: Config, above: Config) -> None:
    merged = decode(encode(above), over=below).config
    for name in set(Config.model_fields) - {"parts", "unknown", "remembered"}:
        assert getattr(merged, name) == getattr(above, name)


def test_only_a_number_of_thousands_of_digits_is_lost(tmp_path: Path) -> None:
    """Python refuses to read it, and the whole file with it."""
    file = write(tmp_path, b'{"darkroom_version": 7, "training": {"epochs": 7, "batch_size": ' + b"9" * 5000 + b"}}")
    loaded = load_file(file)
    assert loaded.config.training.epochs == 7
    assert [p.path for p in loaded.problems] == ["training.batch_size"]


# -- invalid values are reported, unknown keys are kept


def test_an_invalid_value_is_replaced_by_its_default_and_reported() -> None:
    loaded = decode({**OURS, "training": {"epochs": -3, "batch_size": 4}, "adapter": {"rank": "big"}})
    assert loaded.config.training.epochs == 10
    assert loaded.config.training.batch_size == 4
    assert loaded.config.adapter.rank == 16
    assert [(p.path, p.severity) for p in loaded.problems] == [
        ("training.epochs", "warning"),
        ("adapter.rank", "warning"),
    ]
    assert [p.message for p in loaded.problems] == [
        "-3 is not valid (it should be at least 1); the default, 10, is used instead.",
        "'big' is not valid (it should be a whole number); the default, 16, is used instead.",
    ]


def test_the_default_that_is_used_is_named_in_the_message() -> None:
    raw: dict[str, Any] = {
        "training": {"learning_rate": None, "optimizer": {"name": "adamw", "beta1": "x"}, "precision": 5},
        "data": {"resolution_px": [7], "latent_cache": "maybe"},
        "backup": {"every": "often", "save_every": 7},
    }
    messages = {p.path: p.message.partition(";")[2] for p in decode({**OURS, **raw}).problems}
    assert messages["training.learning_rate"] == " the default, 0.0001, is used instead."
    assert messages["training.optimizer.beta1"] == " the default, 0.9, is used instead."
    assert messages["training.precision"] == " the default, 'float32', is used instead."
    assert messages["data.latent_cache"] == " the default, true, is used instead."
    assert messages["backup.every"] == " the default, every 30 minutes, is used instead."
    assert messages["backup.save_every"] == " the default, never, is used instead."
    assert decode({**OURS, "adapter": 5}).problems[0].message.endswith("the default, 'lora', is used instead.")
    assert (
        decode({**OURS, "data": {"resolution_px": []}})
        .problems[0]
        .message.endswith("the default, 512, is used instead.")
    )


def test_only_the_invalid_entries_of_a_list_are_removed() -> None:
    loaded = decode(
        {
            **OURS,
            "concepts": [{"path": "a"}, 5, {"path": "b", "repeats": -1}, None, {"path": "c"}],
            "data": {"resolution_px": [512, "x", 768, 7]},
        }
    )
    assert [c.path for c in loaded.config.concepts] == ["a", "b", "c"]
    assert loaded.config.concepts[1].repeats == 1.0
    assert loaded.config.data.resolution_px == (512, 768)
    assert [p.path for p in loaded.problems] == [
        "data.resolution_px", "data.resolution_px", "concepts", "concepts.1.repeats", "concepts",
    ]  # fmt: skip


def test_a_list_without_valid_entries_becomes_the_default() -> None:
    assert decode({**OURS, "data": {"resolution_px": ["x", None]}}).config.data.resolution_px == (512,)
    assert decode({**OURS, "data": {"resolution_px": []}}).config.data.resolution_px == (512,)


def test_the_reason_is_that_of_the_entries_if_none_is_valid() -> None:
    """It was that the list should have an entry, which it has."""
    (problem,) = decode({**OURS, "data": {"resolution_px": [9]}}).problems
    assert "9 should have sides of at least 32" in problem.message
    assert problem.message.endswith("the default, 512, is used instead.")


def test_thousands_of_invalid_values_are_reported_one_by_one() -> None:
    """One validation for each of them used to take minutes, and comparing each with all others many seconds."""
    bad = [item for i in range(3000) for item in (5, {"repeats": -1, "kind": 3, "path": str(i)})]
    loaded = decode({**OURS, "concepts": bad})
    assert len(loaded.problems) == 9000
    assert len(loaded.config.concepts) == 3000
    paths = [p.path for p in loaded.problems if p.path != "concepts"]
    assert paths == [f"concepts.{i}.{name}" for i in range(3000) for name in ("kind", "repeats")]


@pytest.mark.parametrize(
    "bad", [{"n": 5, "unit": "weeks"}, {"n": -1, "unit": "epoch"}, {"n": None, "unit": 3}, "never", 5]
)
def test_a_number_and_its_unit_are_only_valid_together(bad: Any) -> None:
    """A backup every 5 "weeks" used to become no backup at all, though the message named the default."""
    loaded = decode({**OURS, "backup": {"every": bad, "keep": 9}})
    assert loaded.config.backup.every == Every(n=30, unit="minute")
    assert loaded.config.backup.keep == 9
    assert [p.path for p in loaded.problems] == ["backup.every"]


def test_no_field_but_a_period_has_its_keys() -> None:
    """The test above depends on this."""
    named = {str(p[-1]) for p in PLACES if isinstance(p[-1], str) and p[-1] in Every.model_fields}
    holders = [holder_of(full_tree(), p) for p in PLACES if p[-1] in named]
    assert all(holder.keys() == Every.model_fields.keys() for holder in holders)


def test_variants() -> None:
    assert decode(
        {**OURS, "training": {"optimizer": {"name": "adafactor", "weight_decay": 0.5}}}
    ).config.training.optimizer == Adafactor(weight_decay=0.5)
    partial = decode({**OURS, "training": {"optimizer": {"beta1": 0.5}}})
    assert partial.config.training.optimizer.name == "adamw"
    assert partial.problems == []
    unknown = decode({**OURS, "training": {"optimizer": {"name": "seven_league", "beta1": 0.5}, "epochs": 3}})
    assert unknown.config.training.optimizer.name == "adamw"
    assert [p.path for p in unknown.problems] == ["training.optimizer"]
    assert unknown.config.training.epochs == 3


UNKNOWN_PLACES = [
    (),
    ("general",),
    ("training",),
    ("training", "loss"),
    ("training", "optimizer"),
    ("training", "schedule"),
    ("parts", "unet"),
    ("parts", "unet", "stop_after"),
    ("concepts", 1),
    ("concepts", 0, "image"),
    ("embeddings", "words", 0),
    ("reward", "models", 0),
    ("sampling", "prompts", 0),
    ("sampling", "every"),
]


@pytest.mark.parametrize("place", UNKNOWN_PLACES, ids=lambda p: ".".join(map(str, p)) or "top")
def test_an_unknown_key_is_kept_by_its_path_and_reported_once(tmp_path: Path, place: tuple[Any, ...]) -> None:
    tree = full_tree()
    holder_of(tree, (*place, "x"))["telepathy"] = {"range": [1, 2]}
    path = ".".join(map(str, (*place, "telepathy")))
    loaded = decode(tree)
    assert loaded.config.unknown == {path: {"range": [1, 2]}}
    assert [(p.path, p.severity) for p in loaded.problems] == [(path, "info")]
    assert loaded.config.model_copy(update={"unknown": {}}) == decode(full_tree()).config
    file = tmp_path / "saved.json"
    save_file(loaded.config, file)
    assert load_file(file) == LoadedConfig(loaded.config)


@given(place=st.sampled_from(UNKNOWN_PLACES), key=st.text(max_size=8), value=json_values)
def test_any_unknown_key_with_any_value(place: tuple[Any, ...], key: str, value: Any) -> None:
    tree = full_tree()
    holder = holder_of(tree, (*place, key))
    is_known = key in holder or (not place and key in ("unknown", "darkroom_version"))
    holder.setdefault(key, value)
    loaded = decode(tree)
    assert_sound(loaded)
    if not is_known:
        assert loaded.config.unknown[".".join(map(str, (*place, key)))] == value


def test_unknown_itself_may_be_invalid() -> None:
    loaded = decode({**OURS, "unknown": [1, 2]})
    assert loaded.config.unknown == {}
    assert [p.path for p in loaded.problems] == ["unknown"]


# -- files that are replaced


def test_an_older_file_is_kept_and_ours_is_not(tmp_path: Path) -> None:
    file = write(tmp_path, b'{"__version": 11, "training_method": "LORA", "epochs": 3}')
    original = file.read_bytes()
    save_file(load_file(file).config, file)
    assert (tmp_path / "config.json.bak").read_bytes() == original
    save_file(Config(), file)
    assert (tmp_path / "config.json.bak").read_bytes() == original
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == ["config.json", "config.json.bak"]


def test_a_second_original_does_not_replace_the_first(tmp_path: Path) -> None:
    first = b'{"__version": 11, "epochs": 3}'
    second = b'{"__version": 11, "epochs": 4}'
    for content in (first, second, first):
        save_file(Config(), write(tmp_path, content))
    assert (tmp_path / "config.json.bak").read_bytes() == first
    assert (tmp_path / "config.json.bak2").read_bytes() == second
    assert not (tmp_path / "config.json.bak3").exists()


@pytest.mark.parametrize("content", [b"not JSON", b"[]", b'{"darkroom_version": 99}', b"\xff\xfe"])
def test_a_file_of_another_version_is_kept(tmp_path: Path, content: bytes) -> None:
    """The config of a newer Darkroom used to be overwritten without a trace."""
    save_file(Config(), write(tmp_path, content))
    assert (tmp_path / "config.json.bak").read_bytes() == content
    assert load_file(tmp_path / "config.json") == LoadedConfig(Config())


def test_saving_creates_a_missing_folder(tmp_path: Path) -> None:
    save_file(Config(), tmp_path / "a" / "b" / "config.json")
    assert load_file(tmp_path / "a" / "b" / "config.json").problems == []


_WORKFLOW = {"last_node_id": 9, "nodes": [{"id": 4, "type": "KSampler"}], "links": [], "version": 0.4}


@pytest.mark.parametrize(
    "raw",
    [
        _WORKFLOW,
        {"3": {"class_type": "KSampler", "inputs": {"seed": 5}}},
        {"_class_name": "UNet2DConditionModel", "sample_size": 64},
        {"model": "some-chat-model", "messages": [{"role": "user"}]},
        {"model": {"weights": "a.bin"}, "data": {}},
        {"unknown": {"a": 1}},
    ],
)
def test_a_file_in_which_nothing_is_a_setting_is_refused(raw: dict[str, Any]) -> None:
    """It used to give all defaults with a note for each of its keys."""
    for over in (None, Config.model_validate({"training": {"epochs": 7}})):
        loaded = decode(raw, over=over)
        assert [(p.path, p.severity) for p in loaded.problems] == [("", "error")]
        assert "nothing in it is a setting" in loaded.problems[0].message
        assert next(iter(raw)) in loaded.problems[0].message


@pytest.mark.parametrize(
    "raw", [{}, {"darkroom_version": 2}, {"training": {"epochs": "many"}}, {"concepts": [{"path": "a"}], "nodes": []}]
)
def test_a_file_with_one_setting_or_none_at_all_is_a_config(raw: dict[str, Any]) -> None:
    assert not [p for p in decode(raw).problems if p.severity == "error" and not p.path]
