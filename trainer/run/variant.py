"""Whether a loaded model is of the variant that the config names."""

from __future__ import annotations

from modules.families.protocol import ModelFamily
from modules.families.spec import VARIANT_LABELS
from modules.system.errors import DarkroomError


def require_variant(family: ModelFamily, variant: str, *, name: str) -> None:
    """Raise DarkroomError where a model, called `name`, is of another variant than `model.variant`."""
    if family.variant == variant:
        return
    raise DarkroomError(
        f"The model variant is set to {VARIANT_LABELS[variant]}, but {name} is of the variant "
        f"{VARIANT_LABELS[family.variant]}.",
        advice=f"Set the model variant to {VARIANT_LABELS[family.variant]}, or choose another model.",
    )
