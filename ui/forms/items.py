"""Editing the lists of the config (concepts, sample prompts): each command is one edit, so undo takes it back whole."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from pydantic import BaseModel

from ui.forms.model import FormModel


def items_of(form: FormModel, path: str) -> tuple[BaseModel, ...]:
    """Return the entries of a list."""
    found: tuple[BaseModel, ...] = form.value(path)
    return found


def add(form: FormModel, path: str, new: Sequence[BaseModel]) -> list[int]:
    """Add entries at the end; return their places."""
    present = items_of(form, path)
    form.edit(path, (*present, *new))
    return list(range(len(present), len(present) + len(new)))


def duplicate(form: FormModel, path: str, indices: Collection[int]) -> list[int]:
    """Put a copy behind each of some entries; return the places of the copies."""
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
    """Take entries out."""
    form.edit(path, tuple(item for i, item in enumerate(items_of(form, path)) if i not in indices))


def move(form: FormModel, path: str, index: int, by: int) -> int:
    """Move an entry up (negative) or down the list; return its new place."""
    items = list(items_of(form, path))
    target = min(len(items) - 1, max(0, index + by))
    items.insert(target, items.pop(index))
    form.edit(path, tuple(items))
    return target


def change(form: FormModel, path: str, indices: Collection[int], **updates: Any) -> None:
    """Set the same fields of some entries."""
    items = items_of(form, path)
    form.edit(path, tuple(x.model_copy(update=updates) if i in indices else x for i, x in enumerate(items)))
