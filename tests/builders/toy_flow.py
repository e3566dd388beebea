"""The toy family as a flow model: pixels on a straight path to noise, in a convention of its own.

Its model reads `1 - sigma` and its output is negated, as with Z-Image; the shift follows the tokens of the image.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

import torch

from modules.data.conditioning import Conditioning
from modules.data.inputs import NO_INPUTS
from modules.diffusion.flow import FlowProcess, flow_process_of
from modules.diffusion.process_spec import FlowConvention, TokenShift, flow_matching
from modules.families.protocol import LoadRequest
from modules.families.published import FamilyFiles
from modules.families.settings import FamilySettings
from tests.builders.models import tiny_text_encoder, write_folder
from tests.builders.toy_family import load as toy_pixel
from tests.builders.toy_family.build import toy_unet
from tests.builders.toy_family.files import FILES as PIXEL_FILES
from tests.builders.toy_family.files import TOY_PIXEL
from tests.builders.toy_family.forward import ToyPixel
from tests.builders.toy_family.spec import TOY

CONVENTION = FlowConvention(output_sign=-1, time_input="1 - sigma", shift=TokenShift(16, 256), token_px=2)
SCHEDULER = {
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "num_train_timesteps": 1000,
    "use_dynamic_shifting": True,
    "base_image_seq_len": 16,
    "max_image_seq_len": 256,
    "base_shift": 0.5,
    "max_shift": 1.15,
}
FILES: FamilyFiles = replace(
    PIXEL_FILES,
    models=(replace(TOY_PIXEL, label="Toy flow", family="toy_flow"),),
)


class ToyFlowSettings(FamilySettings):
    """A flow model without settings of its own."""

    name: Literal["toy_flow"] = "toy_flow"


TOY_FLOW = replace(
    TOY,
    name="toy_flow",
    label="Toy flow",
    settings=ToyFlowSettings,
    factory="tests.builders.toy_flow:load",
    files="tests.builders.toy_flow:FILES",
    process=flow_matching(CONVENTION),
)


@dataclass(eq=False)
class ToyFlow(ToyPixel):
    """The toy model in the convention of a flow."""

    def predict(
        self,
        noisy_BCHW: torch.Tensor,
        timesteps_B: torch.Tensor,
        conditioning: Conditioning,
        inputs: Mapping[str, torch.Tensor] = NO_INPUTS,
    ) -> torch.Tensor:
        """Return the velocity `eps - x_0`."""
        process = self.process
        assert isinstance(process, FlowProcess)
        time_B = 1000 * process.time_input(timesteps_B)  # the embedding of its UNet is for times up to 1000
        return process.velocity(super().predict(noisy_BCHW, time_B, conditioning, inputs))


def load(request: LoadRequest[FamilySettings]) -> ToyFlow:
    """Return the model with every part on the CPU, frozen."""
    pixel = toy_pixel.load(request)
    values = {f.name: getattr(pixel, f.name) for f in fields(pixel)}
    process = flow_process_of(pixel.scheduler, CONVENTION)
    return ToyFlow(**{**values, "spec": TOY_FLOW, "process": process})


def write_toy_flow_folder(folder: Path) -> Path:
    """Write a tiny random model; the shipped tokenizer serves."""
    parts = {"unet": toy_unet, "text_encoder": tiny_text_encoder}
    return write_folder(folder, "ToyPixelPipeline", parts, SCHEDULER, seed=0)
