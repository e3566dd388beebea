"""Optional Python packages that a choice needs."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Package:
    """A Python package that a choice needs, by the name it is imported by.

    `extra` names the extra of this program that installs it, if any; `distribution` is its name for pip, if different.
    """

    name: str
    extra: str = ""
    distribution: str = ""

    @property
    def is_installed(self) -> bool:
        """Whether it is installed. It is not imported."""
        return importlib.util.find_spec(self.name) is not None

    @property
    def install(self) -> str:
        """How to install it, as the beginning of an advice: "Install NAME (pip install ...)"."""
        name = self.distribution or self.name
        return f'Install {name} (pip install ".[{self.extra}]")' if self.extra else f"Install {name}"
