"""The model families, one line each. Torch-free: the factories are named and imported when a run begins."""

from __future__ import annotations

from collections.abc import Mapping

from modules.families.sd.spec import SD
from modules.families.sdxl.spec import SDXL
from modules.families.spec import FamilySpec

FAMILIES: Mapping[str, FamilySpec] = {
    SD.name: SD,
    SDXL.name: SDXL,
}


def family_labels() -> Mapping[str, str]:
    """Return the families' names with the labels people know them by."""
    return {name: spec.label for name, spec in FAMILIES.items()}
