"""The fields, their groups and their visibility."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from modules.config.records import is_reachable, record_at
from modules.config.schema import Config
from modules.config.sections.model import Model
from modules.data.concept import Concept
from modules.families.registry import FAMILIES, registered
from modules.families.settings import FamilySettings
from modules.settings.edit import is_relevant, set_path
from modules.settings.field import records_of
from tests.ui.made_up import Fast, TeaConfig
from ui.app.catalogue import page_named
from ui.forms.records import claimed_sections, groups_of, inline_records, is_shown, variant_records
from ui.forms.setting_pages import SETTING_PAGES, groups_on, page_of, sections_of


def edited(config: Config, **values: object) -> Config:
    for path, value in values.items():
        config, problems = set_path(config, path.replace("__", "."), value)
        assert not problems
    return config


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("training.learning_rate", "Learning rate"),
        ("training.optimizer", "Optimizer"),
        ("training.optimizer.beta1", "Beta 1"),
        ("parts.unet.train", "Train"),
        ("concepts.0.path", "Folder"),
        ("sampling.prompts.0.seed", "Seed"),
        ("training.loss.gamma", "Gamma"),
    ],
)
def test_every_path_has_its_record(path: str, label: str) -> None:
    config = edited(Config(), concepts=[{"path": "x"}], sampling__prompts=[{"prompt": "y"}])
    record = record_at(config, path)
    assert record is not None
    assert (record.path, record.label) == (path, label)


@pytest.mark.parametrize(
    "path", ["", "nonsense", "training.nonsense", "training.optimizer.beta2_decay", "concepts.0.x"]
)
def test_no_record_for_a_missing_field(path: str) -> None:
    assert record_at(edited(Config(), concepts=[{"path": "x"}]), path) is None


def test_groups_keep_the_order_of_declaration_and_join_equal_headings() -> None:
    groups = groups_of(Config(), ("training", "adapter"))
    titles = [g.title for g in groups]
    known = ("Training target", "Length", "Learning rate", "Optimizer", "Loss", "EMA", "Adapter")
    assert [t for t in titles if t in known] == list(known)
    assert len(set(titles)) == len(titles)
    length = next(g for g in groups if g.title == "Length")
    assert [r.name for r in length.records][:3] == ["epochs", "batch_size", "accumulation_steps"]


def test_each_part_of_the_family_is_a_group_of_its_own() -> None:
    groups = {g.key: g for g in groups_of(Config(), ("parts",))}
    assert list(groups) == ["parts/unet", "parts/text_encoder", "parts/vae"]
    assert groups["parts/unet"].title == "UNet"
    assert "parts.unet.train" in {r.path for r in groups["parts/unet"].records}
    names = {r.name for r in groups["parts/vae"].records}  # it is never trained
    assert "dtype" in names
    assert not names & {"train", "learning_rate", "stop_after", "checkpointing"}


class OtherSettings(FamilySettings):
    name: Literal["other"] = "other"


def test_a_new_family_brings_its_parts() -> None:
    other = replace(FAMILIES["sd"], name="other", settings=OtherSettings, parts=FAMILIES["sd"].parts[:1])
    with registered(other):
        config = Config(model=Model(family=OtherSettings()))
        assert [g.key for g in groups_of(config, ("parts",))] == ["parts/unet"]


def test_lists_are_left_to_their_editors() -> None:
    assert groups_of(Config(), ("concepts",)) == ()
    assert all(r.kind != "list" for g in groups_of(Config(), ("sampling",)) for r in g.records)


def test_a_section_that_no_page_claims_is_on_the_training_page() -> None:
    assert "tea" in claimed_sections(TeaConfig)
    assert "tea" in sections_of(page_named("training"), TeaConfig)
    page = page_of(TeaConfig, "tea.strength")
    assert page is not None
    assert page.key == "training"
    assert [g.title for g in groups_of(TeaConfig(), ("tea",))] == ["Pot", "Cup"]


def test_every_field_of_the_config_is_on_exactly_one_page() -> None:
    shown = [s for page in SETTING_PAGES for s in sections_of(page, Config)]
    assert sorted(s for s in shown if "." not in s) == sorted(claimed_sections(Config))
    rows = [r.path for page in SETTING_PAGES for g in groups_on(page, Config()) for r in g.records]
    assert len(rows) == len(set(rows))
    assert "training.method" not in {r.path for g in groups_on(page_named("training"), Config()) for r in g.records}
    page = page_of(Config, "training.method.guidance")
    assert page is not None
    assert page.key == "rewards"
    assert all(page_of(Config, r.path) is not None for r in records_of(Config))
    assert page_of(Config, "") is None
    assert page_of(Config, "unknown.onetrainer") is None


def test_the_fields_of_a_variant_are_its_own() -> None:
    config = TeaConfig()
    brewing = record_at(config, "tea.brewing")
    assert brewing is not None
    assert [r.path for r in variant_records(config, brewing)] == ["tea.brewing.patience"]
    config = edited(config, tea__brewing=Fast())  # type: ignore[assignment]
    assert [r.name for r in variant_records(config, brewing)] == ["hurry", "is_rash"]


def test_a_field_is_relevant_by_its_condition() -> None:
    config = TeaConfig()
    milk = record_at(config, "tea.milk_ml")
    assert milk is not None
    assert not is_relevant(config, milk)
    assert is_relevant(edited(config, tea__has_milk=True), milk)
    assert is_relevant(config, record_at(config, "tea.strength"))  # type: ignore[arg-type]


def test_a_condition_is_about_a_sibling_inside_a_part() -> None:
    config = edited(Config(), parts__unet__train=False)
    rate, other = (record_at(config, f"parts.{p}.learning_rate") for p in ("unet", "text_encoder"))
    assert rate is not None
    assert other is not None
    assert not is_relevant(config, rate)
    assert is_relevant(config, other)


def test_advanced_fields_are_hidden_unless_changed() -> None:
    config = TeaConfig()
    secret = record_at(config, "tea.secret")
    assert secret is not None
    assert not is_shown(config, secret, show_advanced=False)
    assert is_shown(config, secret, show_advanced=True)
    assert is_shown(edited(config, tea__secret="x"), secret, show_advanced=False)


def test_the_fields_of_a_concept_have_records() -> None:
    paths = {r.path for r in records_of(Concept, "concepts.0")}
    assert {f"concepts.0.{name}" for name, info in Concept.model_fields.items() if info.metadata} <= paths
    assert all(path.startswith("concepts.0.") for path in paths)


def test_fields_of_a_variant_with_a_heading_of_their_own_are_a_group() -> None:
    config = edited(Config(), adapter="oft")
    groups = {g.title: [r.name for r in g.records] for g in groups_of(config, ("adapter",))}
    assert list(groups) == ["Adapter", "Layers", "Regularization", "Starting point", "Adapter weights"]
    assert groups["Adapter"] == ["adapter"]
    assert groups["Regularization"] == ["dropout", "module_dropout"]
    beside = inline_records(config, groups_of(config, ("adapter",))[0].records[0])
    assert beside[0].name == "block_size"
    assert not {r.name for r in beside} & {"dropout", "layers", "start_from"}


def test_a_field_is_out_of_reach_with_the_field_it_depends_on() -> None:
    """The layer names of a LoRA used to be shown for a fine-tune."""
    config = edited(Config(), adapter__layers="custom", training__layer_filter="custom")
    names = [record_at(config, path) for path in ("adapter.custom_layers", "training.layer_filter_names")]
    for target, seen in (("adapter", [True, False]), ("full", [False, True])):
        config = edited(config, training__trains=target)
        assert [r is not None and is_reachable(config, r) for r in names] == seen


def test_a_condition_is_a_number_that_is_set_or_another_in_its_place() -> None:
    generalized = record_at(Config(), "training.noise.generalized_offset")
    assert generalized is not None
    assert not is_reachable(Config(), generalized)
    assert is_reachable(edited(Config(), training__noise__offset_weight=0.5), generalized)
    assert is_reachable(edited(Config(), training__noise__offset_adaptive_scale=0.5), generalized)
