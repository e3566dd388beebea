"""YAML and TOML files with mistakes are reported by their line and what to do, without the parser's own words."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.config.imports.any_file import load_any

YAML = {
    "job: extension\nconfig:\n\tname: x": ("line 3 cannot be read: name: x. Indent with spaces",),
    "name: my file: second": ("line 1", "colon in quotation marks"),
    "trigger: @name": ("line 1", "Put text in quotation marks"),
    "prompts: [a, b": ("bracket or brace is still open",),
    'path: "C:\\photos"': ("line 1", "Write paths with /"),
    "prompt: 'a cat": ("A quotation mark is not closed",),
    "a: 1\n- b": ("line 2 cannot be read: - b. Indent",),
    "size: !!int big": ("a value cannot be read",),
    "\x00": ("it ends too early, or a value cannot be read",),
}
TOML = {
    'title = "x"\ncache = True': ("line 2 cannot be read: cache = True. ", "small letters"),
    'dir = "C:\\photos"': ("line 1", "Write paths with /"),
    "rate = 1\nrate = 2": ("The same name is given twice",),
    "rate: 1": ("line 1", "a name, = and a value"),
    "[network\nrate = 1": ("line 1 cannot be read: [network. A bracket",),
    "a = 1 b = 2": ("a line of its own",),
    "prompt = 'a cat": ("A quotation mark is not closed",),
}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [("a.yaml", *row) for row in YAML.items()] + [("a.toml", *row) for row in TOML.items()],
)
def test_a_mistake_is_reported_by_its_line(tmp_path: Path, name: str, text: str, words: tuple[str, ...]) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    (problem,) = load_any(path).problems
    assert all(word in problem.message for word in words), problem.message
    assert problem.message.endswith(".")
    assert ".." not in problem.message.removeprefix(str(path))
    assert not any(word in problem.message for word in ("token", "stream", "literal", "mapping", "statement"))
