"""Every call that changes the disk fails in turn, or is the last before a kill or a power failure.

`python -m tests.builders.disk` prints the table. Daily a sample of the calls, all of them with `-m full`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from tests.builders.disk.checks import Row, rows_of
from tests.builders.disk.replay import Disk, read_tree
from tests.builders.disk.run_scenario import CALLED_COMPLETE, RunScenario, points_of
from tests.builders.disk.scenarios import SCENARIOS, Scenario

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the names of open files are read from /proc")


def lost(rows: Iterable[Row]) -> list[str]:
    """What was lost; a run that is called complete without its result has a test of its own."""
    return [problem for row in rows for problem in row.lost if CALLED_COMPLETE not in problem]


@pytest.fixture(scope="module")
def small_run(tiny_sd: Path, images: Path, tmp_path_factory: pytest.TempPathFactory) -> RunScenario:
    return RunScenario(tmp_path_factory.mktemp("disk") / "run", tiny_sd, images)


def spread(run: RunScenario, count: int) -> Sequence[int]:
    """Some numbers of calls, over the whole run."""
    return range(1, len(run.calls) + 1, max(1, len(run.calls) // count))


@pytest.mark.parametrize("every", [19, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name.replace(" ", "-"))
def test_nothing_is_lost_at_any_call(scenario: Scenario, tmp_path: Path, every: int) -> None:
    rows = list(rows_of(scenario, tmp_path / "root", every=every))
    assert sum(row.points for row in rows) > 0
    assert lost(rows) == []


def test_the_repeated_calls_give_what_is_on_the_disk(tmp_path: Path) -> None:
    """Otherwise nothing else here means anything."""
    from tests.builders.disk.recorder import recording

    scenario = next(s for s in SCENARIOS if s.name == "backups")
    scenario.prepare(tmp_path)
    disk = Disk(read_tree(tmp_path))
    with recording(tmp_path) as recorder:
        scenario.act(tmp_path)
    for call in recorder.calls:
        disk.apply(call)
    assert disk.after("kill") == read_tree(tmp_path)
    assert disk.after("power failure") != {}


def test_a_crash_of_a_run_loses_nothing_it_reported(small_run: RunScenario) -> None:
    assert lost(small_run.rows_of_crashes(numbers=spread(small_run, 20), resumes=False)) == []
    assert lost(small_run.rows_of_crashes(numbers=spread(small_run, 2)[1:])) == []


@pytest.mark.full
def test_every_crash_of_a_run_is_resumed_bit_equal(small_run: RunScenario) -> None:
    assert lost(small_run.rows_of_crashes()) == []


def test_an_error_in_a_run_loses_nothing_and_is_a_plain_sentence(small_run: RunScenario) -> None:
    points = points_of(small_run.calls, faults_each=1)
    assert lost(small_run.rows_of_errors([points[number - 1] for number in spread(small_run, 3)])) == []


@pytest.mark.full
@pytest.mark.parametrize("part", range(8))
def test_every_error_in_a_run(small_run: RunScenario, part: int) -> None:
    assert lost(small_run.rows_of_errors(points_of(small_run.calls, faults_each=2)[part::8])) == []


def test_no_run_is_called_complete_without_its_result(small_run: RunScenario) -> None:
    """An older file at the place of the result proves nothing."""
    last = max(n for n, call in enumerate(small_run.calls) if call.kind == "rename" and "step-00000004" in call.to)
    rows = small_run.rows_of_crashes(numbers=[last + 2])
    assert [problem for row in rows for problem in row.lost] == []
