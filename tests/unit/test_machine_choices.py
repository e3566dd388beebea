"""What is measured once on a machine, and then remembered."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from modules.system import machine_choices
from modules.system.machine_choices import machine_choice, machine_identity
from modules.system.paths import machine_choices_file


def _counting(*values: int) -> tuple[Callable[[], int], list[int]]:
    """Return a measurement that gives these values in turn, and a list of those it has given."""
    left, given = list(values), list[int]()

    def measure() -> int:
        given.append(left.pop(0))
        return given[-1]

    return measure, given


def test_it_is_measured_once() -> None:
    measure, given = _counting(2, 1)
    assert [machine_choice("threads", "of 2", measure, kind=int) for _ in range(3)] == [2, 2, 2]
    assert given == [2]
    assert machine_choices_file().is_file()


def test_another_workload_or_machine_is_measured_for_itself() -> None:
    measure, given = _counting(1, 2, 3, 4)
    gpu = f"{machine_identity()} | GPU"
    for name, workload, machine in (
        ("threads", "a", ""), ("threads", "b", ""), ("layout", "a", ""), ("threads", "a", gpu),
    ):  # fmt: skip
        machine_choice(name, workload, measure, kind=int, machine=machine)
    assert given == [1, 2, 3, 4]
    assert machine_choice("threads", "a", measure, kind=int) == 1


@pytest.mark.parametrize("content", ["", "{", "[]", '"x"', "\x00", "[" * 100_000])
def test_a_damaged_file_is_measured_anew_and_replaced(content: str, tmp_path: Path) -> None:
    file = tmp_path / "choices.json"
    file.write_text(content, encoding="utf-8")
    measure, given = _counting(5)
    assert machine_choice("threads", "a", measure, kind=int, file=file) == 5
    assert machine_choice("threads", "a", measure, kind=int, file=file) == 5
    assert given == [5]


def test_a_value_of_another_type_is_measured_anew(tmp_path: Path) -> None:
    file = tmp_path / "choices.json"
    machine_choice("threads", "a", lambda: True, kind=bool, file=file)  # in Python a bool is an int as well
    assert machine_choice("threads", "a", lambda: 4, kind=int, file=file) == 4


def test_a_folder_that_cannot_be_written_is_ignored(tmp_path: Path) -> None:
    blocked = tmp_path / "a file"
    blocked.write_text("", encoding="utf-8")
    assert machine_choice("threads", "a", lambda: 3, kind=int, file=blocked / "choices.json") == 3


def test_two_processes_that_measure_at_once_choose_the_same(tmp_path: Path) -> None:
    file = tmp_path / "choices.json"

    def measure_as_the_other_one_stores() -> int:
        return machine_choice("threads", "a", lambda: 2, kind=int, file=file) - 1

    assert machine_choice("threads", "a", measure_as_the_other_one_stores, kind=int, file=file) == 2


def test_the_file_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_choices, "_MAX_ENTRIES", 3)
    file = tmp_path / "choices.json"
    for number in range(5):
        machine_choice("threads", f"of {number}", lambda number=number: number, kind=int, file=file)  # type: ignore[misc]
    assert list(json.loads(file.read_text(encoding="utf-8")).values()) == [2, 3, 4]


def test_the_identity_names_the_machine_and_torch() -> None:
    assert " cores | " in machine_identity()
    assert "torch 2" in machine_identity()
