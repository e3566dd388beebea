"""Interprets the instructions of a pickle without running any of its code.

A pickle is a program for a stack machine, whose instructions pickletools reads. The machine here tracks the objects
that the program would build: dictionaries, lists and plain values as they are, tensors as names, shapes and dtypes,
everything else as one opaque object. Nothing that the pickle names is imported or called.

A pickle of a few bytes can take hours and all memory, so instructions, nesting and the length of texts are limited.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from modules.formats.pickle_values import OPAQUE, BuiltObject, NamedGlobal, result_of, set_item, set_state, storage_of

MAX_INSTRUCTIONS = 500_000
"""A checkpoint takes about 40 per tensor: 12,500 tensors, five times as many as SDXL has."""

_MAX_TEXT_CHARS = 4_000  # of one text that is kept; longer ones, such as a config, are opaque
_MAX_NAME_CHARS = 300
_MARK = object()


class PickleLimitError(Exception):
    """A pickle with more of something than can be tracked; the message names it."""


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

        Raises PickleLimitError if it is too large, and ValueError, IndexError, KeyError or TypeError where it is
        damaged.
        """
        self.stack, self.memo = [], {}
        limit = MAX_INSTRUCTIONS if self.max_instructions is None else self.max_instructions
        stream = io.BytesIO(self.data)
        stream.seek(self.position)
        for opcode, argument, position in pickletools.genops(stream):
            self.position = (position or 0) + 1  # behind a STOP, which has no argument
            self.num_instructions += 1
            if self.num_instructions > limit:
                raise PickleLimitError(f"more than {limit:,} instructions")
            if opcode.name == "STOP":
                break
            _INSTRUCTIONS[opcode.name](self, argument)
        return self.stack.pop()

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


Instruction = Callable[[PickleMachine, Any], object]


def _global(m: PickleMachine, names: str) -> None:
    m.name(names.replace(" ", ".", 1))


def _stack_global(m: PickleMachine) -> None:
    name, module = m.stack.pop(), m.stack.pop()
    is_text = isinstance(name, str) and isinstance(module, str)
    m.name(f"{module}.{name}" if is_text else "a name that is computed")


def _instance(m: PickleMachine, names: str) -> None:
    _global(m, names)
    function = m.stack.pop()
    m.call(function, tuple(m.since_mark()))


def _object(m: PickleMachine) -> None:
    function, *arguments = m.since_mark()
    m.call(function, tuple(arguments))


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


def _value(m: PickleMachine, value: Any) -> None:
    """Push a plain value; only numbers of up to 8 bytes can be a size or a key, and long texts are not tracked."""
    if isinstance(value, str):
        is_kept = len(value) <= _MAX_TEXT_CHARS
        m.stack.append(value.encode("utf-8", "replace").decode("utf-8") if is_kept else OPAQUE)
    else:
        m.stack.append(OPAQUE if isinstance(value, int) and abs(value) >= 2**63 else value)


def _push(make: Callable[[], Any]) -> Instruction:
    return lambda m, argument: m.stack.append(make())


def _without_argument(act: Callable[[PickleMachine], object]) -> Instruction:
    return lambda m, argument: act(m)


def _same(act: Instruction, *names: str) -> dict[str, Instruction]:
    return dict.fromkeys(names, act)


# By pickletools' names. Torch writes neither PERSID, an identifier on a line, nor buffers outside of the file.
_INSTRUCTIONS: dict[str, Instruction] = {
    **_same(lambda m, argument: None, "PROTO", "FRAME", "READONLY_BUFFER"),
    **_same(_value, "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    **_same(_value, "STRING", "BINSTRING", "SHORT_BINSTRING"),
    **_same(_value, "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    **_same(_push(lambda: OPAQUE), "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    **_same(_push(dict), "EMPTY_DICT"),
    **_same(_push(list), "EMPTY_LIST", "EMPTY_SET"),
    **_same(_push(tuple), "EMPTY_TUPLE"),
    "NONE": _push(lambda: None),
    "NEWTRUE": _push(lambda: True),
    "NEWFALSE": _push(lambda: False),
    "MARK": _push(lambda: _MARK),
    "POP": lambda m, argument: m.stack.pop(),
    "POP_MARK": lambda m, argument: m.since_mark(),
    "DUP": lambda m, argument: m.stack.append(m.stack[-1]),
    "DICT": _without_argument(_dict_of),
    **_same(lambda m, argument: m.stack.append(m.since_mark()), "LIST", "FROZENSET"),
    "TUPLE": lambda m, argument: m.stack.append(tuple(m.since_mark())),
    "TUPLE1": lambda m, argument: _tuple(m, 1),
    "TUPLE2": lambda m, argument: _tuple(m, 2),
    "TUPLE3": lambda m, argument: _tuple(m, 3),
    "SETITEM": _without_argument(_set_item),
    "SETITEMS": lambda m, argument: _set_items(m, m.since_mark()),
    "APPEND": lambda m, argument: _append(m, [m.stack.pop()]),
    **_same(lambda m, argument: _append(m, m.since_mark()), "APPENDS", "ADDITEMS"),
    **_same(_put, "PUT", "BINPUT", "LONG_BINPUT"),
    "MEMOIZE": lambda m, argument: _put(m, len(m.memo)),
    **_same(lambda m, index: m.stack.append(m.memo[index]), "GET", "BINGET", "LONG_BINGET"),
    "GLOBAL": _global,
    "STACK_GLOBAL": _without_argument(_stack_global),
    "INST": _instance,
    "OBJ": _without_argument(_object),
    **_same(_without_argument(_call), "REDUCE", "NEWOBJ"),
    "NEWOBJ_EX": _without_argument(_call_with_names),
    "BUILD": _without_argument(_build),
    "BINPERSID": _without_argument(_storage),
    **_same(lambda m, number: m.name(f"the extension {number} of copyreg"), "EXT1", "EXT2", "EXT4"),
}
