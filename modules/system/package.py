"""Optional Python packages that a choice needs. Torch-free."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Package:
    """A Python package that a choice needs; `extra` names the extra of this program that installs it, if any."""

    name: str
    extra: str = ""

    @property
    def is_installed(self) -> bool:
        """Whether it is installed. It is not imported."""
        return importlib.util.find_spec(self.name) is not None

    @property
    def install(self) -> str:
        """How to install it, as the beginning of an advice: "Install NAME (pip install ...)"."""
        return f'Install {self.name} (pip install ".[{self.extra}]")' if self.extra else f"Install {self.name}"
