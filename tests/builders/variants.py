"""A field that holds one of several sections, from the sections alone."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from modules.settings.field import Section
from modules.settings.lazy_variants import lazy_variants


def variants(default: str, *kinds: type[Section], labels: Mapping[str, str] | None = None) -> tuple[Any, ...]:
    """Return the annotations of a field that is one of some sections, distinguished by their `name`."""
    names = {str(kind.model_fields["name"].default): kind for kind in kinds}
    records: dict[str, Any] = {
        n: SimpleNamespace(label=(labels or {}).get(n, n), settings=kind) for n, kind in names.items()
    }
    return lazy_variants(records, default)
