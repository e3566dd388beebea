"""Read YAML that may come from anybody: plain values alone, within limits of size, depth and aliases."""

from __future__ import annotations

from typing import Any

from yaml import MappingNode, MarkedYAMLError, Node, SafeLoader, SequenceNode, YAMLError

from modules.config.imports.syntax import describe_yaml_error

MAX_BYTES = 400_000
_MAX_DEPTH = 60
_TOO_DEEP = f"is not read: it is nested more than {_MAX_DEPTH} deep, or contains itself"
_MAX_VALUES = 50_000
"""The values of a file with its aliases written out: a few lines of nested aliases stand for billions."""


class UnreadableYamlError(ValueError):
    """The text is not YAML, or beyond the limits; the message is the rest of a sentence that begins with the file."""


class _PlainLoader(SafeLoader):  # type: ignore[misc]  # the package has no types
    """YAML's plain values: no dates, which JSON does not have, and which nothing here reads."""


_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in SafeLoader.yaml_implicit_resolvers.items()
}


def read_yaml(text: str) -> Any:
    """Return the value of a YAML text, with strings, numbers, booleans, nulls, lists and objects alone.

    Raises UnreadableYamlError. Nothing of it is built before its size, with aliases written out, is known.
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
        # Of values that their tags promise and that they are not, and numbers of thousands of digits.
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
