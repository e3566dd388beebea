"""Unsupported settings are reported: an error if they would change the training, otherwise a warning."""

from __future__ import annotations

from typing import Annotated, Literal

from modules.config.codec import decode
from modules.config.rules.every_setting import settings_not_yet_supported
from modules.config.schema import Config
from modules.settings.edit import live_records
from modules.settings.field import FieldRecord, Section, Setting, When, records_of
from tests.builders.variants import variants


class Stove(Section):
    """Fields of every standing."""

    is_lit: Annotated[bool, Setting("Lit", "Whether it burns.")] = False
    fuel: Annotated[
        Literal["wood", "coal", "gas"],
        Setting("Fuel", "What burns.", choice_labels={"gas": "Town gas"}, not_yet_choices=frozenset({"gas"})),
    ] = "wood"
    draught: Annotated[float, Setting("Draught", "How much air.", not_yet="refused")] = 1.0
    whistle: Annotated[bool, Setting("Whistle", "When it boils.", not_yet="ignored")] = False
    damper: Annotated[
        int, Setting("Damper", "How far shut.", not_yet="refused", applies_when=When("is_lit", (True,)))
    ] = 0


class Pot(Section):
    """A variant that is supported."""

    name: Literal["pot"] = "pot"


class Wok(Section):
    """A variant that is not."""

    name: Literal["wok"] = "wok"


class Kitchen(Config):
    """Our config, and a stove."""

    stove: Stove = Stove()
    pan: Annotated[
        Pot | Wok,
        *variants("pot", Pot, Wok),
        Setting(
            "Pan", "Of which kind.", not_yet_choices=frozenset({"wok"}), applies_when=When("stove.is_lit", (True,))
        ),
    ] = Pot()


def findings(**values: object) -> list[tuple[str, str, str]]:
    config = Kitchen(stove=Stove.model_validate(values))
    return [(p.path, p.severity, p.message) for p in settings_not_yet_supported(config)]


def test_a_config_without_unsupported_settings_has_no_problem() -> None:
    assert findings() == []
    assert list(settings_not_yet_supported(Config())) == []


def test_settings_that_change_the_training_are_refused_and_others_give_a_warning() -> None:
    assert findings(draught=2.0, whistle=True) == [
        ("stove.draught", "error", "Draught: 2 is not supported yet."),
        ("stove.whistle", "warning", "Whistle: on has no effect yet."),
    ]


def test_an_unsupported_choice_is_refused_by_label_with_the_supported_ones() -> None:
    config = Kitchen(stove=Stove(fuel="gas"))
    (problem,) = settings_not_yet_supported(config)
    assert (problem.path, problem.message) == ("stove.fuel", "Fuel: Town gas is not supported yet.")
    assert problem.advice == "Choose wood or coal."


def test_a_field_that_does_not_apply_is_not_reported() -> None:
    assert findings(damper=3) == []
    assert findings(damper=3, is_lit=True) == [("stove.damper", "error", "Damper: 3 is not supported yet.")]


def test_an_unsupported_variant_is_refused() -> None:
    lit = Stove(is_lit=True)
    assert [(p.path, p.severity) for p in settings_not_yet_supported(Kitchen(pan=Wok(), stove=lit))] == [
        ("pan", "error")
    ]
    assert list(settings_not_yet_supported(Kitchen(pan=Wok()))) == []  # it does not apply
    assert list(settings_not_yet_supported(Kitchen(stove=lit))) == []


def test_the_walk_goes_into_variants_parts_and_entries_that_are_switched_on() -> None:
    tree = {"darkroom_version": 7, "concepts": [{"name": "a"}, {"name": "b", "enabled": False}]}
    paths = {r.path for r in live_records(decode(tree).config)}
    assert {"training.optimizer.beta1", "parts.unet.train", "concepts.0.name"} <= paths
    assert not any(p.startswith("concepts.1") for p in paths)
    assert "parts.vae.train" not in paths  # only a run of the VAE trains it


def everything(records: tuple[FieldRecord, ...]) -> list[FieldRecord]:
    inner = [records_of(s) for r in records for s in (*r.variants.values(), *([r.item] if r.item else []))]
    return [*records, *(r for found in inner for r in everything(found))]


def test_every_mark_names_choices_that_exist_and_leaves_the_default() -> None:
    records = everything(records_of(Config))
    for record in (r for r in records if r.setting.not_yet_choices):
        assert record.setting.not_yet_choices < set(record.choices), record.path
        assert str(getattr(record.default, "name", record.default)) not in record.setting.not_yet_choices, record.path
