"""The differences between two configs, and which of them prevent a resume."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from modules.config.compare import changed_learning, differing_paths, fixed_on_resume, resumed_config
from modules.config.schema import Config
from modules.config.sections.model import Part
from modules.data.concept import Concept
from modules.settings.edit import choose_variant, get_path, set_path
from modules.settings.field import FieldRecord, records_of
from tests.builders.for_each import for_each
from tests.unit.strategies import few, valid_configs

PARTS = [r for name in ("unet", "text_encoder") for r in records_of(Part, f"parts.{name}")]
RECORDS = [r for r in (*records_of(Config), *PARTS) if r.kind != "map" and len(r.choices) != 1]


def another(record: FieldRecord) -> Any:
    """A value that fits and is not the default."""
    match record.kind:
        case "bool":
            return not record.default
        case "choice":
            return next(c for c in record.choices if c != record.default)
        case "text":
            return record.default + "x"
        case "int":
            return next(v for v in (record.lo, record.hi) if v != record.default)
        case "float":
            assert record.lo is not None
            assert record.hi is not None
            middle = (record.lo + record.hi) / 2
            return middle if middle != record.default else (record.lo + 3 * record.hi) / 4
        case "every":
            return {"n": 123, "unit": "second"}
        case "int_list" | "resolutions":
            return [640]
        case "section":
            return {"name": next(n for n in record.variants if n != record.default.name)}
        case "list":
            return [{}]
        case _:
            raise AssertionError(record)


def changed(config: Config, record: FieldRecord) -> Config:
    edited, problems = set_path(config, record.path, another(record))
    assert problems == []
    assert get_path(edited, record.path) != get_path(config, record.path)
    return edited


@for_each([r for r in RECORDS if r.setting.changeable_on_resume], named=lambda r: r.path)
def test_a_setting_that_may_change_on_resume_is_not_named(record: FieldRecord) -> None:
    """Setting when a part stops used to name the whole part, if the config did not contain it before."""
    edited = changed(Config(), record)
    assert differing_paths(Config(), edited) != []
    assert fixed_on_resume(Config(), edited) == []
    assert fixed_on_resume(edited, Config()) == []


@for_each([r for r in RECORDS if not r.setting.changeable_on_resume], named=lambda r: r.path)
def test_anything_else_is_named(record: FieldRecord) -> None:
    edited = changed(Config(), record)
    for named in (fixed_on_resume(Config(), edited), fixed_on_resume(edited, Config())):
        assert named
        assert all(path == record.path or path.startswith(f"{record.path}.") for path in named)


def test_unknown_and_remembered_settings_may_differ() -> None:
    """An unknown key of a newer version, or what was set for an optimizer that is not chosen, used to stop a resume."""
    other = Config(unknown={"x": {"y": 1}}, remembered={"training.optimizer": {"adafactor": {"weight_decay": 1.0}}})
    assert differing_paths(Config(), other) != []
    assert fixed_on_resume(Config(), other) == []
    assert fixed_on_resume(other, Config()) == []


def test_all_changes_are_named_at_once_and_sorted() -> None:
    edited = Config.model_validate(
        {
            "training": {"epochs": 99, "learning_rate": 0.5, "batch_size": 3},
            "adapter": {"rank": 3},
            "parts": {"unet": {"train": False, "stop_after": {"n": 3, "unit": "epoch"}}},
            "sampling": {"prompts": [{"prompt": "x"}]},
            "concepts": [{"path": "x"}],
        }
    )
    assert fixed_on_resume(Config(), edited) == [
        "adapter.rank",
        "concepts",
        "parts.unet.train",
        "training.batch_size",
    ]


def test_the_weight_decay_of_the_same_optimizer_may_change() -> None:
    one, other = (
        Config.model_validate({"training": {"optimizer": {"name": "adamw", "weight_decay": w}}}) for w in (0.0, 0.5)
    )
    sgd = Config.model_validate({"training": {"optimizer": {"name": "sgd", "weight_decay": 0.5}}})
    assert fixed_on_resume(one, other) == []
    assert changed_learning(one, other) == ["training.optimizer.weight_decay"]
    assert fixed_on_resume(one, sgd) == ["training.optimizer"]
    assert changed_learning(one, one) == []


def test_a_resumed_run_keeps_its_parts_after_another_family_was_chosen() -> None:
    of_run = Config.model_validate({"parts": {"unet": {"learning_rate": 1e-5}}, "training": {"epochs": 3}})
    now = Config.model_validate({"parts": {"transformer": {"learning_rate": 2e-5}}})
    for family in ("sd", "z_image"):
        now, _ = choose_variant(now, "model.family", family)
        resumed = resumed_config(of_run, set_path(now, "training.epochs", 7)[0])
        assert (resumed.training.epochs, resumed.model.family.name) == (7, "sd")
    assert resumed.parts["unet"].learning_rate == 1e-5
    resumed = resumed_config(of_run, Config.model_validate({"parts": {"unet": {"learning_rate": 3e-5}}}))
    assert resumed.parts["unet"].learning_rate == 3e-5


def test_a_part_with_all_its_defaults_is_like_none() -> None:
    explicit = Config(parts={"unet": Part(), "vae": Part()})
    assert fixed_on_resume(Config(), explicit) == []
    assert fixed_on_resume(explicit, Config(parts={"text_encoder": Part()})) == []


def test_a_list_counts_as_one_value() -> None:
    one, other = (Config(concepts=(Concept(path=p), Concept(path="b"))) for p in ("a", "c"))
    assert differing_paths(one, other) == ["concepts"]


def test_null_differs_from_a_missing_value() -> None:
    assert differing_paths(Config(unknown={"x": 1}), Config(unknown={"x": 1, "y": None})) == ["unknown.y"]


def test_equal_configs_do_not_differ() -> None:
    assert differing_paths(Config(), Config()) == []


@few
@given(one=valid_configs(), other=valid_configs())
def test_differences_are_mutual_and_the_fixed_ones_among_them(one: Config, other: Config) -> None:
    assert differing_paths(one, one) == []
    assert fixed_on_resume(one, one) == []
    assert differing_paths(one, other) == differing_paths(other, one)
    assert fixed_on_resume(one, other) == fixed_on_resume(other, one)
    if one != other:
        assert differing_paths(one, other)


def test_unit_strategies_make_more_than_defaults() -> None:
    """The properties above prove nothing if all generated configs are the same."""
    drawn = []

    @few
    @given(config=valid_configs(), _=st.none())
    def draw(config: Config, _: None) -> None:
        drawn.append(tuple(differing_paths(Config(), config)))

    draw()
    # What hypothesis draws from depends on the modules that other tests have imported before.
    assert len(set(drawn)) > 10


def test_another_choice_is_one_setting() -> None:
    """Forks after a change of the method alone used to list each setting of both methods."""
    before = Config()
    for path, name in (("training.method", "online_dpo"), ("adapter", "lokr")):
        now, _ = set_path(before, path, {"name": name})
        assert fixed_on_resume(before, now) == [path]
    now, _ = set_path(now, "training.batch_size", 7)
    assert fixed_on_resume(before, now) == ["adapter", "training.batch_size"]
