"""Editing the lists of the config (concepts, sample prompts). Each command is one undo step."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from pydantic import BaseModel

from ui.forms.model import FormModel


def items_of(form: FormModel, path: str) -> tuple[BaseModel, ...]:
    """Return the entries of a list."""
    entries: tuple[BaseModel, ...] = form.value(path)
    return entries


def add(form: FormModel, path: str, new: Sequence[BaseModel]) -> list[int]:
    """Append entries, which were checked as they were made; return their indexes."""
    entries = items_of(form, path)
    form.append(path, new)
    return list(range(len(entries), len(entries) + len(new)))


def duplicate(form: FormModel, path: str, indices: Collection[int]) -> list[int]:
    """Insert a copy after each given entry; return the indexes of the copies."""
    result: list[BaseModel] = []
    copies: list[int] = []
    for index, item in enumerate(items_of(form, path)):
        result.append(item)
        if index in indices:
            copies.append(len(result))
            result.append(item)
    form.edit(path, tuple(result))
    return copies


def remove(form: FormModel, path: str, indices: Collection[int]) -> None:
    """Remove entries."""
    form.edit(path, tuple(item for i, item in enumerate(items_of(form, path)) if i not in indices))


def move(form: FormModel, path: str, index: int, by: int) -> int:
    """Move an entry up (negative) or down the list; return its new index."""
    items = list(items_of(form, path))
    target = min(len(items) - 1, max(0, index + by))
    items.insert(target, items.pop(index))
    form.edit(path, tuple(items))
    return target


def move_before(form: FormModel, path: str, indices: Collection[int], before: int) -> list[int]:
    """Move entries, in their order, before another one; the length of the list is its end. Return their new indexes."""
    items = items_of(form, path)
    moved = [item for i, item in enumerate(items) if i in indices]
    start = [item for i, item in enumerate(items[:before]) if i not in indices]
    end = [item for i, item in enumerate(items) if i >= before and i not in indices]
    form.edit(path, (*start, *moved, *end))
    return list(range(len(start), len(start) + len(moved)))


def change(form: FormModel, path: str, indices: Collection[int], **updates: Any) -> None:
    """Set the same fields on several entries."""
    items = items_of(form, path)
    form.edit(path, tuple(x.model_copy(update=updates) if i in indices else x for i, x in enumerate(items)))
