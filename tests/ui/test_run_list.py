"""The list of runs, their words, their past as the window shows it, and comparing them. No Tk."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from modules.config.codec import save_file
from modules.config.schema import Config
from modules.settings.edit import set_path
from modules.system.paths import from_root
from modules.system.problem import format_size
from tests.unit.test_run_records import started, step, validated, write_run
from trainer.events import Event, ModelSaved, RunFailed, RunFinished, SampleReady, WarningRaised
from trainer.machine_events import PaceMeasured
from trainer.run_folder.fork import Origin, write_origin
from trainer.run_folder.recipe import ConceptImages, Machine, Recipe, write_recipe
from trainer.run_folder.records import read_record
from trainer.run_folder.run_lock import RunLock
from trainer.run_folder.trash import contents_of
from trainer.run_status import RunStatus
from ui.features.runs.comparison import (
    ComparedRun,
    compare_runs,
    comparison_lines,
    figure_rows,
    recorded_rows,
    setting_rows,
)
from ui.features.runs.model import RunList, changes_line, describe_deletion, fact_lines, row_of
from ui.loop.background import Background
from ui.loop.past_runs import read_past_state
from ui.loop.run_state import RunState
from ui.widgets.table import Column, fitting_columns

FINISHED = RunFinished("finished", 40, "Finished after 40 steps.")


class Reading:
    """A list of runs, with its background."""

    def __init__(self) -> None:
        self.background = Background()
        self.runs = RunList(self.background)

    def read(self, *workspaces: Path) -> list[str]:
        self.runs.refresh(workspaces)
        self.wait_until(lambda: not self.runs.is_reading)
        return self.names

    @property
    def names(self) -> list[str]:
        return [record.name for record in self.runs.visible()]

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            self.background.drain(time.perf_counter() + 1)
            assert time.monotonic() < deadline


def day(number: int) -> str:
    return f"2026-03-{number:02}_12-00-00"


def test_the_runs_of_all_workspaces_are_found_the_newest_first(tmp_path: Path) -> None:
    reading = Reading()
    for number in range(1, 31):
        write_run(tmp_path / ("a" if number % 2 else "b"), day(number), [(1440 * (number - 4), FINISHED)])
    places = [tmp_path / "a", tmp_path / "b", tmp_path / "gone", tmp_path / "a"]
    assert reading.read(*places) == [day(number) for number in range(30, 0, -1)]
    (tmp_path / "b" / "runs" / day(30)).rename(tmp_path / "elsewhere")
    new = write_run(tmp_path / "a", "2026-04-01_12-00-00", [])
    assert reading.read(*places)[:2] == [new.name, day(29)]
    assert reading.read(tmp_path / "b")[0] == day(28)


def test_only_runs_that_changed_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, seen = Reading(), list[str]()
    run_dir = write_run(tmp_path, day(1), [(0, step(3))])
    write_run(tmp_path, day(2), [(0, step(3))])
    monkeypatch.setattr(
        "ui.features.runs.model.read_record", lambda path: (seen.append(path.name), read_record(path))[1]
    )
    reading.read(tmp_path)
    reading.read(tmp_path)
    assert sorted(seen) == [day(1), day(2)]
    lock = RunLock(run_dir)
    reading.read(tmp_path)
    lock.release()
    assert seen[2:] == [day(1)]
    record = reading.runs.of(run_dir)
    assert record is not None
    assert record.status == "running"


def test_the_search_and_the_sorting(tmp_path: Path) -> None:
    reading = Reading()
    write_run(tmp_path, day(1), [(0, started(tmp_path)), (9, step(30)), (9, FINISHED)])
    write_run(tmp_path, day(2), [(0, started(tmp_path)), (1, validated(10, 0.5, 0.5, 10)), (1, step(10))])
    write_run(tmp_path, day(3), [(0, RunFailed("The disk is full."))])
    reading.read(tmp_path)
    for words, found in (("disk", [3]), ("finished", [1]), ("2026-03-02 crashed", [2]), ("nothing", [])):
        reading.runs.search = words
        assert reading.names == [day(n) for n in found]
    reading.runs.search = ""
    for column, order in (("steps", [1, 2, 3]), ("best", [2, 3, 1]), ("length", [1, 2, 3]), ("ending", [2, 3, 1])):
        reading.runs.sorting = reading.runs.sorting.by(column)
        assert reading.names == [day(n) for n in order], column
    reading.runs.sorting = reading.runs.sorting.by("ending")
    assert reading.names[0] == day(1)


def test_the_words_of_a_run(tmp_path: Path) -> None:
    run_dir = write_run(
        tmp_path,
        day(1),
        [
            (0, started(tmp_path)),
            (1, validated(10, 0.25, 0.25, 10)),
            (2, step(40)),
            (2, ModelSaved(40, str(from_root("models/zog.safetensors")), "kohya", True)),
            (2, FINISHED),
        ],
        has_backup=True,
    )
    write_origin(run_dir, Origin(Path("runs/before"), 7, is_weights_only=True))
    record = read_record(run_dir)
    assert row_of(record)[:6] == ("2026-03-01 12:00", "lora", "Finished", "40 of 40", "0.2500", "2 min")
    facts = "\n".join(fact_lines(record))
    for words in (
        "Finished after 40 steps.",
        "Step 40 of 40 in 2 min",
        "Best validation: 0.2500 at step 10",
        "Fork of the weights of before, step 7",
        "1 backup",
        "Output: models/zog.safetensors",
    ):
        assert words in facts
    assert [format_size(n) for n in (12, 12_300, 3_400_000, 1_260_000_000)] == ["12 B", "12 kB", "3.4 MB", "1.3 GB"]


def test_a_deletion_says_what_goes_and_what_stays(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, day(1), [(0, FINISHED)], has_backup=True)
    model = tmp_path / "zog.safetensors"
    model.write_bytes(b"1")
    inside = run_dir / "save" / "zog.safetensors"
    inside.parent.mkdir()
    inside.write_bytes(b"123456")
    words = describe_deletion([contents_of(run_dir)], [model, inside, tmp_path / "gone.safetensors"])
    assert f"{day(1)}: backups" in words
    assert "saved models 6 B" in words
    assert "trash" in words
    assert words.endswith(f"Exported models stay: {model}.")


def test_the_past_of_a_run_has_each_step_once_and_its_last_ending(tmp_path: Path) -> None:
    first: list[tuple[float, Event]] = [
        (0, started(tmp_path)),
        (1, step(1)),
        (2, step(2)),
        (2, RunFailed("No memory.")),
    ]
    second: list[tuple[float, Event]] = [
        (9, WarningRaised("The run resumes with changed settings.")),
        (10, started(tmp_path, 1)),
        (11, step(2)),
        (12, SampleReady(2, 0, "a cat", "cat.png")),
    ]
    run_dir = write_run(tmp_path, day(1), [*first, *second])
    state = read_past_state(run_dir)
    assert list(state.curve("smoothed")) == [(1, 0.3), (2, 0.3)]
    assert (state.finished, state.phase) == (None, "")
    assert state.failed is not None
    assert state.failed.is_crash
    assert state.step is not None
    assert state.started is not None
    assert (state.step.step, state.started.first_step, len(state.samples)) == (2, 1, 1)
    assert any("changed settings" in line.text for line in state.log)
    assert state.log[0].at_seconds > 0
    assert read_past_state(tmp_path) == RunState()


def test_runs_are_compared_by_figures_settings_and_curves(tmp_path: Path) -> None:
    one = write_run(tmp_path, day(1), [(0, started(tmp_path)), (1, step(1)), (1, validated(1, 0.5, 0.5, 1))])
    other = write_run(tmp_path, day(2), [(0, started(tmp_path)), (1, step(1)), (2, step(2)), (2, FINISHED)])
    third = write_run(tmp_path, day(3), [])
    config, _ = set_path(Config(), "training.epochs", 7)
    save_file(config, other / "config.json")
    (third / "config.json").unlink()
    runs = compare_runs([read_record(path) for path in (one, other, third)])
    lines = [(line.curve, line.token, list(line.series)) for line in comparison_lines(runs)]
    assert [(curve, series) for curve, _, series in lines] == [
        ("smoothed", [(1, 0.3)]),
        ("validation", [(1, 0.5)]),
        ("smoothed", [(1, 0.3), (2, 0.3)]),
    ]
    assert lines[0][1] == lines[1][1] != lines[2][1]
    assert ("Ended", ("Crashed", "Finished", "Crashed")) in figure_rows(runs)
    assert not recorded_rows(runs), "of older versions, without recipes"
    rows = dict(setting_rows(runs))
    assert rows["Training › Epochs"] == (str(Config().training.epochs), "7", "–")
    assert rows["Model › Base model"][0] == "models/photo.safetensors"
    assert not setting_rows([ComparedRun(runs[2].record, None, RunState())])


def test_what_changed_since_the_last_finished_run_is_shown(tmp_path: Path) -> None:
    """Versions, images and pace, of the run itself and in the comparison."""
    before = Recipe(
        {},
        {"torch": "2.13.0+rocm7.1", "python": "3.12"},
        Machine("cpu", "a processor", "Linux"),
        (),
        (ConceptImages("zog", "training", 1, "d1", images={"a.png": "1 2"}),),
    )
    now = replace(
        before,
        machine=Machine("cpu", "a processor", "Windows"),
        versions={"torch": "2.13.0+rocm7.2", "python": "3.12"},
        concepts=(ConceptImages("zog", "training", 1, "d2", images={"a.png": "1 3"}),),
    )
    good, run_dir, newest = (
        write_run(
            tmp_path, day(n), [(0, started(tmp_path)), (1, step(40)), (2, PaceMeasured(40, s, 2_000_000_000)), *end]
        )
        for n, s, end in ((1, 0.5, [(2, FINISHED)]), (2, 0.9, [(2, RunFailed("It failed."))]), (3, 0.5, []))
    )
    for place, recipe in ((good, before), (run_dir, now), (newest, before)):
        write_recipe(place, recipe)
    assert changes_line(read_record(run_dir)) == (
        f"Changed since the last finished run, {day(1)}: torch is 2.13.0+rocm7.2 (was 2.13.0+rocm7.1); "
        "the system is Windows (was Linux); 1 caption of zog is changed (a.png). "
        "Likely the cause: torch is 2.13.0+rocm7.2 (was 2.13.0+rocm7.1). "
        "Also, a step takes 0.9 s (was 0.5 s)."
    )
    assert changes_line(read_record(good)) == ""
    write_recipe(newest, now)
    words = changes_line(replace(read_record(newest), status=RunStatus.FINISHED))
    assert words.startswith("Changed since the last finished run")
    assert "cause" not in words, "it has neither failed nor become slower"
    write_recipe(newest, before)
    assert changes_line(read_record(newest)).startswith("Nothing that is recorded has changed since")
    assert "A step took 0.9 s; peak memory 2.0 GB" in fact_lines(read_record(run_dir))
    runs = compare_runs([read_record(path) for path in (good, run_dir)])
    assert ("Time of a step", ("0.5 s", "0.9 s")) in figure_rows(runs)
    assert recorded_rows(runs) == [
        ("System", ("Linux", "Windows")),
        ("Torch", ("2.13.0+rocm7.1", "2.13.0+rocm7.2")),
        ("Images", ("as the first", "1 caption of zog is changed (a.png)")),
    ]


def test_optional_columns_leave_where_the_others_would_be_clipped() -> None:
    columns = (
        Column("#0", "Started", 130),
        Column("result", "Result", 140, is_stretched=True),
        Column("best", "Best", 110, is_optional=True),
        Column("size", "Size", 70, is_optional=True),
    )
    assert fitting_columns(columns, 400) == columns
    assert fitting_columns(columns, 320) == columns[:3]
    assert fitting_columns(columns, 200) == fitting_columns(columns, 50) == columns[:2]


def test_the_part_that_a_resume_lost_does_not_count_in_the_past(tmp_path: Path) -> None:
    """Resumed from the backup of step 20 after it had come to step 30, and stopped at step 22."""
    place = tmp_path / "runs" / day(1)
    lost: list[Event] = [step(30), validated(30, 0.1, 0.1, 30), SampleReady(30, 0, "a disc", "/tmp/30.png")]
    events: list[Event] = [
        started(place),
        step(20),
        validated(20, 0.3, 0.3, 20),
        *lost,
        started(place, 20),
        step(21),
        step(22),
    ]
    run_dir = write_run(tmp_path, day(1), [(0, event) for event in (*events, RunFinished("stopped", 22, "Stopped."))])
    state, record = read_past_state(run_dir), read_record(run_dir)
    assert [v.step for v in state.validations] == [20]
    assert state.samples == ()
    assert [number for number, _ in state.curve("loss")] == [20, 21, 22]
    assert state.step == step(22)
    assert (record.best_step, record.num_samples, record.step) == (20, 0, 22)
