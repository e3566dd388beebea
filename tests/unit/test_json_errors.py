"""Descriptions of JSON syntax errors: in plain words, with the line to look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.config.codec import load_file


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is empty."),
        (" \n", "it is empty."),
        ('{\n "a": 1,\n}', "line 2 has an extra comma."),
        ('{"a": [1,\n2,\n\n]}', "line 2 has an extra comma."),
        ('{"a": 1,\n, "b": 2}', "line 2 has an extra comma."),
        ('{"a": 1\n "b": 2}', "in line 2, column 2, a comma is missing."),
        ('{"a" 1}', "in line 1, column 6, a colon is missing."),
        ('{"a", 1}', "in line 1, column 5, a colon is missing."),
        ('{a: 1}', "a name in double quotation marks is missing."),
        ('{"a": 1}\n}', "in line 2, column 1, there is text after the end."),
        ('{"a": "C:\\me"}', "has a single backslash in a string. Write paths with /, or double each backslash."),
        ('{"a": "C:\\users"}', "has a single backslash in a string. Write paths with /, or double each backslash."),
        ('{"a": "b', "line 1 has a string without a closing quotation mark."),
        ('{"a": "b\nc"}', "line 1 has a string that continues on the next line."),
        ('{"a": {\n"b": 1', "it ends in line 2 with brackets or braces still open."),
        ('{"a": True}', "Write true instead of True."),
        ('{"a": None}', "Write null instead of None."),
        ('// mine\n{"a": 1}', "JSON does not allow comments: remove them."),
    ],
)  # fmt: skip
def test_an_error_is_described_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "a.json"
    file.write_text(text)
    [problem] = load_file(file).problems
    assert str(problem).startswith(f"{file} is not a JSON file: ")
    assert str(problem).endswith(words)
    assert problem.severity == "error"
    file.rename(tmp_path / "concepts.json")
    (tmp_path / "config.json").write_text('{"darkroom_version": 7, "concepts_file": "concepts.json"}')
    [problem] = load_file(tmp_path / "config.json").problems
    assert "concepts.json with the concepts cannot be read: it is not a JSON file: " in problem.message
    assert "Expecting" not in problem.message
