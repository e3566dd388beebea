"""What a file or folder was found to be: the record that recognition ends in. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal[
    "checkpoint",  # a whole model in one file, original layout
    "diffusers_folder",
    "lora",
    "vae",
    "embedding",
    "part",  # a UNet, a text encoder, a ControlNet alone
    "other_model",  # a model this program does not know
    "unknown",
    "broken",
]
Prediction = Literal["epsilon", "v_prediction", "edm", ""]

MODEL_LABELS = {
    "sd1": "Stable Diffusion 1.x",
    "sd2": "Stable Diffusion 2.x",
    "sd2_v": "Stable Diffusion 2.x",
    "sdxl": "Stable Diffusion XL",
    "sdxl_refiner": "Stable Diffusion XL refiner",
}
# How wide the text states are that a model's UNet takes in, and how many channels a variant's first layer does.
MODEL_OF_WIDTH = {768: "sd1", 1024: "sd2", 2048: "sdxl", 1280: "sdxl_refiner"}
VARIANT_OF_CHANNELS = {9: "inpainting", 8: "instruct", 5: "depth", 7: "upscaler"}
FAMILY_OF = {"sd1": "sd", "sd2": "sd", "sd2_v": "sd", "sdxl": "sdxl", "sdxl_refiner": "sdxl"}


@dataclass(frozen=True, slots=True)
class FileKind:
    """What a file is.

    `family` is the family's name in the registry, `model` which of the shipped configs fit it ("sd1", "sd2", "sd2_v",
    "sdxl", "sdxl_refiner"), `variant` "inpainting", "instruct" or "depth" where it is none of the plain models.
    `prediction` is empty where the file does not tell it. `sentence` says all of it to a person.
    """

    kind: Kind
    sentence: str
    family: str = ""
    model: str = ""
    variant: str = ""
    prediction: Prediction = ""
    zero_snr: bool = False
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_model(self) -> bool:
        """Whether a whole model of a known family is in it."""
        return self.kind in ("checkpoint", "diffusers_folder") and bool(self.family)

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
