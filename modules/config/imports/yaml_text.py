"""Read YAML from untrusted sources: plain values alone, within limits of size, depth and aliases."""

from __future__ import annotations

import re
from typing import Any

from yaml import MappingNode, MarkedYAMLError, Node, SafeLoader, SequenceNode, YAMLError

MAX_BYTES = 400_000
_MAX_DEPTH = 60
_TOO_DEEP = f"is not read: it is nested more than {_MAX_DEPTH} deep, or contains itself"
_MAX_VALUES = 50_000
"""The values of a file with its aliases written out: a few lines of nested aliases stand for billions."""


class UnreadableYamlError(ValueError):
    """The text is not YAML, or beyond the limits; the message is the rest of a sentence that begins with the file."""


class _PlainLoader(SafeLoader):  # type: ignore[misc]  # the package has no types
    """YAML's plain values, without dates, which JSON does not have and nothing here reads."""


_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in SafeLoader.yaml_implicit_resolvers.items()
}


def read_yaml(text: str) -> Any:
    """Return the value of a YAML text, which may have strings, numbers, booleans, nulls, lists and objects.

    Raises UnreadableYamlError. Values are built only after their number, with aliases written out, has been checked.
    """
    if len(text) > MAX_BYTES:
        raise UnreadableYamlError(f"is not read: it has more than {MAX_BYTES:,} characters")
    try:
        loader = _PlainLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _check_size(node, {}, 0)
        return _plain(loader.construct_document(node))
    except UnreadableYamlError:
        raise
    except MarkedYAMLError as error:
        line = None if error.problem_mark is None else error.problem_mark.line + 1
        description = describe_yaml_error(text, str(error.problem or error.context), line)
        raise UnreadableYamlError(f"is not a YAML file: {description}") from None
    except RecursionError:
        raise UnreadableYamlError(_TOO_DEEP) from None
    except (YAMLError, ValueError, OverflowError, AttributeError, TypeError, KeyError) as error:
        # For values that do not match their tags, and numbers of thousands of digits.
        raise UnreadableYamlError(f"is not a YAML file: {describe_yaml_error(text, str(error), None)}") from None


def _check_size(node: Node, known: dict[int, tuple[int, int]], depth: int) -> tuple[int, int]:
    """Return how many values a node stands for, with its aliases written out, and how deep they are nested.

    `known` are the results for nodes that were met before.
    """
    count, height = known.get(id(node), (0, 0))
    if not count:
        if depth > _MAX_DEPTH:
            raise UnreadableYamlError(_TOO_DEEP)
        children: list[Node] = []
        if isinstance(node, SequenceNode):
            children = node.value
        elif isinstance(node, MappingNode):
            children = [child for pair in node.value for child in pair]
        sizes = [_check_size(child, known, depth + 1) for child in children]
        count, height = 1 + sum(c for c, _ in sizes), 1 + max((h for _, h in sizes), default=0)
        known[id(node)] = count, height
    if count > _MAX_VALUES:
        raise UnreadableYamlError(f"is not read: it has more than {_MAX_VALUES:,} values")
    if depth + height > _MAX_DEPTH + 1:
        raise UnreadableYamlError(_TOO_DEEP)
    return count, height


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: keys as text, and text in place of bytes and sets."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, str | bool | int | float) else str(value)


# Describe syntax errors of YAML and TOML files for people who edit configs by hand; JSON's are in `json_errors`.
_MAX_QUOTED = 60
_QUOTE_PATHS = "Write paths with /, or put them in single quotation marks."
_QUOTE_TEXT = "Put text in quotation marks."
# Parts of parsers' reports, and what to do. The first one that is in a report applies.
_YAML_ADVICE = (
    ("'\\t'", "Indent with spaces: YAML allows no tabs."),
    ("unknown escape", _QUOTE_PATHS),
    ("mapping values are not allowed", "Put text with a colon in quotation marks, and indent equal levels alike."),
    ("cannot start any token", _QUOTE_TEXT),
    ("undefined alias", "Put text that begins with * in quotation marks."),
    ("<stream end>", "A bracket or brace is still open at the end."),
    ("end of stream", "A quotation mark is not closed."),
    ("<block end>", "Indent the lines of one level alike."),
    ("could not find expected ':'", "A colon is missing after a name."),
    ("another document", "Only one document is read: remove the line ---."),
    ("constructor for the tag", "Values with a tag (!) are not read."),
)
_TOML_ADVICE = (
    ("Unescaped '\\'", _QUOTE_PATHS),
    ("Invalid hex", _QUOTE_PATHS),
    ("Invalid value", "Put text in quotation marks, and write true and false in small letters."),
    ("Expected '='", "Each line is a name, = and a value."),
    ("Cannot overwrite", "The same name is given twice."),
    ("Cannot declare", "The same section is there twice."),
    ("newline or end of document", "Write each setting in a line of its own, and put text in quotation marks."),
    ("Illegal character", "A quotation mark is not closed in its line."),
    ("Expected '\"'", "A quotation mark is not closed."),
    ('Expected "\'"', "A quotation mark is not closed."),
    ("Expected ']'", "A bracket is not closed in its line."),
    ("Unclosed", "A bracket or brace is still open."),
    ("Invalid statement", "Each line is a name, = and a value."),
)
_TOML_LINE = re.compile(r"\(at line (\d+), column \d+\)")


def describe_yaml_error(text: str, report: str, line: int | None) -> str:
    """Return which line of a YAML text cannot be read and what to do, without a full stop.

    `report` is what the parser states, `line` the line that it names, counted from 1.
    """
    return _description(text, report, line, _YAML_ADVICE)


def describe_toml_error(text: str, report: str) -> str:
    """Return which line of a TOML text cannot be read and what to do, without a full stop."""
    place = _TOML_LINE.search(report)
    return _description(text, report, int(place[1]) if place else None, _TOML_ADVICE)


def _description(text: str, report: str, line: int | None, advice: tuple[tuple[str, str], ...]) -> str:
    lines = text.splitlines()
    quoted = lines[line - 1].strip()[:_MAX_QUOTED] if line and line <= len(lines) else ""
    where = f"line {line} cannot be read" if quoted else "it ends too early, or a value cannot be read"
    what = f"{where}: {quoted}" if quoted else where
    todo = next((todo for part, todo in advice if part in report), "")
    return f"{what}. {todo.removesuffix('.')}" if todo else what
