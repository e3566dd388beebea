"""Interprets the instructions of a pickle without running any of its code.

A pickle is a program for a stack machine (docs.python.org, pickletools). The machine here tracks the objects that the
program would build: dictionaries, lists and plain values as they are, tensors as names, shapes and dtypes, everything
else as one opaque object. Nothing that the pickle names is imported or called.

A pickle of a few bytes can take hours and all memory, so instructions, nesting and the length of texts are limited.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from modules.formats.pickle_values import OPAQUE, BuiltObject, NamedGlobal, result_of, set_item, set_state, storage_of

MAX_INSTRUCTIONS = 500_000
"""A checkpoint takes about 40 per tensor: 12,500 tensors, five times as many as SDXL has."""

_MAX_LINE_BYTES = 10_000
_MAX_TEXT_BYTES = 4_000  # of one text that is kept; longer ones, such as a config, are opaque
_MAX_NAME_CHARS = 300
_MARK = object()


class PickleLimitError(Exception):
    """A pickle with more than can be tracked; the message contains of what."""


@dataclass
class PickleMachine:
    """The state of the interpreted program: `names` are the functions and classes that it has named so far.

    `data` may contain several pickles, one after the other; `run` interprets the next. With `keeps_objects`, what it
    creates of any class is described (`BuiltObject`) instead of opaque.
    """

    data: bytes
    position: int = 0
    names: set[str] = field(default_factory=set)
    num_instructions: int = 0
    stack: list[Any] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)
    max_instructions: int | None = None
    keeps_objects: bool = False

    def run(self) -> Any:
        """Interpret one pickle and return what it builds.

        Raises PickleLimitError where it is too large, and ValueError, IndexError, KeyError or TypeError where it is
        damaged.
        """
        self.stack, self.memo = [], {}
        data, instructions = self.data, _INSTRUCTIONS
        limit = MAX_INSTRUCTIONS if self.max_instructions is None else self.max_instructions
        while True:
            code = data[self.position]
            self.position += 1
            self.num_instructions += 1
            if self.num_instructions > limit:
                raise PickleLimitError(f"more than {limit:,} instructions")
            if code == _STOP:
                return self.stack.pop()
            instructions[code](self)

    def take(self, count: int) -> bytes:
        """Return the next bytes."""
        end = self.position + count
        if count < 0 or end > len(self.data):
            raise ValueError("the pickle ends early")
        taken = self.data[self.position : end]
        self.position = end
        return taken

    def skip(self, count: int) -> None:
        """Pass over the next bytes."""
        if count < 0 or self.position + count > len(self.data):
            raise ValueError("the pickle ends early")
        self.position += count

    def line(self) -> str:
        """Return the next line."""
        end = self.data.find(b"\n", self.position, self.position + _MAX_LINE_BYTES)
        if end < 0:
            raise ValueError("a line does not end")
        taken = self.data[self.position : end]
        self.position = end + 1
        return taken.decode("utf-8", "replace")

    def size(self, length: int) -> int:
        """Return the next number of 1, 2, 4 or 8 bytes."""
        return int.from_bytes(self.take(length), "little")

    def text(self, length: int) -> None:
        """Push a text of so many bytes."""
        if length > _MAX_TEXT_BYTES:
            self.skip(length)
            self.stack.append(OPAQUE)
        else:
            self.stack.append(self.take(length).decode("utf-8", "replace"))

    def opaque(self, length: int) -> None:
        """Push a value of so many bytes that is not tracked."""
        self.skip(length)
        self.stack.append(OPAQUE)

    def name(self, name: str) -> None:
        """Push a function or class."""
        named = NamedGlobal(name[:_MAX_NAME_CHARS])
        self.names.add(named.name)
        self.stack.append(named)

    def call(self, function: Any, arguments: Any) -> None:
        """Push the result of a call."""
        result = result_of(function, arguments)
        if result is OPAQUE and self.keeps_objects and isinstance(function, NamedGlobal):
            result = BuiltObject(function.name)
        self.stack.append(result)

    def since_mark(self) -> list[Any]:
        """Remove and return the items above the last mark, and the mark."""
        stack = self.stack
        index = len(stack) - 1
        while stack[index] is not _MARK:
            index -= 1
            if index < 0:
                raise ValueError("no mark")
        items = stack[index + 1 :]
        del stack[index:]
        return items


def _global(m: PickleMachine) -> None:
    module = m.line()
    m.name(f"{module}.{m.line()}")


def _stack_global(m: PickleMachine) -> None:
    name, module = m.stack.pop(), m.stack.pop()
    is_text = isinstance(name, str) and isinstance(module, str)
    m.name(f"{module}.{name}" if is_text else "a name that is computed")


def _instance(m: PickleMachine) -> None:
    _global(m)
    function = m.stack.pop()
    m.call(function, tuple(m.since_mark()))


def _object(m: PickleMachine) -> None:
    function, *arguments = m.since_mark()
    m.call(function, tuple(arguments))


def _extension(m: PickleMachine, length: int) -> None:
    m.name(f"the extension {m.size(length)} of copyreg")


def _call(m: PickleMachine) -> None:
    arguments, function = m.stack.pop(), m.stack.pop()
    m.call(function, arguments)


def _call_with_names(m: PickleMachine) -> None:
    m.stack.pop()
    _call(m)


def _storage(m: PickleMachine) -> None:
    m.stack.append(storage_of(m.stack.pop()))


def _tuple(m: PickleMachine, count: int) -> None:
    if len(m.stack) < count:
        raise ValueError("nothing to collect")
    items = tuple(m.stack[-count:])
    del m.stack[-count:]
    m.stack.append(items)


def _set_items(m: PickleMachine, items: list[Any]) -> None:
    target = m.stack[-1]
    for key, value in zip(items[::2], items[1::2], strict=False):
        set_item(target, key, value)


def _dict_of(m: PickleMachine) -> None:
    items = m.since_mark()
    m.stack.append({})
    _set_items(m, items)


def _set_item(m: PickleMachine) -> None:
    value, key = m.stack.pop(), m.stack.pop()
    set_item(m.stack[-1], key, value)


def _build(m: PickleMachine) -> None:
    state = m.stack.pop()
    set_state(m.stack[-1], state)


def _append(m: PickleMachine, items: list[Any]) -> None:
    if isinstance(m.stack[-1], list):
        m.stack[-1].extend(items)


def _put(m: PickleMachine, index: int) -> None:
    if not 0 <= index < 2**32:
        raise ValueError("not a place in the memo")
    m.memo[index] = m.stack[-1]


def _whole(m: PickleMachine, length: int) -> None:
    """Push a number of so many bytes; only numbers of up to 8 bytes can be a size or a key."""
    if length > 8:
        m.opaque(length)
    else:
        m.stack.append(int.from_bytes(m.take(length), "little", signed=True))


def _whole_line(m: PickleMachine) -> None:
    line = m.line().removesuffix("L")
    if line in ("00", "01"):  # booleans before protocol 2
        m.stack.append(line == "01")
    else:
        m.stack.append(int(line) if len(line) <= 20 else OPAQUE)


def _text_line(m: PickleMachine, *, quoted: bool) -> None:
    line = m.line().rstrip("\r")
    m.stack.append(OPAQUE if "\\" in line else line[1:-1] if quoted else line)


def _pushes(make: Callable[[], Any]) -> Callable[[PickleMachine], object]:
    return lambda m: m.stack.append(make())


def _push_unknown(m: PickleMachine) -> None:
    raise ValueError("an unknown instruction")


_STOP = ord(".")
_BY_CODE: dict[bytes, Callable[[PickleMachine], object]] = {
    b"\x80": lambda m: m.skip(1),  # PROTO
    b"\x95": lambda m: m.skip(8),  # FRAME
    b"\x98": lambda m: None,  # READONLY_BUFFER
    b"(": lambda m: m.stack.append(_MARK),
    b"0": lambda m: m.stack.pop(),
    b"1": lambda m: m.since_mark(),
    b"2": lambda m: m.stack.append(m.stack[-1]),
    b"N": lambda m: m.stack.append(None),
    b"\x88": lambda m: m.stack.append(True),
    b"\x89": lambda m: m.stack.append(False),
    b"}": _pushes(dict),
    b"]": _pushes(list),
    b"\x8f": _pushes(list),  # EMPTY_SET
    b")": _pushes(tuple),
    b"d": _dict_of,
    b"l": lambda m: m.stack.append(m.since_mark()),
    b"t": lambda m: m.stack.append(tuple(m.since_mark())),
    b"\x91": lambda m: m.stack.append(m.since_mark()),  # FROZENSET
    b"\x85": lambda m: _tuple(m, 1),
    b"\x86": lambda m: _tuple(m, 2),
    b"\x87": lambda m: _tuple(m, 3),
    b"s": _set_item,
    b"u": lambda m: _set_items(m, m.since_mark()),
    b"a": lambda m: _append(m, [m.stack.pop()]),
    b"e": lambda m: _append(m, m.since_mark()),
    b"\x90": lambda m: _append(m, m.since_mark()),  # ADDITEMS
    b"q": lambda m: _put(m, m.size(1)),
    b"r": lambda m: _put(m, m.size(4)),
    b"p": lambda m: _put(m, int(m.line()[:20])),
    b"\x94": lambda m: _put(m, len(m.memo)),
    b"h": lambda m: m.stack.append(m.memo[m.size(1)]),
    b"j": lambda m: m.stack.append(m.memo[m.size(4)]),
    b"g": lambda m: m.stack.append(m.memo[int(m.line()[:20])]),
    b"K": lambda m: m.stack.append(m.size(1)),
    b"M": lambda m: m.stack.append(m.size(2)),
    b"J": lambda m: _whole(m, 4),
    b"\x8a": lambda m: _whole(m, m.size(1)),
    b"\x8b": lambda m: _whole(m, m.size(4)),
    b"I": _whole_line,
    b"L": _whole_line,
    b"F": lambda m: m.stack.append(float(m.line())),
    b"G": lambda m: m.stack.append(struct.unpack(">d", m.take(8))[0]),
    b"S": lambda m: _text_line(m, quoted=True),
    b"V": lambda m: _text_line(m, quoted=False),
    b"U": lambda m: m.text(m.size(1)),
    b"T": lambda m: m.text(m.size(4)),
    b"X": lambda m: m.text(m.size(4)),
    b"\x8c": lambda m: m.text(m.size(1)),
    b"\x8d": lambda m: m.text(m.size(8)),
    b"C": lambda m: m.opaque(m.size(1)),  # bytes
    b"B": lambda m: m.opaque(m.size(4)),
    b"\x8e": lambda m: m.opaque(m.size(8)),
    b"\x96": lambda m: m.opaque(m.size(8)),  # BYTEARRAY8
    b"c": _global,
    b"\x93": _stack_global,
    b"i": _instance,
    b"o": _object,
    b"R": _call,
    b"\x81": _call,  # NEWOBJ
    b"\x92": _call_with_names,  # NEWOBJ_EX
    b"b": _build,
    b"Q": _storage,  # BINPERSID; PERSID, with a line, is not of torch
    b"\x82": lambda m: _extension(m, 1),
    b"\x83": lambda m: _extension(m, 2),
    b"\x84": lambda m: _extension(m, 4),
}
_INSTRUCTIONS = tuple(_BY_CODE.get(bytes([code]), _push_unknown) for code in range(256))
