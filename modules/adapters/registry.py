"""The adapters, one line each. Torch-free: what builds them is named and imported when a run begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Union, cast

from modules.adapters.loha import LOHA
from modules.adapters.lokr import LOKR
from modules.adapters.lora import LORA
from modules.adapters.oft import OFT
from modules.adapters.settings import AdapterSettings
from modules.adapters.spec import AdapterSpec

ADAPTERS: Mapping[str, AdapterSpec] = {
    LORA.name: LORA,
    LOHA.name: LOHA,
    LOKR.name: LOKR,
    OFT.name: OFT,
}

DEFAULT = LORA.name


def settings_union() -> Any:
    """Return the type of a config field that holds the settings of any of the adapters."""
    return Union[tuple(spec.settings for spec in ADAPTERS.values())]  # noqa: UP007 - built at run time


def default_settings() -> AdapterSettings:
    """Return the settings of the adapter that is trained where nothing else is chosen."""
    return cast(AdapterSettings, ADAPTERS[DEFAULT].settings())


def adapter_labels() -> Mapping[str, str]:
    """Return the adapters' names with the labels people know them by."""
    return {name: spec.label for name, spec in ADAPTERS.items()}


def adapters_not_yet() -> frozenset[str]:
    """Return the names of the adapters that files may name and that are not supported yet."""
    return frozenset(name for name, spec in ADAPTERS.items() if not spec.is_supported)


def spec_labelled(label: str) -> AdapterSpec | None:
    """Return the supported adapter with a label, which `identify` also uses for files; None for any other label.

    "DoRA (LoHa)" is a LoHa.
    """
    plain = label.removeprefix("DoRA (").removesuffix(")")
    return next((spec for spec in ADAPTERS.values() if spec.label == plain and spec.is_supported), None)
