"""The number of threads is measured once on a machine, and then remembered."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from modules.system.paths import machine_choices_file
from trainer.run import threads
from trainer.run.threads import machine_identity, measure_once


def _counting(*values: int) -> tuple[Callable[[], int], list[int]]:
    """Return a measurement that gives these values in turn, and a list of those it has given."""
    left, given = list(values), list[int]()

    def measure() -> int:
        given.append(left.pop(0))
        return given[-1]

    return measure, given


def test_it_is_measured_once() -> None:
    measure, given = _counting(2, 1)
    assert [measure_once(2, measure) for _ in range(3)] == [2, 2, 2]
    assert given == [2]
    assert machine_choices_file().is_file()


def test_another_number_of_cores_or_machine_is_measured_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    measure, given = _counting(1, 2, 3)
    measure_once(2, measure)
    measure_once(3, measure)
    with monkeypatch.context() as patch:
        patch.setattr(threads, "machine_identity", lambda: "another machine")
        measure_once(2, measure)
    assert given == [1, 2, 3]
    assert measure_once(2, measure) == 1


@pytest.mark.parametrize("content", ["", "{", "[]", '"x"', "\x00", "[" * 100_000])
def test_a_damaged_file_is_measured_anew_and_replaced(content: str, tmp_path: Path) -> None:
    file = tmp_path / "choices.json"
    file.write_text(content, encoding="utf-8")
    measure, given = _counting(5)
    assert measure_once(8, measure, file=file) == 5
    assert measure_once(8, measure, file=file) == 5
    assert given == [5]


@pytest.mark.parametrize("value", [True, "2", 0, None])
def test_a_value_that_is_not_a_number_of_threads_is_measured_anew(value: object, tmp_path: Path) -> None:
    file = tmp_path / "choices.json"
    file.write_text(json.dumps({f"CPU threads | 1 or 8 | {machine_identity()}": value}), encoding="utf-8")
    assert measure_once(8, lambda: 4, file=file) == 4


def test_a_folder_that_cannot_be_written_is_ignored(tmp_path: Path) -> None:
    blocked = tmp_path / "a file"
    blocked.write_text("", encoding="utf-8")
    assert measure_once(8, lambda: 3, file=blocked / "choices.json") == 3


def test_two_processes_that_measure_at_once_choose_the_same(tmp_path: Path) -> None:
    file = tmp_path / "choices.json"

    def measure_as_the_other_one_stores() -> int:
        return measure_once(8, lambda: 2, file=file) - 1

    assert measure_once(8, measure_as_the_other_one_stores, file=file) == 2


def test_the_file_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_MAX_ENTRIES", 3)
    file = tmp_path / "choices.json"
    for number in range(1, 6):
        measure_once(number, lambda number=number: number, file=file)  # type: ignore[misc]
    assert list(json.loads(file.read_text(encoding="utf-8")).values()) == [3, 4, 5]


def test_the_identity_names_the_machine_and_torch() -> None:
    assert " cores | " in machine_identity()
    assert "torch 2" in machine_identity()
