"""LPIPS (Zhang et al. 2018, "The Unreasonable Effectiveness of Deep Features as a Perceptual Metric", section 3).

The distance of two images is the distance of their features in VGG16: after each of its five stages the features are
scaled to length 1 over the channels, and the squares of their differences are weighted by channel, and averaged over
the places. VGG16 is torchvision's, the weights are LPIPS's version 0.1, which people's judgements were fitted to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from modules.formats.stored_tensors import read_stored
from modules.memory.recording import PassSize
from modules.memory.trace import TracedPass
from modules.objectives.perceptual_files import STAGES, WIDTHS, lpips_names, refusal_of_lpips, refusal_of_vgg, vgg_names
from modules.system.devices import Device, move
from modules.system.errors import DarkroomError

# Images in [-1, 1] to the values that VGG16 was trained with: the means and deviations of ImageNet, of [0, 1].
_SHIFTS = (-0.030, -0.088, -0.188)
_SCALES = (0.458, 0.448, 0.450)
_MIN_SQUARE = 1e-20

Convolution = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, eq=False)
class PerceptualDistance:
    """VGG16's convolutions (weight, bias) by stage, and the weights (1, C, 1, 1) of each stage's features.

    `scaling` are the shifts that are subtracted from images in [-1, 1] and the scales that divide them, (1, 3, 1, 1)
    each. All are float32 and frozen, and on the device of the images. A backup needs none of them.
    """

    stages: Sequence[Sequence[Convolution]]
    weights: Sequence[torch.Tensor]
    scaling: tuple[torch.Tensor, torch.Tensor]

    def __call__(
        self, decoded_B3PP: torch.Tensor, images_B3PP: torch.Tensor, area_weights_B1HW: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the distance of each image in [-1, 1] from its original, (B,), in float32 without autocast.

        The area weights weigh the places, at each stage as their mean over the pixels of a place. Gradients pass to the
        decoded images. Images need at least 16 pixels on each side.
        """
        with torch.autocast(decoded_B3PP.device.type, enabled=False):
            return self._distances(decoded_B3PP, images_B3PP, area_weights_B1HW)

    def _distances(
        self, decoded_B3PP: torch.Tensor, images_B3PP: torch.Tensor, area_weights_B1HW: torch.Tensor | None = None
    ) -> torch.Tensor:
        with torch.no_grad():
            targets = self._features(images_B3PP.float())
        distances_B = torch.zeros(len(decoded_B3PP), device=decoded_B3PP.device)
        for features, target, weights in zip(self._features(decoded_B3PP.float()), targets, self.weights, strict=True):
            errors_B1HW = (weights * (features - target).square()).sum(dim=1, keepdim=True)
            if area_weights_B1HW is not None:
                errors_B1HW = errors_B1HW * functional.interpolate(
                    area_weights_B1HW.float(), size=errors_B1HW.shape[2:], mode="area"
                )
            distances_B = distances_B + errors_B1HW.flatten(1).mean(dim=1)
        return distances_B

    def _features(self, images_B3PP: torch.Tensor) -> list[torch.Tensor]:
        """Return the features after each stage, of length 1 over their channels."""
        shifts_1311, scales_1311 = self.scaling
        x, features = (images_B3PP - shifts_1311) / scales_1311, []
        for index, stage in enumerate(self.stages):
            if index:
                x = functional.max_pool2d(x, 2)
            for weight, bias in stage:
                x = functional.relu(functional.conv2d(x, weight, bias, padding=1), inplace=True)
            squares_B1HW = x.square().sum(dim=1, keepdim=True)
            features.append(x * (squares_B1HW + _MIN_SQUARE).rsqrt())  # finite gradients where all features are 0
        return features


def trace_distance() -> tuple[nn.Module, TracedPass]:
    """Return the pass of a distance with the published VGG16, for the memory estimate to trace, and its weights."""

    def empty(*shape: int) -> nn.Parameter:
        return nn.Parameter(torch.empty(shape, device="meta"))

    stages, width_in = [], 3
    for stage, width in zip(STAGES, WIDTHS, strict=True):
        widths = [width_in, *[width] * (len(stage) - 1)]
        stages.append([(empty(width, n, 3, 3), empty(width)) for n in widths])
        width_in = width
    distance = PerceptualDistance(stages, [empty(1, n, 1, 1) for n in WIDTHS], (empty(1, 3, 1, 1), empty(1, 3, 1, 1)))
    weights = [w for stage in stages for layer in stage for w in layer]
    module = nn.ParameterList([*weights, *distance.weights, *distance.scaling])

    def inputs(size: PassSize) -> dict[str, torch.Tensor]:
        images_B3PP = torch.empty(size.batch, 3, size.height_px, size.width_px)
        return {"decoded_B3PP": images_B3PP, "images_B3PP": images_B3PP.clone()}

    return module, TracedPass(distance._distances, inputs)


def image_scaling(device: Device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scaling of a `PerceptualDistance` on a device."""
    shifts_1311, scales_1311 = (torch.tensor(values).view(1, 3, 1, 1) for values in (_SHIFTS, _SCALES))
    return move(shifts_1311, device), move(scales_1311, device)


def read_perceptual_distance(vgg_file: Path, lpips_file: Path, device: Device) -> PerceptualDistance:
    """Return the distance, read from two files onto a device. Only weights are read, never code.

    Raises DarkroomError if a file contains anything else, or if the files do not fit each other.
    """
    vgg, _ = read_stored(vgg_file)
    lpips, _ = read_stored(lpips_file)
    refused = refusal_of_vgg(vgg_file, {name: t.shape for name, t in vgg.items()})
    refused = refused or refusal_of_lpips(lpips_file, {name: t.shape for name, t in lpips.items()})
    if refused is not None:
        raise refused
    names, weight_names = vgg_names(vgg), lpips_names(lpips)
    assert names is not None
    assert weight_names is not None

    def prepare(tensor: torch.Tensor) -> torch.Tensor:
        return move(tensor.float(), device)

    stages = [
        [(prepare(vgg[f"{layer}.weight"].make()), prepare(vgg[f"{layer}.bias"].make())) for layer in stage]
        for stage in names
    ]
    weights = [prepare(lpips[name].make()) for name in weight_names]
    for name, weight, stage in zip(weight_names, weights, stages, strict=True):
        if weight.shape[1] != len(stage[-1][0]):
            raise DarkroomError(
                f"{lpips_file.name} does not fit {vgg_file.name}: {name} has {weight.shape[1]} channels, the features "
                f"have {len(stage[-1][0])}.",
                advice="Choose the weights of LPIPS for VGG16, not for another network.",
            )
    return PerceptualDistance(stages, weights, image_scaling(device))
