"""The destination of a run: free, its own, or with a number."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from modules.config.schema import Config
from trainer.run_folder.destination import (
    DESTINATION_FILE,
    may_write,
    note_destination,
    resolved_destination,
    taken_by,
    with_free_number,
)
from trainer.run_folder.result import record_result


def config_at(place: Path | str, workspace: Path | str = "workspace") -> Config:
    return Config.model_validate({"output": {"destination": str(place)}, "general": {"workspace_dir": str(workspace)}})


def destination_of(config: Config) -> str:
    return config.output.destination


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace" / "runs" / "one"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize(
    ("there", "name", "free"),
    [
        ((), "a.safetensors", "a.safetensors"),
        (("a.safetensors",), "a.safetensors", "a-2.safetensors"),
        (("a.safetensors", "a-2.safetensors"), "a.safetensors", "a-3.safetensors"),
        (("a.safetensors", "a-2.safetensors"), "a-2.safetensors", "a-3.safetensors"),
        (("a-2.safetensors",), "a-2.safetensors", "a-2-2.safetensors"),
        (("a-768.safetensors",), "a-768.safetensors", "a-768-2.safetensors"),
        (("a.yaml",), "a.safetensors", "a-2.safetensors"),
        (("a_embeddings",), "a.safetensors", "a-2.safetensors"),
        (("a",), "a", "a-2"),
        (("v1.5",), "v1.5", "v1.5-2"),
        (("a.SAFETENSORS",), "a.SAFETENSORS", "a-2.SAFETENSORS"),
    ],
)
def test_the_first_free_number(tmp_path: Path, there: tuple[str, ...], name: str, free: str) -> None:
    for taken in there:
        (tmp_path / taken).mkdir()
    assert destination_of(resolved_destination(config_at(tmp_path / name))) == str(tmp_path / free)


def test_a_link_to_nowhere_is_taken(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").symlink_to(tmp_path / "gone")
    assert destination_of(resolved_destination(config_at(tmp_path / "a.safetensors"))).endswith("a-2.safetensors")


def test_a_relative_destination_stays_relative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.run_folder.destination.is_taken", lambda path: path.name == "a.safetensors")
    assert destination_of(with_free_number(config_at("models/a.safetensors"))) == "models/a-2.safetensors"
    assert destination_of(with_free_number(config_at("~/a.safetensors"))) == "~/a-2.safetensors"


@pytest.mark.parametrize("name", ["", "a\x00b.safetensors", "x" * 5000])
def test_an_impossible_name_is_left_to_the_check(name: str) -> None:
    assert destination_of(resolved_destination(config_at(name))) == name


def test_only_what_the_run_wrote_is_its_own(tmp_path: Path, run_dir: Path) -> None:
    place = tmp_path / "a.safetensors"
    place.write_bytes(b"mine")
    assert not may_write(place, run_dir)
    record_result(run_dir, place, [place], step=3)
    assert may_write(place, run_dir)
    assert not may_write(place, run_dir.with_name("other"))
    assert not may_write(place)
    place.write_bytes(b"your")
    assert not may_write(place, run_dir)


def test_what_may_be_replaced_is_what_was_there_at_the_start(tmp_path: Path, run_dir: Path) -> None:
    place = tmp_path / "a.safetensors"
    place.write_bytes(b"old")
    note_destination(run_dir, asked=str(place), chosen=str(place))
    assert may_write(place, run_dir)
    place.write_bytes(b"of another run")
    assert not may_write(place, run_dir)
    place.unlink()
    assert may_write(place, run_dir)


def test_a_run_goes_back_to_the_place_that_it_chose(tmp_path: Path, run_dir: Path) -> None:
    asked, chosen, other = (str(tmp_path / f"{name}.safetensors") for name in ("a", "a-2", "b"))
    note_destination(run_dir, asked=asked, chosen=chosen)
    for named, expected in ((asked, chosen), (chosen, chosen), (other, other)):
        assert destination_of(resolved_destination(config_at(named), run_dir)) == expected
    note_destination(run_dir, asked=chosen, chosen=str(tmp_path / "a-3.safetensors"))
    for named in (asked, chosen):
        assert destination_of(resolved_destination(config_at(named), run_dir)).endswith("a-3.safetensors")
    note_destination(run_dir, asked=other, chosen=other)
    assert destination_of(resolved_destination(config_at(asked), run_dir)) == asked


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"asked": 3, "chosen": 4, "replaces": 5}', '{"asked": [], "chosen": "", "replaces": [[1]]}',
     '{"asked": ["a"], "chosen": "b", "replaces": [["a", 1e999, 1]]}', "[" * 100_000],
)  # fmt: skip
def test_a_damaged_record_allows_nothing(tmp_path: Path, run_dir: Path, text: str) -> None:
    place = tmp_path / "a.safetensors"
    place.write_bytes(b"precious")
    (run_dir / DESTINATION_FILE).write_text(text)
    assert not may_write(place, run_dir)


def test_who_wrote_it_is_named(tmp_path: Path, run_dir: Path) -> None:
    place = tmp_path / "a.safetensors"
    config = config_at(place, run_dir.parents[1])
    place.write_bytes(b"precious")
    taken = taken_by(config)
    assert taken is not None
    assert (taken.is_ours, taken.run, taken.free) == (False, "", str(tmp_path / "a-2.safetensors"))
    save_file({"a": np.zeros(1)}, place, {"software": "Darkroom"})
    taken = taken_by(config)
    assert taken is not None
    assert (taken.is_ours, taken.run) == (True, "")
    record_result(run_dir, place, [place], step=3)
    taken = taken_by(config)
    assert taken is not None
    assert (taken.is_ours, taken.run) == (True, "one")
    assert taken.message.startswith(f"{place} is the result of the run one. It is kept; ")


def test_a_model_folder_is_known_by_its_weights(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "unet").mkdir(parents=True)
    (folder / "model_index.json").write_text(json.dumps({"_class_name": "StableDiffusionPipeline"}))
    for metadata, is_ours in (({"format": "pt"}, False), ({"darkroom_model_metadata": "{}"}, True)):
        save_file({"a": np.zeros(1)}, folder / "unet" / "diffusion_pytorch_model.safetensors", metadata)
        taken = taken_by(config_at(folder))
        assert taken is not None
        assert taken.is_ours is is_ours
