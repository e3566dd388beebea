"""What is on a disk after a crash at any of the recorded calls, and putting it there.

A killed process leaves all that it has done, and half of the write it was in. A power failure leaves what was flushed:
the content of files and the names in folders, each by itself. File systems keep more than they have to, so both ends
are looked at: all names but only flushed content, and flushed names with flushed content.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tests.builders.disk.recorder import Call

Crash = Literal["kill", "kill in a write", "power failure", "power failure, names kept"]
Tree = dict[str, bytes | None]
"""Files with their content and folders with None, by relative path."""


@dataclass(eq=False)
class _Node:
    is_folder: bool
    entries: dict[str, _Node] = field(default_factory=dict)
    flushed_entries: dict[str, _Node] = field(default_factory=dict)
    content: bytearray = field(default_factory=bytearray)
    flushed_content: bytes = b""


class Disk:
    """A folder of a disk, on which calls are repeated. What is there at first has long been flushed."""

    def __init__(self, tree: Tree) -> None:
        self._root = _Node(is_folder=True)
        self._handles: dict[int, _Node] = {}
        for path, content in sorted(tree.items()):
            folder, name = self._place(path)
            node = _Node(content is None, content=bytearray(content or b""), flushed_content=content or b"")
            folder.entries[name] = folder.flushed_entries[name] = node

    def apply(self, call: Call) -> None:
        """Repeat a call."""
        if call.kind == "fsync":
            node = self._find(call.path)
            node.flushed_entries = dict(node.entries)
            node.flushed_content = bytes(node.content)
            return
        if call.kind in ("write", "truncate"):
            content = self._handles[call.handle].content
            if call.kind == "truncate":
                del content[call.place :]
                return
            content.extend(bytes(max(0, call.place - len(content))))
            content[call.place : call.place + len(call.content)] = call.content
            return
        folder, name = self._place(call.path)
        match call.kind:
            case "open":
                self._handles[call.handle] = folder.entries[name]
            case "create":
                node = folder.entries.setdefault(name, _Node(is_folder=False))
                node.content.clear() if call.place == 1 else None
                self._handles[call.handle] = node
            case "mkdir":
                folder.entries[name] = _Node(is_folder=True)
            case "unlink" | "rmdir":
                del folder.entries[name]
            case "rename":
                other, new = self._place(call.to)
                other.entries[new] = folder.entries.pop(name)
            case "exchange":
                other, new = self._place(call.to)
                folder.entries[name], other.entries[new] = other.entries[new], folder.entries[name]

    def after(self, crash: Crash) -> Tree:
        """Return what is there after a crash now."""
        keeps_names, keeps_content = crash != "power failure", crash.startswith("kill")
        tree: Tree = {}

        def walk(node: _Node, prefix: str) -> None:
            for name, entry in (node.entries if keeps_names else node.flushed_entries).items():
                path = f"{prefix}{name}"
                if entry.is_folder:
                    tree[path] = None
                    walk(entry, f"{path}/")
                else:
                    tree[path] = bytes(entry.content) if keeps_content else entry.flushed_content

        walk(self._root, "")
        return tree

    def _place(self, path: str) -> tuple[_Node, str]:
        head, _, name = path.rpartition("/")
        return self._find(head), name

    def _find(self, path: str) -> _Node:
        node = self._root
        for name in path.split("/") if path not in ("", ".") else ():
            node = node.entries[name]
        return node


def crashes(
    before: Tree, calls: Sequence[Call], numbers: Sequence[int] | None = None
) -> Iterator[tuple[int, Crash, Tree]]:
    """Yield the states after each number of calls (all of them by default), for each crash that leaves one of its own.

    A state equal to the one before it is left out.
    """
    disk = Disk(before)
    wanted = None if numbers is None else set(numbers)
    former: dict[Crash, Tree] = {}
    for number in range(len(calls) + 1):
        if wanted is None or number in wanted:
            kinds: list[Crash] = ["kill", "power failure", "power failure, names kept"]
            for crash in kinds:
                tree = disk.after(crash)
                if former.get(crash) != tree:
                    former[crash] = tree
                    yield number, crash, tree
            if number < len(calls) and calls[number].kind == "write" and len(calls[number].content) > 1:
                yield number, "kill in a write", _with_half(disk, calls[number])
        if number < len(calls):
            disk.apply(calls[number])


def _with_half(disk: Disk, call: Call) -> Tree:
    """Return what is there in the middle of a write; the disk stays as it is."""
    node = disk._handles[call.handle]
    whole = bytes(node.content)
    disk.apply(Call(call.kind, call.path, call.to, call.handle, call.place, call.content[: len(call.content) // 2]))
    tree = disk.after("kill")
    node.content[:] = whole
    return tree


def read_tree(folder: Path) -> Tree:
    """Return what is in a folder."""
    return {
        path.relative_to(folder).as_posix(): None if path.is_dir() else path.read_bytes() for path in folder.rglob("*")
    }


def write_tree(folder: Path, tree: Tree) -> None:
    """Make a folder contain this and nothing else; files that are equal are not written again."""
    if folder.exists():
        for path in sorted(folder.rglob("*"), reverse=True):
            name = path.relative_to(folder).as_posix()
            if name not in tree or (tree[name] is None) is not path.is_dir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in sorted(tree.items()):
        path = folder / name
        if content is None:
            path.mkdir(exist_ok=True)
        elif not (path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content):
            path.write_bytes(content)
            os.utime(path)
