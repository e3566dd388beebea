"""One declaration per config field, and the flat records from which forms, flags and documents are generated.

A field is declared once, in `modules/config/sections/`, as an annotated attribute of a section:

    learning_rate: Annotated[float, Ge(0), Le(10), Setting("Learning rate", "How far each step moves.")] = 1e-4

`records_of(section)` turns the declarations of a section tree into `FieldRecord`s. Nothing else in the program
repeats a default, a range, a label or a choice.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self, Union, cast, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MultipleOf
from pydantic import AfterValidator, BaseModel, ConfigDict
from pydantic.fields import FieldInfo

from modules.settings.every import Every
from modules.settings.lazy_variants import Variants
from modules.settings.shared_types import HIGHEST_PX, LOWEST_PX, Resolution
from modules.system.problem import quote

Level = Literal["basic", "advanced"]
Kind = Literal["int", "float", "bool", "text", "choice", "every", "int_list", "resolutions", "section", "list", "map"]
PathKind = Literal["", "folder", "file", "model", "save"]
NotYet = Literal["", "refused", "ignored"]


class MapKey(Protocol):
    """A key of a field that maps names to sections: its name, and what can be done with the model part behind it.

    `defaults` replaces defaults of the section's fields for this key.
    """

    @property
    def name(self) -> str: ...

    @property
    def trainable(self) -> bool: ...

    @property
    def optional(self) -> bool: ...

    @property
    def reads_file(self) -> bool: ...

    @property
    def defaults(self) -> Mapping[str, Any]: ...


class Section(BaseModel):
    """A frozen group of fields. Unknown keys never reach it: the codec removes them first.

    `group` is the group of its fields that have none of their own, and `applies_when` their condition. With
    `changeable_on_resume` all of them may change when a run is resumed.
    """

    group: ClassVar[str] = ""
    applies_when: ClassVar[When | None] = None
    changeable_on_resume: ClassVar[bool] = False

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, validate_default=False, defer_build=True
    )

    @classmethod
    def with_defaults(cls) -> Self:
        """Return the section with all defaults, as the default of a field.

        Without a validator of its own, which would be built first: at the start only the whole tree's is built.
        """
        return cast(Self, cls.model_construct())  # mypy's plugin of pydantic names the class itself

    def map_keys(self, field_name: str) -> Sequence[MapKey]:
        """Return the valid keys of one of its maps from names to sections, including those missing from the map.

        A section with such a map overrides this; a key missing from the map has its defaults.
        """
        return ()


class Variant(Protocol):
    """One of several sections, distinguished by name. Only its own record knows its other fields."""

    @property
    def name(self) -> str:
        """The variant's name."""
        ...


@dataclass(frozen=True, slots=True)
class When:
    """A condition on another field of the same section (or, with a dot, of the whole config).

    It holds if the other field has one of `values`, or with `is_set` any value but 0 or an empty one. `otherwise` is an
    alternative condition. `values` may be a function: values from a registry, whose records only its call imports.
    """

    path: str
    values: tuple[object, ...] | Callable[[], tuple[object, ...]] = ()
    is_set: bool = False
    otherwise: When | None = None

    def holds(self, value: object) -> bool:
        """Return whether this field is relevant with a value of the other field, or with the variant selected there."""
        return bool(value) if self.is_set else getattr(value, "name", value) in self.is_any_of

    @property
    def is_any_of(self) -> tuple[object, ...]:
        """The values of the other field with which this one has an effect."""
        return self.values() if callable(self.values) else self.values

    @property
    def alternatives(self) -> tuple[When, ...]:
        """The conditions of which one must hold: this one and its alternatives."""
        return (self, *(self.otherwise.alternatives if self.otherwise else ()))


@dataclass(frozen=True, slots=True)
class Setting:
    """A field's label, help and display, attached to its annotation.

    Three flags restrict a field of a model part: to parts that the family can train (`only_if_trainable`), to parts
    that a model may lack (`only_if_optional`), and to parts that can have a file of their own (`only_if_reads_file`).
    `is_span` marks an `Every` that is a length of time from the start of the run, not a period.
    `not_yet` marks a field that files may contain but the engine does not support yet: with a value other than the
    default, the start is refused if the setting would change training, and a warning is given if it would not.
    `not_yet_choices` are the choices, or the variants, that are handled in the same way.
    `choice_help` has a sentence for each choice, for those whose names explain nothing: it stands before the name.
    `help_from` returns the help where that lists the records of a registry, whose module its call imports (`late`).
    `preview` names the function that returns a `BarPreview` of the whole config and the number of steps (0 if unknown),
    as "module:function"; the window draws it below the field's group, or below the fields of the chosen variant.
    """

    label: str
    help: str
    unit: str = ""
    group: str = ""
    level: Level = "basic"
    applies_when: When | None = None
    changeable_on_resume: bool = False
    choice_labels: Mapping[str, str] = field(default_factory=dict)
    choice_help: Mapping[str, str] = field(default_factory=dict)
    path_kind: PathKind = ""
    multiline: bool = False
    empty_means: str = ""
    help_from: Callable[[], str] | None = None
    only_if_trainable: bool = False
    only_if_optional: bool = False
    only_if_reads_file: bool = False
    is_span: bool = False
    not_yet: NotYet = ""
    not_yet_choices: frozenset[str] = frozenset()
    preview: str = ""

    @property
    def full_help(self) -> str:
        """The help, from the registry that has it if `help_from` is set."""
        return self.help if self.help_from is None else self.help_from()

    def is_for(self, part: MapKey) -> bool:
        """Return whether the field, one of a model part, has an effect for this part."""
        return (
            (part.trainable or not self.only_if_trainable)
            and (part.optional or not self.only_if_optional)
            and (part.reads_file or not self.only_if_reads_file)
        )

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Callable[[Any], dict[str, Any]]) -> Any:
        """Return the JSON Schema of the field with its label and its help, so that editors show them."""
        unit = f" In {self.unit}." if self.unit else ""
        standing = " Not supported yet." if self.not_yet else ""
        return {**handler(core_schema), "title": self.label, "description": f"{self.full_help}{unit}{standing}"}


advanced_setting = partial(Setting, level="advanced")
"""Returns the `Setting` of a field that only the advanced level of the window shows."""


@dataclass(frozen=True, slots=True)
class OneOf:
    """The names in a registry, as the choices of a text field: `Annotated[str, *one_of(names)]`."""

    names: Callable[[], Mapping[str, str]]
    help: Callable[[], Mapping[str, str]] = dict

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Callable[[Any], dict[str, Any]]) -> Any:
        """Return the JSON Schema of the field with its allowed names."""
        return {**handler(core_schema), "enum": list(self.names())}


def one_of(
    names: Callable[[], Mapping[str, str]], help_of: Callable[[], Mapping[str, str]] = dict
) -> tuple[OneOf, AfterValidator]:
    """Return the annotations that restrict a text field to the keys of `names()` (name to label).

    `help_of()` has a sentence for each name, if there are any.
    """

    def check(value: str) -> str:
        allowed = names()
        if value not in allowed:
            raise ValueError(f"{quote(value)} is not one of {', '.join(allowed)}")
        return value

    return OneOf(names, help_of), AfterValidator(check)


@dataclass(frozen=True, slots=True)
class FieldRecord:
    """Everything about one field, flat: the form, the tooltip, the CLI flag and the docs read this.

    For a list of numbers, the limits apply to each number.
    """

    path: str
    name: str
    kind: Kind
    default: Any
    setting: Setting
    optional: bool = False
    lo: float | None = None
    hi: float | None = None
    lo_is_open: bool = False
    hi_is_open: bool = False
    step: float | None = None
    choices: Mapping[str, str] = field(default_factory=dict)
    choice_help: Mapping[str, str] = field(default_factory=dict)
    item: type[BaseModel] | None = None
    variants: Mapping[str, type[BaseModel]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The label next to the widget."""
        return self.setting.label

    @property
    def allowed(self) -> str:
        """The range or the choices, as a phrase for tooltips and messages; empty where any value is allowed."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        lower = "" if self.lo is None else f"{'above' if self.lo_is_open else 'from'} {_plain(self.lo)}"
        if self.hi is None:
            span = f"{_plain(self.lo)} or more" if self.lo is not None and not self.lo_is_open else lower
        elif lower:
            span = f"{lower} to {'below ' if self.hi_is_open else ''}{_plain(self.hi)}"
        else:
            span = f"{'below' if self.hi_is_open else 'at most'} {_plain(self.hi)}"
        steps = "" if self.step is None else f"in steps of {_plain(self.step)}"
        return ", ".join(filter(None, (span, steps)))


def _plain(number: float) -> str:
    return f"{int(number):,}" if number == int(number) else f"{number:g}"


@cache
def records_of(section: type[BaseModel], prefix: str = "") -> tuple[FieldRecord, ...]:
    """Return the records of the fields of `section` that carry a `Setting`, nested sections flattened.

    Paths are dotted and begin with `prefix`. A section with variants and a list of sections give one record each; the
    form requests the records of the variant or item it shows.
    """
    return tuple(_walk(section, prefix))


def records_of_entry(record: FieldRecord, key: MapKey) -> tuple[FieldRecord, ...]:
    """Return the records of the fields of an entry of a map from names to sections, under its path."""
    assert record.item is not None, f"{record.path} is not a map of sections"
    records = records_of(record.item, f"{record.path}.{key.name}")
    if not key.defaults:
        return records
    return tuple(replace(r, default=key.defaults.get(r.name, r.default)) for r in records)


def _walk(section: type[BaseModel], prefix: str) -> Iterator[FieldRecord]:
    for name, info in section.model_fields.items():
        path = f"{prefix}.{name}" if prefix else name
        if record := record_of(section, name, prefix):
            yield record
        else:
            inner, _ = _strip_optional(info.annotation)
            if isinstance(inner, type) and issubclass(inner, Section):
                yield from _walk(inner, path)


@cache
def record_of(section: type[BaseModel], name: str, prefix: str = "") -> FieldRecord | None:
    """Return the record of one field of `section`, whose path begins with `prefix`; None without a `Setting`."""
    info = section.model_fields[name]
    setting = next((m for m in info.metadata if isinstance(m, Setting)), None)
    if setting is None:
        return None
    inner, optional = _strip_optional(info.annotation)
    group = setting.group or getattr(section, "group", "")
    applies_when = setting.applies_when or getattr(section, "applies_when", None)
    changeable = setting.changeable_on_resume or getattr(section, "changeable_on_resume", False)
    setting = replace(
        setting, help=setting.full_help, group=group, applies_when=applies_when, changeable_on_resume=changeable
    )
    return _record(f"{prefix}.{name}" if prefix else name, name, inner, optional, info, setting)


def _record(path: str, name: str, annotation: Any, optional: bool, info: FieldInfo, setting: Setting) -> FieldRecord:
    inner: list[Any] = []
    if get_origin(annotation) is Annotated:  # a type with a range that may be empty, such as `Fraction | None`
        annotation, *inner = get_args(annotation)
    names = next((m for m in info.metadata if isinstance(m, OneOf | Variants)), None)
    kind, choices, item, variants = _classify(annotation, names, setting)
    limits = [*info.metadata, *inner, *_metadata_of_items(annotation)]
    lower = next((m for m in limits if isinstance(m, Ge | Gt)), None)
    upper = next((m for m in limits if isinstance(m, Le | Lt)), None)
    multiple = next((m.multiple_of for m in limits if isinstance(m, MultipleOf)), None)
    return FieldRecord(
        path=path,
        name=name,
        kind=kind,
        default=info.get_default(call_default_factory=True, validated_data={}),
        setting=setting,
        optional=optional,
        lo=LOWEST_PX if kind == "resolutions" else _bound(lower),
        hi=HIGHEST_PX if kind == "resolutions" else _bound(upper),
        lo_is_open=isinstance(lower, Gt),
        hi_is_open=isinstance(upper, Lt),
        step=multiple,  # type: ignore[arg-type]  # annotated_types declares a protocol here
        choices=choices,
        choice_help=setting.choice_help or _help_of(names),
        item=item,
        variants=variants,
    )


def _help_of(names: OneOf | Variants | None) -> Mapping[str, str]:
    match names:
        case OneOf():
            return names.help()
        case Variants():
            return names.help
    return {}


def _metadata_of_items(annotation: Any) -> tuple[Any, ...]:
    """Return the metadata attached to the items of a tuple, as in `tuple[Annotated[int, Ge(32)], ...]`."""
    items = get_args(annotation)[:1] if get_origin(annotation) is tuple else ()
    return tuple(m for item in items if get_origin(item) is Annotated for m in get_args(item)[1:])


def _bound(limit: Ge | Gt | Le | Lt | None) -> float | None:
    match limit:
        case Ge(ge=value) | Gt(gt=value) | Le(le=value) | Lt(lt=value):
            return value  # type: ignore[return-value]  # as above; an integer stays exact
        case _:
            return None


_SCALARS: Mapping[type, Kind] = {bool: "bool", int: "int", float: "float", str: "text", Every: "every"}


def _classify(
    annotation: Any, names: OneOf | Variants | None, setting: Setting
) -> tuple[Kind, Mapping[str, str], type[BaseModel] | None, Mapping[str, type[BaseModel]]]:
    match names:
        case OneOf():
            return "choice", names.names(), None, {}
        case Variants():
            return "section", names.labels, None, names.classes
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "choice", {str(a): setting.choice_labels.get(str(a), str(a)) for a in arguments}, None, {}
    if origin is tuple:
        inner, _ = _strip_optional(arguments[0])
        if arguments[0] == Resolution:
            return "resolutions", {}, None, {}
        if inner is int:
            return "int_list", {}, None, {}
        return "list", {}, inner, {}
    if origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return "map", {}, arguments[1], {}
    if annotation in _SCALARS:
        return _SCALARS[annotation], {}, None, {}
    raise TypeError(f"The field {setting.label} has a type that no form supports: {annotation!r}")


def _strip_optional(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation, False
    rest = tuple(a for a in get_args(annotation) if a is not type(None))
    if len(rest) == len(get_args(annotation)):
        return annotation, False
    return (rest[0] if len(rest) == 1 else Union[rest]), True  # noqa: UP007 - built at run time
