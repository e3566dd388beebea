"""The training method: one of the methods in `modules/objectives/`, whose records contain their settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Union

from modules.objectives.registry import METHODS
from modules.settings.field import Variant

if TYPE_CHECKING:
    MethodSettings = Variant
else:
    MethodSettings = Union[tuple(spec.settings for spec in METHODS.values())]  # noqa: UP007 - built at run time
