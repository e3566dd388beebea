"""The result of identifying a file or folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from modules.system.errors import DarkroomError

WITHOUT = "without"
"""The fact with the optional parts that a model lacks, separated by commas."""
Prediction = Literal["epsilon", "v_prediction", "flow", "edm", ""]


@dataclass(frozen=True, slots=True)
class FileKind:
    """The kind of a file or folder.

    `kind` is the name of its record in the registry of file kinds, `family` the name of a family's record, `model` the
    family's published model whose configs fit it, `variant` "inpainting", "instruct" or "depth" for a model that is not
    the base model. `prediction` is empty if the file does not contain it. `sentence` describes the file for the user.
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
    """Whether it is a whole model, even if some of its weights are missing."""
    problem: str = ""
    """Why its weights cannot be read, as the rest of a sentence that begins with its name; empty if they can."""

    @property
    def is_model(self) -> bool:
        """Whether it is a whole model of a known family."""
        return self.is_whole and bool(self.family)

    @property
    def without(self) -> frozenset[str]:
        """The optional parts of its family that it lacks."""
        return frozenset(self.facts.get(WITHOUT, "").split(", ")) - {""}

    @property
    def is_denoiser(self) -> bool:
        """Whether it is the denoiser of a model of a known family, without the other parts."""
        return self.kind == "part" and bool(self.model)

    def explain(self, why: str) -> str:
        """Return why a file cannot be used, and what it is; for an unreadable file only what is wrong with it."""
        return self.sentence if self.kind == "broken" else f"{why} {self.sentence}"

    def refusal(self, why: str, advice: str) -> DarkroomError:
        """Return the error for a file that cannot be used; an unreadable file's sentence contains its own advice."""
        return DarkroomError(self.explain(why), advice="" if self.kind == "broken" else advice)

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
