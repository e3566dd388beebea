"""OneTrainer's optimizers and schedules exist here, each with its own fields and defaults, and are fully converted.

`fixtures/optimizers.json` is OneTrainer's table: the fields of each optimizer with their defaults.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.config.codec import decode
from modules.config.migrations.onetrainer_11.training import schedule_from
from modules.config.migrations.onetrainer_optimizers import (
    low_precision_updates_from,
    optimizer_from,
    remembered_optimizers,
)
from modules.config.rules.optimizers import optimizer_fields
from modules.config.schema import Config
from modules.optim.registry import OPTIMIZERS
from modules.optim.schedule_registry import SCHEDULES, learning_rate_factor
from modules.settings.edit import set_path
from modules.settings.field import FieldRecord, records_of
from modules.system.problem import Problem, quote
from tests.unit.strategies import few, garbage, valid_trees

TABLE: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "fixtures" / "optimizers.json").read_text(encoding="utf-8")
)
# Names where ours is not simply theirs in lower case.
OURS = {"decay_rate": "beta2_decay", "MuonWithAuxAdam": "muon_with_aux_adam"}
# One setting for all optimizers here.
ELSEWHERE = {"stochastic_rounding": "training.low_precision_updates"}
# Defaults of theirs with which the optimizer cannot be built.
OTHER_DEFAULTS = {"LARS": {"momentum": 0.9}, "LARS_8BIT": {"momentum": 0.9}, "SCHEDULE_FREE_SGD": {"momentum": 0.9}}
THEIR_KEYS = sorted({key for row in TABLE.values() for key in row})
OPTIMIZER = "training.optimizer"


def ours(theirs: str) -> str:
    return OURS.get(theirs, theirs.lower())


def as_ours(key: str, value: Any) -> Any:
    """A default of the table as our section dumps it."""
    match key, value:
        case ("growth_rate", "inf"):
            return None
        case ("optim_bits", int()):
            return str(value)
        case ("muon_hidden_layers", None):
            return ""
        case ("muon_adam_config", _):
            return dict.fromkeys(("beta1", "beta2", "eps", "weight_decay"))
        case _:
            return value


def converted(tree: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], list[Problem]]:
    """The result for one of their optimizer objects: our complete settings, their unused keys, the notes."""
    notes: list[Problem] = []
    left = json.loads(json.dumps(tree))
    settings = optimizer_from(left, notes)
    return OPTIMIZERS[settings["name"]].settings.model_validate(settings).model_dump(), left, notes


def test_every_optimizer_of_theirs_is_one_of_ours_with_a_label() -> None:
    assert {name.lower() for name in TABLE} == set(OPTIMIZERS)
    assert len(OPTIMIZERS) == 43
    assert len({spec.label for spec in OPTIMIZERS.values()}) == 43


@pytest.mark.parametrize("theirs", TABLE)
def test_an_optimizer_has_their_fields_and_defaults_and_no_others(theirs: str) -> None:
    spec = OPTIMIZERS[theirs.lower()]
    gone = {*ELSEWHERE, *spec.removed}
    expected = {ours(k): as_ours(k, v) for k, v in TABLE[theirs].items() if k not in gone}
    assert set(spec.removed) <= set(TABLE[theirs])
    settings = spec.settings()
    # Optimizers of ours fuse into the backward pass where theirs do not.
    alone = {"fused_back_pass": False} if spec.can_fuse else {}
    assert settings.model_dump(exclude={"name"}) == alone | expected | OTHER_DEFAULTS.get(theirs, {})
    assert settings.model_validate(settings.model_dump()) == settings


@pytest.mark.parametrize("theirs", TABLE)
def test_a_complete_optimizer_is_converted_without_notes(theirs: str) -> None:
    gone = {*ELSEWHERE, *OTHER_DEFAULTS.get(theirs, {})}
    row = {key: value for key, value in TABLE[theirs].items() if key not in gone}
    settings, left, notes = converted({"optimizer": theirs, "__version": 0, **row})
    assert settings == OPTIMIZERS[theirs.lower()].settings().model_dump()
    assert (left, notes) == ({}, [])


def other_value(record: FieldRecord) -> Any:
    """A value other than the default, within the field's limits."""
    match record.kind:
        case "bool":
            return not record.default
        case "choice":
            return next(c for c in record.choices if c != record.default)
        case "text":
            return "layers.1"
        case _:
            low, high = record.lo or 0, 1 if record.hi is None else record.hi
            found = (v for v in (0.5, 2, 3, -0.5, 7) if v != record.default and low < v < high)
            return next(v for v in found if record.kind == "float" or v == int(v))


@pytest.mark.parametrize("theirs", TABLE)
def test_every_field_that_is_set_is_converted(theirs: str) -> None:
    variant = OPTIMIZERS[theirs.lower()].settings
    their_name = {ours(key): key for key in THEIR_KEYS}
    for record in records_of(variant):
        value = other_value(record)
        *folder, name = record.path.split(".")
        given = int(value) if record.kind == "choice" else value
        tree: dict[str, Any] = {their_name.get(name, name) if not folder else name: given}
        tree = {folder[0]: tree} if folder else tree
        settings, left, notes = converted({"optimizer": theirs, **tree})
        for step in record.path.split("."):
            settings = settings[step]
        assert settings == value, record.path
        assert (left, notes) == ({}, []), record.path


@pytest.mark.parametrize("theirs", [name for name in TABLE if OPTIMIZERS[name.lower()].removed])
def test_a_setting_that_does_not_exist_here_is_dropped_with_a_note(theirs: str) -> None:
    spec = OPTIMIZERS[theirs.lower()]
    for key, removed in spec.removed.items():
        for value in removed.harmless:
            assert converted({"optimizer": theirs, key: value}) == (spec.settings().model_dump(), {}, [])
        if set(removed.harmless) >= {True, False} or len(removed.harmless) > 3:
            continue
        settings, left, (note,) = converted(
            {"optimizer": theirs, key: 50 if False not in removed.harmless[:1] else True}
        )
        assert (settings, left) == (spec.settings().model_dump(), {})
        assert (note.path, note.severity) == (OPTIMIZER, "warning")
        assert note.message.startswith(f"{key} = ")
        assert note.message.endswith(removed.why)


def test_our_own_older_files_lose_them_too() -> None:
    old = {"name": "adamw", "capturable": False, "differentiable": True}
    remembered = {
        OPTIMIZER: {"adam_8bit": {"beta1": 0.5, "is_paged": True}, "adamw_adv": {"beta1": 0.5, "use_ademamix": True}}
    }
    loaded = decode({"darkroom_version": 7, "training": {"optimizer": old}, "remembered": remembered})
    assert [p.path for p in loaded.problems] == [OPTIMIZER]
    assert loaded.config.unknown == {}
    assert loaded.config.remembered == {OPTIMIZER: {"adam_8bit": {"beta1": 0.5}, "adamw_adv": {"beta1": 0.5}}}


def test_an_empty_value_means_the_optimizers_default() -> None:
    empty = dict.fromkeys(THEIR_KEYS)
    for theirs in TABLE:
        settings, left, notes = converted({"optimizer": theirs, **empty})
        assert settings == OPTIMIZERS[theirs.lower()].settings().model_dump()
        assert (left, notes) == ({}, [])
    assert converted({})[0]["name"] == "adamw"


def test_fields_of_other_optimizers_are_dropped_only_if_they_have_their_defaults() -> None:
    defaults = {"factored": True, "use_speed": False, "d0": None, "muon_adam_config": {}, "rms_rescaling": True}
    assert converted({"optimizer": "SGD", **defaults})[1] == {}
    changed = {"factored": False, "use_speed": True, "d0": 1e-5, "muon_adam_config": {"beta1": 0.5}, "kind": "mine"}
    assert converted({"optimizer": "SGD", **changed})[1] == changed


def test_numbers_are_cast_like_theirs_and_infinity_means_no_limit() -> None:
    tree = {"optimizer": "PRODIGY", "beta1": "0.8", "slice_p": 5.7, "growth_rate": "inf", "d_coef": 2}
    settings, left, notes = converted(tree)
    assert (settings["beta1"], settings["slice_p"], settings["growth_rate"], settings["d_coef"]) == (0.8, 5, None, 2.0)
    assert (left, notes) == ({}, [])
    assert converted({"optimizer": "PRODIGY", "growth_rate": 1.02})[0]["growth_rate"] == 1.02


@pytest.mark.parametrize(
    ("key", "value"),
    [("beta1", 1.5), ("beta1", "inf"), ("beta1", [0.9]), ("fused", "yes"), ("eps", True), ("weight_decay", -1)],
)
def test_a_value_that_is_not_allowed_is_reported_and_the_default_used(key: str, value: object) -> None:
    settings, left, notes = converted({"optimizer": "ADAMW", key: value})
    assert settings == OPTIMIZERS["adamw"].settings().model_dump()
    assert left == {}
    (note,) = notes
    assert (note.path, note.severity) == (f"{OPTIMIZER}.{key}", "warning")
    assert note.message.startswith(f"{key} = {quote(value)} is not allowed (")


@pytest.mark.parametrize("name", ["SEVEN_LEAGUE", "", 7, ["ADAMW"]])
def test_an_unknown_optimizer_is_kept_and_reported(name: object) -> None:
    settings, left, notes = converted({"optimizer": name, "beta1": 0.5})
    assert settings == OPTIMIZERS["adamw"].settings().model_dump()
    assert left == {"optimizer": name, "beta1": 0.5}
    assert [(n.path, n.severity) for n in notes] == [(OPTIMIZER, "warning")]


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        ("LION_PRODIGY_ADV", {"name": "prodigy_adv"}),
        ("SIMPLIFIED_AdEMAMix", {"name": "ademamix"}),
    ],
)
def test_a_removed_optimizer_becomes_the_closest_one(theirs: str, expected: dict[str, Any]) -> None:
    settings, _, notes = converted({"optimizer": theirs, "beta1": 0.8})
    assert settings == OPTIMIZERS[expected["name"]].settings.model_validate({**expected, "beta1": 0.8}).model_dump()
    assert [theirs in n.message for n in notes] == [True]


def test_switches_of_earlier_versions_are_renamed() -> None:
    old = {"optimizer": "PRODIGY_PLUS_SCHEDULE_FREE", "cautious_mask": True, "grams_moment": True, "use_focus": False}
    settings, left, notes = converted(old)
    assert (settings["use_cautious"], settings["use_grams"], left) == (True, True, {})
    assert [n.severity for n in notes] == ["info", "info"]
    _, left, notes = converted({"optimizer": "ADAMW", "use_muon_pp": True, "k_warmup_steps": 5})
    assert left == {"use_muon_pp": True, "k_warmup_steps": 5}
    assert len(notes) == 2


def test_rounding_is_one_setting_for_all_optimizers() -> None:
    def found(value: object, name: str, *, are_bfloat16: bool = True) -> str:
        tree = {"stochastic_rounding": value}
        result = low_precision_updates_from(tree, name, [], are_bfloat16=are_bfloat16)
        assert tree == {}
        return result

    for theirs, row in TABLE.items():
        default = "stochastic" if row.get("stochastic_rounding") else "master"
        assert found(None, theirs.lower()) == default
        asked = "stochastic" if "stochastic_rounding" in row else "master"
        assert found(True, theirs.lower()) == asked
        assert found(False, theirs.lower()) == "master"
    assert found(True, "adamw", are_bfloat16=False) == "master"


def test_settings_of_other_optimizers_are_remembered() -> None:
    defaults: dict[str, Any] = {
        "ADAMW": {"optimizer": "ADAMW", "__version": 0, "beta1": 0.5},
        "ADAFACTOR": {"optimizer": "ADAFACTOR", "decay_rate": -0.7, "clip_threshold": 1.0, "stochastic_rounding": True},
        "PRODIGY": {"d_coef": 0.5, "growth_rate": "inf", "stochastic_rounding": True, "mine": 1},
        "LION": TABLE["LION"],
        "CAME": {"stochastic_rounding": True},
        "SEVEN_LEAGUE": {"beta1": 0.5},
        "SGD": 5,
    }
    notes: list[Problem] = []
    remembered = remembered_optimizers(defaults, {"name": "adamw"}, notes)
    assert remembered == {"adafactor": {"beta2_decay": -0.7}, "prodigy": {"d_coef": 0.5}}
    assert defaults == {
        "PRODIGY": {"mine": 1},
        "CAME": {"stochastic_rounding": True},
        "SEVEN_LEAGUE": {"beta1": 0.5},
        "SGD": 5,
    }
    assert notes == []
    config = decode({"darkroom_version": 7, "remembered": {OPTIMIZER: remembered}}).config
    switched, problems = set_path(config, OPTIMIZER, "prodigy")
    assert (problems, get(switched)["d_coef"]) == ([], 0.5)


def get(config: Config) -> dict[str, Any]:
    return config.training.optimizer.model_dump()


def schedule(tree: dict[str, Any], steps_per_update: int = 1) -> tuple[dict[str, Any], dict[str, Any], list[Problem]]:
    notes: list[Problem] = []
    left = json.loads(json.dumps(tree))
    return schedule_from(left, notes, steps_per_update), left, notes


def test_schedules_are_converted_with_their_fields() -> None:
    falling = {"learning_rate_warmup_steps": 0, "learning_rate_min_factor": 0.1, "learning_rate_cycles": 3.0}
    assert schedule({}) == ({"name": "constant", "warmup_steps": 200}, {}, [])
    assert schedule({"learning_rate_scheduler": "CONSTANT", **falling})[1] == {
        "learning_rate_min_factor": 0.1,
        "learning_rate_cycles": 3.0,
    }
    for theirs in ("LINEAR", "COSINE", "REX"):
        result, left, _ = schedule({"learning_rate_scheduler": theirs, **falling})
        assert result == {"name": theirs.lower(), "warmup_share": 0, "min_factor": 0.1}
        assert left == {"learning_rate_cycles": 3.0}
    for theirs in ("COSINE_WITH_RESTARTS", "COSINE_WITH_HARD_RESTARTS"):
        result, left, _ = schedule({"learning_rate_scheduler": theirs, **falling})
        assert result == {"name": theirs.lower(), "warmup_share": 0, "min_factor": 0.1, "cycles": 3}
        assert left == {}
    assert schedule({"learning_rate_scheduler": "ADAFACTOR", "learning_rate_cycles": 1.0, "scheduler_params": []}) == (
        {"name": "adafactor", "warmup_steps": 200},
        {},
        [],
    )


def test_a_custom_schedule_keeps_its_class_and_arguments() -> None:
    tree: dict[str, Any] = {
        "learning_rate_scheduler": "CUSTOM",
        "custom_learning_rate_scheduler": "torch.optim.lr_scheduler.StepLR",
        "scheduler_params": [{"key": "step_size", "value": "%EPOCH_STEPS%"}, {"key": "gamma", "value": 0.5}],
        "learning_rate_warmup_steps": 0,
    }
    result, left, notes = schedule(tree)
    assert result == {
        "name": "custom",
        "warmup_share": 0,
        "class_name": "torch.optim.lr_scheduler.StepLR",
        "arguments": "step_size = %EPOCH_STEPS%\ngamma = 0.5",
    }
    assert (left, notes) == ({}, [])
    tree["scheduler_params"] = [{"key": "step_size", "value": "%STEPS_PER_EPOCH%"}, {"key": "gamma", "value": "0.5"}]
    settings = SCHEDULES["custom"].settings.model_validate(schedule(tree)[0])
    assert not list(SCHEDULES["custom"].problems(settings))
    factors = [learning_rate_factor(settings, step=s, total_steps=30, epochs=3) for s in (0, 9, 10, 29)]
    assert factors == [1.0, 1.0, 0.5, 0.25]
    _, left, notes = schedule({**tree, "scheduler_params": [{"key": "a\nb", "value": 1}]})
    assert left == {"scheduler_params": [{"key": "a\nb", "value": 1}]}
    assert [n.path for n in notes] == ["training.schedule.arguments"]


def test_a_warm_up_is_batches_above_one_and_a_fraction_below() -> None:
    def warmup(value: object) -> dict[str, Any]:
        return schedule({"learning_rate_warmup_steps": value}, 4)[0]

    assert warmup(200.0)["warmup_steps"] == 50
    assert warmup(5)["warmup_steps"] == 2
    assert warmup(1)["warmup_share"] == 1
    assert warmup(0.25)["warmup_share"] == 0.25
    assert warmup(-3)["warmup_share"] == 0


@pytest.mark.parametrize(
    ("key", "value", "path"),
    [
        ("learning_rate_scheduler", "SAW", ""),
        ("learning_rate_scheduler", None, ""),
        ("learning_rate_warmup_steps", "soon", ".warmup_steps"),
        ("learning_rate_warmup_steps", 1e12, ".warmup_steps"),
        ("learning_rate_min_factor", 7, ".min_factor"),
        ("learning_rate_cycles", 0, ".cycles"),
    ],
)
def test_an_invalid_schedule_is_reported(key: str, value: object, path: str) -> None:
    tree = {"learning_rate_scheduler": "COSINE_WITH_RESTARTS", key: value}
    result, left, notes = schedule(tree)
    SCHEDULES[result["name"]].settings.model_validate(result)
    assert [n.path for n in notes] == [f"training.schedule{path}"]
    assert left == ({key: value} if value == "SAW" else {})


names = st.sampled_from([*TABLE, "LION_PRODIGY_ADV", "SIMPLIFIED_AdEMAMix"]) | garbage
objects = st.fixed_dictionaries(
    {}, optional={"optimizer": names, **dict.fromkeys(THEIR_KEYS, garbage), "use_muon_pp": garbage, "mine": garbage}
)


@few
@given(objects)
def test_any_optimizer_becomes_a_valid_one(tree: dict[str, Any]) -> None:
    notes: list[Problem] = []
    low_precision_updates_from(tree, "adamw", [], are_bfloat16=True)
    settings = optimizer_from(tree, notes)
    OPTIMIZERS[settings["name"]].settings.model_validate(settings)
    assert (
        settings.items() <= optimizer_from({"optimizer": settings["name"].upper(), **as_theirs(settings)}, []).items()
    )


def as_theirs(settings: dict[str, Any]) -> dict[str, Any]:
    back = {ours(key): key for key in THEIR_KEYS}
    return {back[key]: value for key, value in settings.items() if key != "name"}


@few
@given(st.dictionaries(st.sampled_from(sorted(TABLE)) | st.text(max_size=5), objects | garbage, max_size=4))
def test_remembered_settings_are_valid(defaults: dict[str, Any]) -> None:
    for name, fields in remembered_optimizers(defaults, {"name": "adamw"}, []).items():
        OPTIMIZERS[name].settings.model_validate({"name": name, **fields})


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "learning_rate_scheduler": st.sampled_from([n.upper() for n in SCHEDULES]) | garbage,
            "learning_rate_warmup_steps": garbage,
            "learning_rate_min_factor": garbage,
            "learning_rate_cycles": garbage,
            "custom_learning_rate_scheduler": garbage,
            "scheduler_params": garbage | st.lists(st.fixed_dictionaries({"key": garbage, "value": garbage})),
        },
    ),
    st.integers(1, 64),
)
def test_any_schedule_becomes_a_valid_one(tree: dict[str, Any], steps_per_update: int) -> None:
    settings = schedule_from(tree, [], steps_per_update)
    SCHEDULES[settings["name"]].settings.model_validate(settings)


@given(st.data())
def test_any_settings_of_any_optimizer_survive_a_file(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(OPTIMIZERS)))
    tree = data.draw(valid_trees(OPTIMIZERS[name].settings, name=name))
    result = decode({"darkroom_version": 7, "training": {"optimizer": tree}})
    assert result.problems == []
    assert result.config.training.optimizer == OPTIMIZERS[name].settings.model_validate(tree)


def test_nesterov_needs_a_momentum() -> None:
    def found(**fields: object) -> list[str]:
        config, problems = set_path(Config(), OPTIMIZER, {"name": "sgd", "nesterov": True, **fields})
        assert problems == []
        return [p.path for p in optimizer_fields(config)]

    assert found() == [f"{OPTIMIZER}.nesterov"]
    assert found(momentum=0.9, dampening=0.1) == [f"{OPTIMIZER}.nesterov"]
    assert found(momentum=0.9) == []
    assert found(nesterov=False) == []
    assert list(optimizer_fields(Config())) == []


def test_a_fused_step_is_the_default_where_an_optimizer_has_one() -> None:
    """It is the fastest, and exact."""
    defaults = {name: spec.settings().model_dump() for name, spec in OPTIMIZERS.items()}
    fused = {name: values["fused"] for name, values in defaults.items() if "fused" in values}
    assert fused == {"adam": True, "adamw": True}
