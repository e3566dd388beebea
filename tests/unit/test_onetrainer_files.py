"""Generated files of OneTrainer: every model type, method and version, with all keys and their values.

Of the 601 historic files few are here; these stand for them (`tests/builders/onetrainer_files.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from modules.config.codec import LoadedConfig, decode, encode, load_file, save_file
from modules.config.migrations.tree_moves import THEIR_DEFAULTS
from modules.config.schema import Config
from tests.builders.for_each import for_each
from tests.builders.onetrainer_files import METHODS, MODEL_TYPES, NEWEST, PART_KEYS, VALUES, Tree, aged, files, since
from tests.unit.test_onetrainer_homes import BESIDE, MEANINGLESS, WITHOUT_PART

_EVERY = 6  # of so many files one is read daily


def known(config: Config) -> Config:
    """A config without what it keeps of keys that have no effect."""
    return config.model_copy(update={"unknown": {}})


def assert_plain(name: str, loaded: LoadedConfig) -> None:
    """The report has no errors, and no names of ours for what the file has."""
    for problem in loaded.problems:
        assert problem.severity != "error", (name, problem)
        assert "This setting is unknown" not in problem.message, (name, problem)
        assert problem.message.endswith((".", "?")), (name, problem)


def check_versions(version: int, folder: Path, *, every: int) -> int:
    """Read files of a version in their old and new form, saved and with lists in files of their own; count them."""
    count = 0
    for name, tree in islice(files([version]), version % every, None, every):
        old, new = aged(tree, version), decode(tree)
        read = decode(old)
        assert_plain(name, new)
        assert_plain(name, read)
        assert known(read.config) == known(new.config), name
        save_file(read.config, folder / "ours.json")
        assert load_file(folder / "ours.json") == LoadedConfig(read.config), name
        for kind in ("concept", "sample"):
            if lists := old.pop(f"{kind}s", None):
                (folder / f"{kind}s.json").write_text(json.dumps(lists))
                old["sample_definition_file_name" if kind == "sample" else "concept_file_name"] = f"{kind}s.json"
        (folder / "theirs.json").write_text(json.dumps(old))
        apart = load_file(folder / "theirs.json").config
        assert apart.concepts == read.config.concepts, name
        assert apart.sampling.prompts == read.config.sampling.prompts, name
        count += 1
    return count


@pytest.mark.parametrize("version", range(NEWEST + 1))
def test_a_file_means_the_same_in_every_version(version: int, tmp_path: Path) -> None:
    assert check_versions(version, tmp_path, every=_EVERY) >= len(MODEL_TYPES) * len(METHODS) // _EVERY


@pytest.mark.full
@pytest.mark.parametrize("version", range(NEWEST + 1))
def test_all_files_mean_the_same_in_every_version(version: int, tmp_path: Path) -> None:
    assert check_versions(version, tmp_path, every=1) == len(MODEL_TYPES) * len(METHODS)


# -- every value of every key

# Values that mean the default: TF32 is a compute mode, 0 and 30 epochs are defaults of parts, null is the usual length.
_SAME: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("weight_dtype", "output_dtype"), ("TFLOAT_32",)),
    **dict.fromkeys(("text_encoder_sequence_length", "text_encoder_2_sequence_length"), (None,)),
    "stop_training_after": (0, 30),
}
_OF_TRAINED_PARTS = {*PART_KEYS[2], "train_embedding", *PART_KEYS[NEWEST]} - {"model_name"}


@pytest.mark.daily(6)
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_value_is_carried_over_or_named(model_type: str) -> None:
    method = METHODS[MODEL_TYPES.index(model_type) % len(METHODS)]
    assert lost_values(model_type, method, all_values=False) == []


@pytest.mark.full
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_all_values_are_carried_over_or_named(model_type: str, method: str) -> None:
    assert lost_values(model_type, method, all_values=True) == []


def lost_values(model_type: str, method: str, *, all_values: bool) -> list[str]:
    """Return the values that neither change the config nor are named in the report of a complete file."""
    family = decode({"__version": NEWEST, "model_type": model_type}).config.family
    keys = since(VALUES, NEWEST)
    file: Tree = {"__version": NEWEST, **{key: values[0] for key, values in keys.items()}}
    file |= {"model_type": model_type, "training_method": method, **{part.name: {} for part in family.parts}}
    lost = [
        f"{key} = {value}"
        for key, values in keys.items()
        for value in _tried(key, values, all_values=all_values)
        if ("top", key) not in MEANINGLESS and not is_carried(file, "", key, value)
    ]
    trained = {part.name for part in family.trainable_parts}
    for part in family.parts:
        if (family.name, part.name) in WITHOUT_PART:
            continue
        lost += [
            f"{part.name}.{key} = {value}"
            for key, values in since(PART_KEYS, NEWEST).items()
            for value in _tried(key, values, all_values=all_values)
            if (part.name in trained or key not in _OF_TRAINED_PARTS) and not is_carried(file, part.name, key, value)
        ]
    return lost


def _tried(key: str, values: Sequence[Any], *, all_values: bool) -> list[Any]:
    return [value for value in values[1 : None if all_values else 2] if value not in _SAME.get(key, ())]


def is_carried(file: Tree, place: str, key: str, value: Any) -> bool:
    """Return whether a value, at the top of a file or in a part, changes the config, or is kept and named."""
    beside = BESIDE.get(key, {})
    if key == "stop_training_after_unit":
        beside = {"stop_training_after": 7, key: "NEVER"}
    inner = {**file[place], **beside} if place else {}
    base = {**file, place: inner} if place else {**file, **beside}
    changed = {**file, place: {**inner, key: value}} if place else {**base, key: value}
    before, after = decode(base), decode(changed)
    if known(before.config) != known(after.config):
        return True
    names = " ".join(f"{problem.message} {problem.advice}" for problem in after.problems)
    return key in names and before.config.unknown != after.config.unknown


# -- invalid values


@for_each([(key, bad) for key in THEIR_DEFAULTS for bad in (None, [1], "nonsense")], named=str)
def test_an_invalid_value_gets_the_default_of_onetrainer(given: tuple[str, Any]) -> None:
    """As there; ours may be other: its learning rate is 3e-6, not 1e-4."""
    key, bad = given
    if bad == "nonsense" and key in ("cache_dir", "output_model_destination"):
        return  # a valid text
    usual, loaded = decode({"__version": NEWEST}), decode({"__version": NEWEST, key: bad})
    assert known(loaded.config) == known(usual.config)
    assert bad is None or [p.message for p in loaded.problems if key in p.message]


# Keys whose values have no effect here, whatever they are, or only next to others.
_WITHOUT_EFFECT = frozenset({
    *("clear_cache_before_training", "concept_stats", "image_count", "debug_dir", "debug_mode", "force_last_timestep"),
    *("text_encoder_1_layer_skip", "rolling_backup_count", "unmasked_probability", "circular_mask_generation"),
    *("layer_filter_preset", "lora_layer_preset"),  # an unknown one is that of a single family: its layers are read
    *("stop_training_after", "stop_training_after_unit", "train"),
    *("sample_after", "sample_after_unit", "backup_after", "save_every", "save_after"),
    *("validate_after", "validate_after_unit", "backup_after_unit", "save_every_unit", "save_after_unit"),
})  # fmt: skip
_SHAPES_THE_FILE = frozenset({"__version", "training_method", "model_type", "optimizer"})


def places_of(node: object, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the places of all values in a tree that are not objects or lists themselves, or empty."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for step, inner in items:
        yield from places_of(inner, (*place, step)) if isinstance(inner, dict | list) and inner else [(*place, step)]


def with_bad_values(tree: Tree, first: int, kind: Callable[[int], Any]) -> tuple[Tree, dict[int, str]]:
    """Return a file with every third of its values bad, from the given one on, and the key of each by its number."""
    bad, keys = deepcopy(tree), {}
    for number, place in islice(enumerate(places_of(tree), 700), first, None, 3):
        key = next(str(step) for step in reversed(place) if isinstance(step, str))
        if key not in _SHAPES_THE_FILE:
            keys[number], holder = key, bad
            for step in place[:-1]:
                holder = holder[step]
            holder[place[-1]] = kind(number)
    return bad, keys


_KINDS: Mapping[str, Callable[[int], Any]] = {
    "text": lambda n: f"bad {n}", "list": lambda n: [f"bad {n}"], "negative": lambda n: -n
}  # fmt: skip


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("version", range(NEWEST + 1))
def test_the_report_has_the_names_of_the_file(version: int, kind: str) -> None:
    """Even if a value is found invalid only once it has its place here, under another name."""
    lost = []
    for first, (name, tree) in enumerate(islice(files([version]), version, None, 29)):
        bad, keys = with_bad_values(aged(tree, version), first % 3, _KINDS[kind])
        loaded = decode(bad)
        kept = str(encode(loaded.config))
        for number, key in keys.items():
            value = str(_KINDS[kind](number)).strip("[]'")
            named = [p.message for p in loaded.problems if value in p.message]
            assert [m for m in named if key not in m] == [], (name, key)
            if kind != "negative" and not named and value not in kept and key not in _WITHOUT_EFFECT:
                lost.append((name, key))
    assert lost == []


def test_equal_values_are_each_named_after_their_own_key() -> None:
    loaded = decode({"__version": NEWEST, "huber_delta": -1, "lora_rank": -1, "batch_size": -1})
    given = [p.message.partition(" is not valid")[0] for p in loaded.problems]
    assert sorted(given) == ["batch_size = -1", "huber_delta = -1", "lora_rank = -1"]


@for_each([key for key, values in since(VALUES, NEWEST).items() if isinstance(values[0], bool)])
def test_a_switch_that_is_neither_on_nor_off_is_reported(key: str) -> None:
    """It used to be read as off."""
    loaded = decode({"__version": NEWEST, "model_type": "STABLE_DIFFUSION_15", key: "perhaps"})
    if ("top", key) not in MEANINGLESS and "perhaps" not in str(loaded.config):  # kept for another type of adapter
        assert [p.message for p in loaded.problems if key in p.message], key


def test_a_file_over_other_settings_is_reported_with_its_names_too() -> None:
    loaded = decode({"__version": NEWEST, "lora_rank": -1}, over=Config())
    assert [p.message.partition(" is not valid")[0] for p in loaded.problems] == ["lora_rank = -1"]
