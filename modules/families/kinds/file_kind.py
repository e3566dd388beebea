"""What a file or folder was found to be: the record that recognition ends in. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Prediction = Literal["epsilon", "v_prediction", "edm", ""]


@dataclass(frozen=True, slots=True)
class FileKind:
    """What a file is.

    `kind` is the name of its record in the registry of file kinds, `family` the family's in the registry of families,
    `model` the family's published model whose configs fit it, `variant` "inpainting", "instruct" or "depth" where it is
    none of the plain models.
    `prediction` is empty where the file does not tell it. `sentence` says all of it to a person.
    """

    kind: str
    sentence: str
    family: str = ""
    model: str = ""
    variant: str = ""
    prediction: Prediction = ""
    zero_snr: bool = False
    facts: Mapping[str, str] = field(default_factory=dict)
    is_whole: bool = False
    """Whether it holds every part of a model, or is meant to."""

    @property
    def is_model(self) -> bool:
        """Whether a whole model of a known family is in it."""
        return self.is_whole and bool(self.family)

    def to_json(self) -> dict[str, Any]:
        """Return the record as data."""
        return {
            "kind": self.kind,
            "family": self.family,
            "model": self.model,
            "variant": self.variant,
            "prediction": self.prediction,
            "zero_snr": self.zero_snr,
            "facts": dict(self.facts),
            "sentence": self.sentence,
        }
