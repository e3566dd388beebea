"""Every finding leads to what fixes it: a remedy with a button and a command, or its field."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from modules.system.paths import PROGRAM_ROOT
from modules.system.problem import Problem
from modules.system.remedies import REMEDIES, remedies_of
from ui.loop.interaction import ACTIONS_OF_REMEDIES

# The findings without a field and without a remedy, by their file: why nothing but reading helps.
NEITHER = {
    "trainer/preflight/resume.py": "a run's folder that is in use, or cannot be read: no setting is wrong",
}


def constructed() -> Iterator[tuple[str, ast.Call]]:
    """The calls that make a problem in the checks and rules, with their files."""
    for folder in ("trainer/preflight", "modules/config/rules"):
        for file in sorted((PROGRAM_ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == Problem.__name__:
                    yield file.relative_to(PROGRAM_ROOT).as_posix(), node


def remedy_in(call: ast.Call) -> ast.expr | None:
    given = [keyword.value for keyword in call.keywords if keyword.arg == "remedy"]
    return (*given, *call.args[4:5], None)[0]


def test_every_finding_has_a_field_or_a_remedy() -> None:
    calls = list(constructed())
    assert len(calls) > 150
    without_field = {f for f, c in calls if isinstance(c.args[0], ast.Constant) and not c.args[0].value}
    assert without_field == NEITHER.keys()


def test_every_remedy_that_a_check_names_is_a_record_and_every_record_is_named() -> None:
    named = {r.value for _, c in constructed() if isinstance(r := remedy_in(c), ast.Constant)}
    files = [f for folder in ("modules", "trainer") for f in (PROGRAM_ROOT / folder).rglob("*.py")]
    source = "\n".join(f.read_text(encoding="utf-8") for f in files)
    of_errors = set(re.findall(r'remedy(?:: str)? ?= ?"(\w+)"', source))
    captions = (PROGRAM_ROOT / "trainer/preflight/missing_captions.py").read_text(encoding="utf-8")
    assert named | of_errors <= REMEDIES.keys()
    assert {r for r in REMEDIES if r not in named | of_errors and f'"{r}"' not in captions} == set()


def test_the_window_has_an_action_for_every_remedy() -> None:
    """The question about a taken destination comes at the start, where both can be kept."""
    assert ACTIONS_OF_REMEDIES.keys() == REMEDIES.keys() - {"destination"}


def test_a_remedy_is_listed_once_and_not_for_notes() -> None:
    problems = [Problem("a", "A.", "warning", remedy="length"), Problem("b", "B.", remedy="memory")]
    notes = [Problem("c", "C.", "info", remedy="captions"), Problem("d", "D."), problems[0]]
    assert [r.name for r in remedies_of([*problems, *notes])] == ["memory", "length"]
