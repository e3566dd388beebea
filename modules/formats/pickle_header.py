"""Reads the contents of a pickled checkpoint (.ckpt, .pt) without running any of its code.

A pickle is a program for a stack machine (docs.python.org, pickletools). This module interprets its instructions and
tracks the objects they would build, tensors as names, shapes and dtypes; nothing named in the file is imported or
called. Torch-free; the weights themselves are read elsewhere, by torch with weights_only.
"""

from __future__ import annotations

import pickletools
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import IO, Any

from modules.formats.headers import UnreadableFileError

_MAX_PICKLE_BYTES = 200_000_000
_MAX_DEPTH = 6
_MARK = object()
# The exceptions that the zip and pickle readers raise for damaged and hostile files.
_DAMAGE = (
    *(OSError, EOFError, ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError),
    *(RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error),
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_DTYPES = {"Float": "F32", "Half": "F16", "BFloat16": "BF16", "Double": "F64", "Long": "I64", "Int": "I32"}
_OLD_FORMAT = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # torch before 1.6 begins with this number


@dataclass(frozen=True, slots=True)
class PickledTensor:
    """A tensor as described in a pickle; `place` is its storage's name and the index of its first element there."""

    dtype: str
    shape: tuple[int, ...]
    place: tuple[str, int] = ("", 0)


@dataclass(frozen=True, slots=True)
class PickleHeader:
    """The tensors and plain values of a pickle by dotted name, and the functions and classes it names."""

    tensors: dict[str, PickledTensor]
    values: dict[str, object]
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Named:
    name: str


@dataclass
class _Machine:
    stack: list[Any] = field(default_factory=list)
    memory: dict[int, Any] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)


def read_pickle_header(path: Path) -> PickleHeader:
    """Return the contents of a pickled checkpoint. Raises UnreadableFileError where it cannot be interpreted."""
    machine = _Machine()
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                root = _run(BytesIO(_pickle_of(archive)), machine)
        else:
            with path.open("rb") as file:
                root = _run_old(file, machine)
    except _DAMAGE as error:
        raise UnreadableFileError(
            "damaged", f"{path.name} is not a complete checkpoint.", advice="Download it again."
        ) from error
    tensors: dict[str, PickledTensor] = {}
    values: dict[str, object] = {}
    for name, value in _flattened(root, "", 0):
        if isinstance(value, PickledTensor):
            tensors[name] = value
        elif isinstance(value, str | int | float | bool):
            values[name] = value
    return PickleHeader(tensors, values, frozenset(machine.names))


def _pickle_of(archive: zipfile.ZipFile) -> bytes:
    entry = next((e for e in archive.infolist() if e.filename.endswith("data.pkl")), None)
    if entry is None or entry.file_size > _MAX_PICKLE_BYTES:
        raise ValueError("no data.pkl of a plausible size")
    return archive.read(entry)


def _run_old(file: IO[bytes], machine: _Machine) -> Any:
    """Interpret the fourth pickle of the old format: a magic number, the version and the system info precede it."""
    if file.read(len(_OLD_FORMAT)) != _OLD_FORMAT:
        raise ValueError("not a checkpoint")
    for _ in range(2):
        _run(file, _Machine())
    return _run(file, machine)


def _run(file: IO[bytes], machine: _Machine) -> Any:
    for operation, argument, _ in pickletools.genops(file):
        if operation.name == "STOP":
            return machine.stack[-1]
        _step(machine, operation.name, argument)
    raise ValueError("the pickle does not end")


def _step(machine: _Machine, name: str, argument: Any) -> None:
    stack = machine.stack
    if name in ("PROTO", "FRAME"):
        return
    if name in _CONSTANTS:
        stack.append(_CONSTANTS[name])
    elif name == "MARK":
        stack.append(_MARK)
    elif name.endswith("PUT") or name == "MEMOIZE":
        machine.memory[len(machine.memory) if argument is None else int(argument)] = stack[-1]
    elif name.endswith("GET"):
        stack.append(machine.memory[int(argument)])
    elif name in _COLLECT:
        _COLLECT[name](machine)
    elif name in ("GLOBAL", "STACK_GLOBAL", "INST"):
        _name(machine, name, argument)
    elif name in _CALL:
        _CALL[name](machine)
    elif argument is not None:
        stack.append(argument)
    else:
        raise ValueError(f"unexpected {name}")


def _since_mark(stack: list[Any]) -> list[Any]:
    index = len(stack) - 1
    while stack[index] is not _MARK:
        index -= 1
        if index < 0:
            raise ValueError("no mark")
    items = stack[index + 1 :]
    del stack[index:]
    return items


def _tuple(machine: _Machine, count: int) -> None:
    items = machine.stack[len(machine.stack) - count :]
    del machine.stack[len(machine.stack) - count :]
    machine.stack.append(tuple(items))


def _set_items(machine: _Machine, items: list[Any]) -> None:
    target = machine.stack[-1]
    if isinstance(target, dict):
        for key, value in zip(items[::2], items[1::2], strict=False):
            if isinstance(key, str | int):
                target[str(key)] = value


def _append(machine: _Machine, items: list[Any]) -> None:
    if isinstance(machine.stack[-1], list):
        machine.stack[-1].extend(items)


def _set_item(machine: _Machine) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    _set_items(machine, [key, value])


def _dict_of(machine: _Machine) -> None:
    items = _since_mark(machine.stack)
    machine.stack.append({})
    _set_items(machine, items)


def _name(machine: _Machine, operation: str, argument: Any) -> None:
    if operation == "STACK_GLOBAL":
        name, module = machine.stack.pop(), machine.stack.pop()
        argument = f"{module} {name}"
    elif operation == "INST":
        _since_mark(machine.stack)
    named = _Named(str(argument).replace(" ", ".").encode("utf-8", "replace").decode())
    machine.names.add(named.name)
    machine.stack.append(named)


def _call(machine: _Machine) -> None:
    arguments, function = machine.stack.pop(), machine.stack.pop()
    machine.stack.append(_result(function, arguments))


def _call_with_names(machine: _Machine) -> None:
    machine.stack.pop()
    _call(machine)


def _result(function: Any, arguments: Any) -> Any:
    """Return the result of a call, as far as it matters here: tensors, parameters and dictionaries."""
    name = function.name if isinstance(function, _Named) else ""
    if name == "collections.OrderedDict":
        return {}
    if name.startswith("torch._utils._rebuild_tensor"):
        storage, offset, shape = arguments[0], arguments[1], arguments[2]
        kind = storage[1].name.rpartition(".")[2].removesuffix("Storage")
        size = tuple(int(n) for n in shape)
        return PickledTensor(_DTYPES.get(kind, kind), size, (str(storage[2]), int(offset)))
    if name == "torch._utils._rebuild_parameter":
        return arguments[0]
    return None


def _build(machine: _Machine) -> None:
    machine.stack.pop()  # the state of an object: attributes, never tensors of a state dict


_COLLECT: dict[str, Callable[[_Machine], object]] = {
    "EMPTY_DICT": lambda m: m.stack.append({}),
    "EMPTY_LIST": lambda m: m.stack.append([]),
    "EMPTY_SET": lambda m: m.stack.append([]),
    "EMPTY_TUPLE": lambda m: m.stack.append(()),
    "DICT": _dict_of,
    "LIST": lambda m: m.stack.append(_since_mark(m.stack)),
    "TUPLE": lambda m: m.stack.append(tuple(_since_mark(m.stack))),
    "FROZENSET": lambda m: m.stack.append(_since_mark(m.stack)),
    "TUPLE1": lambda m: _tuple(m, 1),
    "TUPLE2": lambda m: _tuple(m, 2),
    "TUPLE3": lambda m: _tuple(m, 3),
    "SETITEM": _set_item,
    "SETITEMS": lambda m: _set_items(m, _since_mark(m.stack)),
    "APPEND": lambda m: _append(m, [m.stack.pop()]),
    "APPENDS": lambda m: _append(m, _since_mark(m.stack)),
    "ADDITEMS": lambda m: _append(m, _since_mark(m.stack)),
    "POP": lambda m: m.stack.pop(),
    "POP_MARK": lambda m: _since_mark(m.stack),
    "DUP": lambda m: m.stack.append(m.stack[-1]),
}
_CALL: dict[str, Callable[[_Machine], object]] = {
    "REDUCE": _call,
    "NEWOBJ": _call,
    "NEWOBJ_EX": _call_with_names,
    "OBJ": lambda m: m.stack.append(_result(None, _since_mark(m.stack))),
    "BUILD": _build,
    "BINPERSID": lambda m: None,  # the tuple that names a storage stays on the stack unchanged
}


def _flattened(value: Any, name: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested dictionaries with their dotted names, without a "state_dict" prefix."""
    if isinstance(value, dict) and depth < _MAX_DEPTH:
        for key, inner in value.items():
            prefix = name if key == "state_dict" else f"{name}.{key}" if name else key
            yield from _flattened(inner, prefix, depth + 1)
    else:
        yield name, value
