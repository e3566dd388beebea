"""Generated files of OneTrainer: every model type, method and version, with all keys and their values.

Of the 601 historic files few are here; these stand for them (`tests/builders/onetrainer_files.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from modules.config.codec import Loaded, decode, load_file, save_file
from modules.config.migrations.tree_moves import THEIR_DEFAULTS
from modules.config.schema import Config
from tests.builders.for_each import for_each
from tests.builders.onetrainer_files import METHODS, MODEL_TYPES, NEWEST, PART_KEYS, VALUES, Tree, aged, files, since
from tests.unit.test_onetrainer_homes import BESIDE, MEANINGLESS, WITHOUT_PART

_EVERY = 6  # of so many files one is read daily


def known(config: Config) -> Config:
    """A config without what it keeps of keys that have no effect."""
    return config.model_copy(update={"unknown": {}})


def assert_plain(name: str, loaded: Loaded) -> None:
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
        assert load_file(folder / "ours.json") == Loaded(read.config), name
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


@for_each([key for key, values in since(VALUES, NEWEST).items() if isinstance(values[0], float)])
def test_the_report_has_the_names_of_the_file(key: str) -> None:
    """Even if the value is found invalid only once it has its place here, under another name."""
    loaded = decode({"__version": NEWEST, **BESIDE.get(key, {}), key: "much"})
    if not key.startswith(("unmasked_probability", "vb_loss")):  # without effect
        assert [p.message for p in loaded.problems if p.message.startswith(f"{key} = 'much'")]


def test_a_value_that_several_keys_have_is_not_named_after_one_of_them() -> None:
    loaded = decode({"__version": NEWEST, "huber_delta": -1, "lora_rank": -1, "batch_size": -1})
    assert sorted(p.message.partition(" is not valid")[0] for p in loaded.problems) == ["-1", "-1", "batch_size = -1"]
