"""What has to hold at every point: old or new, never torn; a plain sentence; and the action succeeds afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from modules.system.errors import DarkroomError
from modules.system.file_errors import describe_file_error
from modules.system.leftovers import TEMPORARY_MARK, sweep_once
from tests.builders.disk.recorder import FAULTS, Call, Fault, recording
from tests.builders.disk.replay import Tree, crashes, read_tree, write_tree
from tests.builders.disk.scenarios import Observed, Scenario, Told


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: how many points of a scenario were tried with a fault, and what was lost at which."""

    scenario: str
    fault: str
    points: int
    lost: tuple[str, ...] = ()

    def __str__(self) -> str:
        survived = self.points - len(self.lost)
        return f"{self.scenario:<28} {self.fault:<26} {self.points:>6} {survived:>9} {len(self.lost):>5}"


HEADER = f"{'scenario':<28} {'fault':<26} {'points':>6} {'survived':>9} {'lost':>5}"


def rows_of(scenario: Scenario, root: Path, *, every: int = 1) -> Iterator[Row]:
    """Try every fault at every point of a scenario (or at each `every`-th), and yield the rows of the table."""
    before, calls, old, new = _recorded(scenario, root)
    for kind, fault in enumerate(FAULTS):
        points = [
            number
            for number in range(1 + kind % every, len(calls) + 1, every)
            if fault != "torn" or calls[number - 1].kind == "write"
        ]
        lost = [problem for n in points if (problem := _with_error(scenario, root, before, n, fault, old, new))]
        yield Row(scenario.name, fault, len(points), tuple(lost))
    found: dict[str, list[str]] = {}
    counts: dict[str, int] = {}
    for number, crash, tree in crashes(before, calls, range(0, len(calls) + 1, every)):
        counts[crash] = counts.get(crash, 0) + 1
        if problem := _after_crash(scenario, root, tree, old, new):
            found.setdefault(crash, []).append(f"{crash} after call {number} {_words(calls, number)}: {problem}")
    for crash, count in counts.items():
        yield Row(scenario.name, crash, count, tuple(found.get(crash, ())))


def _recorded(scenario: Scenario, root: Path) -> tuple[Tree, list[Call], Observed, Observed]:
    """Return what is there first, the calls of the action, and what is read before and after it."""
    write_tree(root, {})
    scenario.prepare(root)
    before, old = read_tree(root), scenario.observe(root)
    with recording(root, is_crash=True) as recorder:
        scenario.act(root)
    new = scenario.observe(root)
    assert old != new, scenario.name
    assert recorder.calls, scenario.name
    return before, recorder.calls, old, new


def _with_error(
    scenario: Scenario, root: Path, before: Tree, number: int, fault: Fault, old: Observed, new: Observed
) -> str:
    """Let a call fail, and return what was lost or said wrongly; an empty string if nothing was."""
    write_tree(root, before)
    error: Exception | None = None
    with recording(root, fail_at=number, fault=fault) as recorder:
        try:
            scenario.act(root)
        except Exception as raised:  # noqa: BLE001 - whatever it is, it is judged
            error = raised
    call = recorder.failed
    if call is None:
        return f"{fault} at call {number}: the call did not come again"
    where = f"{fault} at call {number} ({call.kind} {call.path})"
    problem = _observed(scenario, root, old, new, is_either=error is not None)
    problem = problem or (told_wrongly(error, root) if error is not None else "")
    problem = problem or _again(scenario, root, new)
    return f"{where}: {problem}" if problem else ""


def _after_crash(scenario: Scenario, root: Path, tree: Tree, old: Observed, new: Observed) -> str:
    write_tree(root, tree)
    sweep_once.cache_clear()
    problem = _observed(scenario, root, old, new, is_either=True)
    return problem or _again(scenario, root, new, is_swept=True)


def _observed(scenario: Scenario, root: Path, old: Observed, new: Observed, *, is_either: bool) -> str:
    """Return what is neither old nor new, or with `is_either` false what is not new although the action succeeded."""
    try:
        found = scenario.observe(root)
    except Exception as error:  # noqa: BLE001 - a reader that fails is a loss
        return f"it cannot be read: {error!r}"
    if not is_either:
        return "" if found == new else f"it succeeded, but {_difference(found, new)}"
    for name, value in found.items():
        if value not in (old.get(name), new.get(name)):
            return f"{name} is {value!r}, neither old nor new"
    return ""


def _again(scenario: Scenario, root: Path, new: Observed, *, is_swept: bool = False) -> str:
    """Carry the action out once more, without a fault."""
    try:
        scenario.act(root)
    except Exception as error:  # noqa: BLE001 - it has to succeed
        return f"the next attempt failed: {error!r}"
    found = scenario.observe(root)
    if found != new:
        return f"after the next attempt {_difference(found, new)}"
    left = [path for path in root.rglob(f"*{TEMPORARY_MARK}*") if is_swept and path.parent != root]
    return f"left for ever: {left}" if left else ""


def told_wrongly(error: Exception, root: Path) -> str:
    """Return what is wrong with what a person reads about an error; an empty string for a plain sentence."""
    match error:
        case DarkroomError() | Told():
            text = str(error)
        case OSError():
            text = " ".join(describe_file_error(error))
        case _:
            return f"the error was {error!r}"
    return words_wrong(text, root)


def words_wrong(text: str, root: Path) -> str:
    """Return what is wrong with a sentence: no path, a temporary name, a traceback, a number instead of words."""
    wrong = [w for w in (TEMPORARY_MARK, "Traceback", "bug in the program", "[Errno", "Logging error") if w in text]
    if wrong:
        return f"it said {wrong[0]!r}: {text}"
    return "" if str(root) in text else f"it named no file: {text}"


def _difference(found: Observed, expected: Observed) -> str:
    return ", ".join(
        f"{n} is {found.get(n)!r} instead of {expected.get(n)!r}" for n in expected if found.get(n) != expected[n]
    )


def _words(calls: Sequence[Call], number: int) -> str:
    return f"({calls[number - 1].kind} {calls[number - 1].path})" if number else "(none)"
