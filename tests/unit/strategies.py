"""Hypothesis strategies of the unit tests: any JSON, and valid configs generated from the field records."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from pydantic import BaseModel

from modules.config.schema import Config
from modules.settings.every import Every
from modules.settings.field import FieldRecord, records_of

# Whole configs are large: a few of them take as long as hundreds of numbers.
few = settings(max_examples=settings().max_examples * 2 // 3)

UNITS = ("epoch", "step", "second", "minute", "hour", "never")

odd_numbers = st.sampled_from(
    [0, -1, 1, 2**31, 2**63, 2**64, -(2**70), 10**400, -(10**400), 0.5, 1e308, -1e308, 5e-324, -0.0]
)
not_finite = st.sampled_from([float("nan"), float("inf"), float("-inf")])
odd_texts = st.sampled_from(
    ["", " ", "NaN", "null", "x" * 100_000, "\x00", "\ud800", "\u2028", "é中🎨", "1e999", "../.."]
)
json_scalars = (
    st.none() | st.booleans() | st.integers() | odd_numbers | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20) | odd_texts
)  # fmt: skip


def trees(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Nested JSON values over leaves."""
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10) | odd_texts, inner, max_size=4)
        ),
        max_leaves=12,
    )


json_values = trees(json_scalars)
garbage = trees(json_scalars | not_finite)


def valid_values(record: FieldRecord) -> st.SearchStrategy[Any]:
    """Any valid value of a field, as JSON."""
    values = _by_kind(record)
    return st.none() | values if record.optional else values


def valid_trees(section: type[BaseModel], *, name: str = "") -> st.SearchStrategy[dict[str, Any]]:
    """Any subset of a section's fields with valid values, nested as in a file."""
    flat = {r.path: valid_values(r) for r in records_of(section)}
    fixed = {"name": st.just(name)} if name else {}
    return st.fixed_dictionaries(fixed, optional=flat).map(_nested)


def valid_configs() -> st.SearchStrategy[Config]:
    """Configs with any of the values their records allow, and any unknown settings."""
    unknown = st.dictionaries(st.text(max_size=12), json_values, max_size=3)
    return st.builds(lambda tree, rest: Config.model_validate({**tree, "unknown": rest}), valid_trees(Config), unknown)


def _by_kind(record: FieldRecord) -> st.SearchStrategy[Any]:
    match record.kind:
        case "int" | "int_list":
            step = int(record.step or 1)
            assert record.lo is not None, record.path
            assert record.hi is not None, record.path
            numbers = st.integers(int(record.lo) // step, int(record.hi) // step).map(lambda n: n * step)
            return numbers if record.kind == "int" else st.lists(numbers, min_size=1, max_size=4)
        case "resolutions":
            sizes = st.tuples(st.integers(32, 8192), st.integers(32, 8192)).map(lambda s: f"{s[0]}x{s[1]}")
            return st.lists(st.integers(32, 8192) | sizes, min_size=1, max_size=4)
        case "float":
            return st.floats(
                record.lo, record.hi, exclude_min=record.lo_is_open, exclude_max=record.hi_is_open, allow_nan=False
            )
        case "bool":
            return st.booleans()
        case "text":
            return st.text(max_size=30) | st.sampled_from(["\u2028", "\x00", "é中🎨", " "])
        case "choice":
            return st.sampled_from(list(record.choices))
        case "every":
            return everies.map(lambda every: every.model_dump())
        case "section":
            return st.one_of([valid_trees(v, name=n) for n, v in record.variants.items()])
        case "list":
            assert record.item is not None
            return st.lists(valid_trees(record.item), max_size=3)
        case "map":
            assert record.item is not None
            names = st.sampled_from(["unet", "text_encoder", "vae", "text_encoder_2"]) | st.text(max_size=8)
            return st.dictionaries(names, valid_trees(record.item), max_size=3)


everies = st.builds(Every, n=st.floats(0, 1e9, allow_nan=False) | st.integers(0, 1000), unit=st.sampled_from(UNITS))


def _nested(flat: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *folders, name = path.split(".")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[name] = value
    return tree
