"""The adapters, one line each, in the order the window lists them; the first is the default.

The record named "lora" is `LORA` in `lora.py`, imported when it is first read. The code that builds an adapter is named
in its record and imported when a run begins.
"""

from __future__ import annotations

from collections.abc import Mapping

from modules.adapters.spec import AdapterSpec
from modules.settings.lazy_variants import LazyRecords

ADAPTERS: Mapping[str, AdapterSpec] = LazyRecords(
    "modules.adapters", {"lora": "lora", "loha": "loha", "lokr": "lokr", "oft": "oft"}
)
DEFAULT_ADAPTER = ADAPTERS[next(iter(ADAPTERS))]


def adapter_labels(*, needs_model: bool = True) -> str:
    """Return the labels of the adapters as a phrase, "A, B or C".

    Without `needs_model`, adapters whose change of a weight depends on that weight are left out.
    """
    *most, end = [spec.label for spec in ADAPTERS.values() if needs_model or not spec.files.depends_on_weight]
    return f"{', '.join(most)} or {end}" if most else end
