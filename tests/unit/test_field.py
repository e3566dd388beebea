"""The records from which forms, flags and documents are generated."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

import pytest
from annotated_types import Ge, Gt, Le, Lt, MultipleOf
from pydantic import BaseModel, ValidationError

from modules.config.schema import Config
from modules.settings.every import Every
from modules.settings.field import FieldRecord, Section, Setting, When, one_of, records_of
from tests.builders.for_each import for_each
from tests.builders.variants import variants


def all_records() -> Iterator[FieldRecord]:
    """Every record of the config, those of variants and of the items of lists and maps included."""
    yield from _deep(records_of(Config))


def _deep(records: tuple[FieldRecord, ...]) -> Iterator[FieldRecord]:
    for record in records:
        yield record
        inner = [*record.variants.items(), *([("*", record.item)] if record.item else [])]
        for name, section in inner:
            yield from _deep(records_of(section, f"{record.path}.{name}"))


ALL = list(all_records())


def by_path(path: str) -> FieldRecord:
    general = re.sub(r"^parts\.\w+", "parts.*", path)  # all parts have the same fields
    return next(r for r in ALL if r.path in (path, general))


def test_no_field_of_the_tree_is_without_a_setting() -> None:
    sections: list[type[BaseModel]] = [Config]
    bare = {
        "darkroom_version",
        "remembered",
        "unknown",
        "name",
    }  # the version, the stores of unused values, the name of a variant
    while sections:
        section = sections.pop()
        named = {r.name for r in records_of(section) if "." not in r.path}
        for name, info in section.model_fields.items():
            if isinstance(info.annotation, type) and issubclass(info.annotation, Section):
                sections.append(info.annotation)
            else:
                assert name in named | bare, f"{section.__name__}.{name} has no Setting"
        for record in records_of(section):
            sections += [*record.variants.values(), *([record.item] if record.item else [])]


@for_each(ALL, named=lambda r: r.path)
def test_a_field_describes_itself(record: FieldRecord) -> None:
    assert record.label.strip()
    assert record.label[0].isupper()
    assert record.setting.help.strip().endswith(".")
    assert record.setting.help.strip() != record.label
    if record.kind == "choice":
        assert len(set(record.choices.values())) == len(record.choices), "two choices look alike"
        assert record.default in record.choices
    if record.optional:
        assert record.setting.empty_means, "an empty entry needs a meaning"


@for_each([r for r in ALL if r.kind in ("int", "float")], named=lambda r: r.path)
def test_a_number_has_a_range_and_its_default_lies_in_it(record: FieldRecord) -> None:
    assert record.lo is not None
    assert record.hi is not None
    assert record.allowed
    if record.default is not None:
        assert record.lo <= record.default <= record.hi


def test_labels_are_unique_within_their_group() -> None:
    places = Counter((r.path.rpartition(".")[0], r.setting.group, r.label) for r in ALL)
    assert [place for place, count in places.items() if count > 1] == []
    groups = Counter((r.path.split(".")[0], r.setting.group, r.label) for r in records_of(Config))
    assert [place for place, count in groups.items() if count > 1] == []


@for_each([r for r in ALL if r.setting.applies_when], named=lambda r: r.path)
def test_a_condition_names_a_sibling_and_a_value_it_can_have(record: FieldRecord) -> None:
    when = record.setting.applies_when
    assert when is not None
    for one in when.alternatives:
        sibling = by_path(f"{record.path.rpartition('.')[0]}.{one.path}" if "." not in one.path else one.path)
        assert one.is_set == (sibling.kind in ("int", "float", "text", "list"))
        for value in one.is_any_of:
            assert value in (sibling.choices or (True, False))


class Apple(Section):
    name: Literal["apple"] = "apple"
    seeds: Annotated[int, Ge(0), Setting("Seeds", "How many.")] = 5


class Pear(Section):
    name: Literal["pear"] = "pear"


class Basket(Section):
    count: Annotated[int, Ge(1), Le(9), Setting("Count", "How many.")] = 3
    share: Annotated[float, Gt(0), Lt(1), Setting("Share", "How much.")] = 0.5
    big: Annotated[int, Ge(0), Le(2**63 - 1), Setting("Big", "Large.")] = 7
    width: Annotated[int, Ge(8), Le(64), MultipleOf(8), Setting("Width", "Wide.")] = 8
    at_least: Annotated[float, Ge(0.5), Setting("At least", "Low.")] = 1.0
    above: Annotated[float, Gt(0), Setting("Above", "Low.")] = 1.0
    at_most: Annotated[float, Le(10_000), Setting("At most", "High.")] = 1.0
    below: Annotated[float, Lt(2), Setting("Below", "High.")] = 1.0
    ripe: Annotated[bool, Setting("Ripe", "Whether.")] = True
    label: Annotated[str, Setting("Label", "What.")] = "fruit"
    colour: Annotated[
        Literal["red", "green"], Setting("Colour", "Which.", choice_labels={"red": "Red", "green": "Green"})
    ] = "red"
    kind: Annotated[str, *one_of(lambda: {"a": "A", "b": "B"}), Setting("Kind", "Which.")] = "a"
    turn: Annotated[Every, Setting("Turn", "How often.")] = Every()
    sizes: Annotated[tuple[Annotated[int, Ge(32), Le(8192)], ...], Setting("Sizes", "Which.")] = (512,)
    weight: Annotated[float | None, Ge(0), Setting("Weight", "Heavy.", empty_means="unknown")] = None
    fruit: Annotated[Apple | Pear, *variants("apple", Apple, Pear), Setting("Fruit", "Which.")] = Apple()
    fruits: Annotated[tuple[Apple, ...], Setting("Fruits", "Which.")] = ()
    shelf: Annotated[Mapping[str, Apple], Setting("Shelf", "Where.")] = {}
    inner: Apple = Apple()


BASKET = {r.path: r for r in records_of(Basket, "basket")}


@pytest.mark.parametrize(
    ("name", "kind", "allowed"),
    [
        ("count", "int", "from 1 to 9"),
        ("share", "float", "above 0 to below 1"),
        ("big", "int", "from 0 to 9,223,372,036,854,775,807"),
        ("width", "int", "from 8 to 64, in steps of 8"),
        ("at_least", "float", "0.5 or more"),
        ("above", "float", "above 0"),
        ("at_most", "float", "at most 10,000"),
        ("below", "float", "below 2"),
        ("ripe", "bool", ""),
        ("label", "text", ""),
        ("colour", "choice", "one of red, green"),
        ("kind", "choice", "one of a, b"),
        ("turn", "every", ""),
        ("sizes", "int_list", "from 32 to 8,192"),
        ("weight", "float", "0 or more"),
        ("fruit", "section", "one of apple, pear"),
        ("fruits", "list", ""),
        ("shelf", "map", ""),
    ],
)
def test_every_kind_of_field_and_its_range_in_words(name: str, kind: str, allowed: str) -> None:
    record = BASKET[f"basket.{name}"]
    assert (record.kind, record.allowed) == (kind, allowed)
    assert record.name == name
    assert record.default == Basket.model_fields[name].default


def test_nested_sections_are_flattened_and_variants_are_not() -> None:
    assert list(BASKET)[-1] == "basket.inner.seeds"
    assert "basket.inner" not in BASKET
    assert BASKET["basket.fruit"].variants == {"apple": Apple, "pear": Pear}
    assert BASKET["basket.fruits"].item is Apple
    assert BASKET["basket.shelf"].item is Apple
    assert [r.name for r in BASKET.values() if r.optional] == ["weight"]


def test_choices_have_the_labels_people_see() -> None:
    assert BASKET["basket.colour"].choices == {"red": "Red", "green": "Green"}
    assert BASKET["basket.kind"].choices == {"a": "A", "b": "B"}


def test_a_name_the_registry_does_not_know_is_refused_in_few_words() -> None:
    with pytest.raises(ValidationError, match="is not one of a, b"):
        Basket(kind="c")
    with pytest.raises(ValidationError) as caught:
        Basket(kind="c" * 100_000)
    assert len(caught.value.errors()[0]["msg"]) < 200


def test_a_type_that_no_form_can_show_is_refused() -> None:
    class Odd(Section):
        thing: Annotated[complex, Setting("Thing", "Odd.")] = 1j

    with pytest.raises(TypeError, match="no form supports"):
        records_of(Odd)


def test_when() -> None:
    assert When("layers", ("custom",)).holds("custom")
    assert not When("layers", ("custom",)).holds("all")
