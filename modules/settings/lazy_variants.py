"""Registries whose records are imported when they are read, and the config fields that hold one of their sections.

Building the classes of forty optimizers takes a tenth of a second at every start, and a config uses one of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from pydantic import BaseModel, BeforeValidator
from pydantic_core import PydanticCustomError, core_schema


class VariantRecord(Protocol):
    """A record of a registry: its label, and the section with its settings."""

    @property
    def label(self) -> str:
        """The name that the window shows."""
        ...

    @property
    def settings(self) -> type[BaseModel]:
        """The section's class."""
        ...


Record = TypeVar("Record")
Selectable = TypeVar("Selectable", bound=VariantRecord)
Value = TypeVar("Value")


class LazyRecords(MutableMapping[str, Record]):
    """The records of a registry by name, in order, each imported when it is read first.

    `modules` has the module in `package` of each record. The record named "adamw" is the constant `ADAMW` there, and
    "self-test" would be `SELF_TEST`. Only tests and experiments add records and remove them.
    """

    def __init__(self, package: str, modules: Mapping[str, str]) -> None:
        self._package = package
        self._modules = modules
        self._loaded: dict[str, Record | None] = dict.fromkeys(modules)

    def __getitem__(self, name: str) -> Record:
        record = self._loaded[name]
        if record is None:
            module = importlib.import_module(f"{self._package}.{self._modules[name]}")
            record = self._loaded[name] = getattr(module, name.upper().replace("-", "_"))
        return record

    def __setitem__(self, name: str, record: Record) -> None:
        self._loaded[name] = record

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._loaded

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded)

    def __len__(self) -> int:
        return len(self._loaded)


class _View(Mapping[str, Value], Generic[Record, Value]):
    """One fact of each record of a registry; reading it imports the record."""

    def __init__(self, records: Mapping[str, Record], fact: Callable[[Record], Value]) -> None:
        self._records = records
        self._fact = fact

    def __getitem__(self, name: str) -> Value:
        return self._fact(self._records[name])

    def __contains__(self, name: object) -> bool:
        return name in self._records

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)


@dataclass(frozen=True, slots=True)
class Variants:
    """The annotation of a field that holds the settings of one record: classes, labels and sentences of help by the
    record's name. Without help the sentence about a choice is its class's.
    """

    classes: Mapping[str, type[BaseModel]]
    labels: Mapping[str, str]
    help: Mapping[str, str] = field(default_factory=dict)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        """Return a validator that imports the class which the value's `name` selects, and no other."""
        return core_schema.no_info_plain_validator_function(self._validate)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Callable[[Any], dict[str, Any]]) -> Any:
        """Return the JSON Schema of all the classes."""
        choices = {name: kind.__pydantic_core_schema__ for name, kind in self.classes.items()}
        return handler(core_schema.tagged_union_schema(choices, discriminator="name"))

    def _validate(self, value: Any) -> BaseModel:
        name = value.get("name") if isinstance(value, Mapping) else getattr(value, "name", None)
        if not isinstance(value, Mapping | BaseModel):
            raise PydanticCustomError("model_type", "it is not a group of settings", {"class_name": ""})
        if not isinstance(name, str) or name not in self.classes:
            tags = ", ".join(f"'{tag}'" for tag in self.classes)
            raise PydanticCustomError("union_tag_invalid", "there is no such choice", {"expected_tags": tags})
        return self.classes[name].model_validate(value)


def lazy_variants(
    records: Mapping[str, Selectable], default: str, help_of: Callable[[Selectable], str] | None = None
) -> tuple[Variants, BeforeValidator]:
    """Return the annotations of a field that holds the settings of one record of a registry.

    A bare name means the settings with their defaults; an object without a name means the record named `default`.
    """
    kinds, labels = _View(records, lambda record: record.settings), _View(records, lambda record: record.label)
    return Variants(kinds, labels, {} if help_of is None else _View(records, help_of)), _with_name(default)


def _with_name(default: str) -> BeforeValidator:
    """Return the validator that turns a bare name into an object, and adds the name `default` to one without."""

    def add_name(value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value}
        return {"name": default, **value} if isinstance(value, dict) else value

    return BeforeValidator(add_name)
