"""The record of an optimizer of the package pytorch-optimizer."""

from typing import Any

from modules.optim.spec import OptimizerSpec
from modules.system.factories import Package


def pytorch_optimizer_spec(settings: type[Any], label: str, **facts: Any) -> OptimizerSpec[Any]:
    """Return the record of an optimizer of the package pytorch-optimizer; its factory has the name in files."""
    return OptimizerSpec(
        settings=settings,
        label=label,
        factory=f"modules.optim.classes.counting_by_weight:{settings.model_fields['name'].default}",
        packages=(Package("pytorch_optimizer", distribution="pytorch-optimizer"),),
        **facts,
    )
