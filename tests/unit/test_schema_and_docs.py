"""The JSON Schema that editors read, and the document of all settings, both made from the declarations."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from jsonschema import Draft202012Validator

from modules.config.codec import decode, encode
from modules.config.documents import families_document, json_schema, optimizers_document, settings_document
from modules.config.presets import list_presets
from modules.config.rules import problems_of
from modules.config.schema import Config
from modules.families.registry import FAMILIES
from modules.objectives.registry import METHODS
from modules.settings.field import FieldRecord, records_of
from modules.system.paths import PROGRAM_ROOT
from tests.unit.strategies import few, valid_configs
from trainer.__main__ import main
from trainer.jobs.config import schema_text

VALIDATOR = Draft202012Validator(json_schema())


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(json_schema())


@few
@given(valid_configs())
def test_a_saved_config_fits_the_schema(config: Config) -> None:
    saved = json.loads(json.dumps(encode(config)))
    assert [e.message for e in VALIDATOR.iter_errors(saved)] == []


@pytest.mark.parametrize("preset", [p for p in list_presets() if p.is_built_in], ids=lambda p: p.name)
def test_sparse_files_fit_it_too(preset: Any) -> None:
    assert [e.message for e in VALIDATOR.iter_errors(json.loads(preset.path.read_text()))] == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"training": {"epochs": 0}},
        {"training": {"epoch": 3}},
        {"training": {"optimizer": {"name": "adamw", "beta1": 1.0}}},
        {"training": {"optimizer": "sorcery"}},
        {"model": {"family": "sd9"}},
        {"adapter": {"rank": "many"}},
    ],
)
def test_it_marks_what_does_not_fit(wrong: dict[str, Any]) -> None:
    assert VALIDATOR.is_valid({"darkroom_version": 7})
    assert not VALIDATOR.is_valid({"darkroom_version": 7, **wrong})


def test_a_bare_name_and_an_object_without_one_are_variants() -> None:
    assert VALIDATOR.is_valid(
        {"darkroom_version": 7, "training": {"optimizer": "adafactor"}, "adapter": {"rank": 8}, "$schema": "x.json"}
    )


def test_help_and_labels_are_in_it() -> None:
    rank = json_schema()["$defs"]["Lora"]["properties"]["rank"]
    assert (rank["title"], rank["minimum"], rank["default"]) == ("Rank", 1, 16)
    assert "The file grows with it." in rank["description"]


def everything(records: tuple[FieldRecord, ...]) -> list[FieldRecord]:
    inner = [records_of(s, r.path) for r in records for s in (*r.variants.values(), *([r.item] if r.item else []))]
    return [*records, *(r for found in inner for r in everything(found))]


def test_the_document_has_every_setting_with_its_words() -> None:
    text = settings_document()
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    for record in everything(records_of(Config)):
        if record.kind in ("list", "map"):  # a heading of its own
            assert f"### {record.label}: `{record.path}." in text
            continue
        assert any(f"{record.name}`" in row and record.setting.help[:40] in row for row in rows), record.path


def test_the_document_and_the_schema_in_the_repository_are_up_to_date() -> None:
    generated = PROGRAM_ROOT / "docs" / "generated"
    for name, text, option in (
        ("config.schema.json", schema_text(), ""),
        ("settings.md", settings_document(), "--markdown "),
        ("optimizers.md", optimizers_document(), "--optimizers "),
        ("families.md", families_document(), "--families "),
    ):
        how = f"Generate it again: python -m trainer schema {option}--out docs/generated/{name}"
        assert (generated / name).read_text("utf-8") == text, how


@pytest.mark.parametrize("family", FAMILIES)
def test_the_table_of_families_is_that_of_the_rules(family: str) -> None:
    heading, _, *rows = (line.strip("| ").split(" | ") for line in families_document().splitlines() if line[:2] == "| ")
    [row] = [dict(zip(heading, row, strict=True)) for row in rows if row[0].endswith(f"(`{family}`)")]

    def allows(path: str, **training: Any) -> str:
        config = decode({"darkroom_version": 7, "model": {"family": family}, "training": training}).config
        return "no" if any(p.severity == "error" and p.path == path for p in problems_of(config)) else "yes"

    assert row["Embeddings"] == allows("training.trains", trains="embedding")
    assert row["VAE"] == allows("training.trains", trains="vae")
    assert row["float16"] == allows("training.precision", precision="float16")
    assert not [m for m in METHODS.values() if m.refusal(m.settings(), FAMILIES[family].process)]


def test_the_verb_writes_either(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out)["$defs"]
    assert main(["schema", "--markdown", "--out", str(tmp_path / "settings.md")]) == 0
    assert (tmp_path / "settings.md").read_text("utf-8") == settings_document()
    assert main(["schema", "--optimizers", "--out", str(tmp_path / "optimizers.md")]) == 0
    assert (tmp_path / "optimizers.md").read_text("utf-8") == optimizers_document()
