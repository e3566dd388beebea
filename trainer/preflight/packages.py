"""Optional packages: the settings that need one, and whether it is installed."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.schema import Config
from modules.optim.registry import optimizer_spec
from modules.system.problem import Problem


def problems_of_packages(config: Config) -> Iterator[Problem]:
    """Yield settings of the optimizer whose package is missing. No package is imported."""
    spec = optimizer_spec(config.training.optimizer)
    for package in spec.packages_of(config.training.optimizer):
        if not package.is_installed:
            yield Problem(
                "training.optimizer",
                f"The optimizer {spec.name} needs the package {package.name}, which is not installed.",
                advice=f"{package.install}, or choose another optimizer.",
            )
