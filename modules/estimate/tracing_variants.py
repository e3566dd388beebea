"""Traces the passes of a variant's parts: `python -m modules.estimate.tracing_variants` is the process that does it.

As `tracing.py` does for a family, whose code is in the names of all recordings; the request also has the variant.
"""

from __future__ import annotations

import json
import sys

from modules.estimate.tracing import trace_parts
from modules.families.registry import FAMILIES


def main() -> None:
    """Trace the parts that the standard input names."""
    request = json.load(sys.stdin)
    trace_parts(FAMILIES[request["family"]].of_variant(request["variant"]), request["configs"])


if __name__ == "__main__":
    main()
