"""What is said of a file that is no JSON: in words, with the line where a person has to look."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.config.codec import load_file


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is empty."),
        (" \n", "it is empty."),
        ('{\n "a": 1,\n}', "in line 2 there is a comma too many."),
        ('{"a": [1,\n2,\n\n]}', "in line 2 there is a comma too many."),
        ('{"a": 1,\n, "b": 2}', "in line 2 there is a comma too many."),
        ('{"a": 1\n "b": 2}', "in line 2, column 2, a comma is missing."),
        ('{"a" 1}', "in line 1, column 6, a colon is missing."),
        ('{"a", 1}', "in line 1, column 5, a colon is missing."),
        ('{a: 1}', "a name in double quotation marks is missing."),
        ('{"a": 1}\n}', "in line 2, column 1, something stands after the end."),
        ('{"a": "C:\\me"}', "a single backslash stands in a text. Write paths with /, or each backslash twice."),
        ('{"a": "C:\\users"}', "a single backslash stands in a text. Write paths with /, or each backslash twice."),
        ('{"a": "b', "in line 1 a text has no closing quotation mark."),
        ('{"a": "b\nc"}', "in line 1 a text goes on into the next line."),
        ('{"a": {\n"b": 1', "it ends in line 2, before all that was opened is closed."),
        ('{"a": True}', "Write true in place of True."),
        ('{"a": None}', "Write null in place of None."),
        ('// mine\n{"a": 1}', "JSON has no comments: take them out."),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "a.json"
    file.write_text(text)
    [problem] = load_file(file).problems
    assert str(problem).startswith(f"{file} is not a JSON file: ")
    assert str(problem).endswith(words)
    assert problem.severity == "error"
