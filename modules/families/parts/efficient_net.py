"""EfficientNetV2-S without its classifier (Tan and Le 2021, table 4), which encodes images (`effnet_autoencoder`).

Its tensors have the names of the published checkpoint, which are the names in torchvision's
`efficientnet_v2_s().features`. diffusers and transformers have no such class. It only runs in eval mode, so the blocks
have no stochastic depth.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

_EPSILON = 1e-3  # of all batch norms, in torchvision's EfficientNetV2
_SQUEEZED = 4  # the channels into a block for each channel of its squeeze and excitation


@dataclass(frozen=True, slots=True)
class Stage:
    """A row of the table: kind of block, expansion of channels, stride of the first block, channels out, blocks."""

    is_fused: bool
    expansion: int
    stride: int
    channels: int
    num_blocks: int


STAGES = (
    Stage(is_fused=True, expansion=1, stride=1, channels=24, num_blocks=2),
    Stage(is_fused=True, expansion=4, stride=2, channels=48, num_blocks=4),
    Stage(is_fused=True, expansion=4, stride=2, channels=64, num_blocks=4),
    Stage(is_fused=False, expansion=4, stride=2, channels=128, num_blocks=6),
    Stage(is_fused=False, expansion=6, stride=1, channels=160, num_blocks=9),
    Stage(is_fused=False, expansion=6, stride=2, channels=256, num_blocks=15),
)
WIDTH = 1280
"""The channels of the features."""


def stages_of(shapes: Mapping[str, tuple[int, ...]]) -> tuple[Stage, ...]:
    """Return the stages of an encoder from the shapes of its tensors; its blocks have the kinds and strides of
    EfficientNetV2-S. Raises KeyError where a stage is missing.
    """

    def of_file(number: int, usual: Stage) -> Stage:
        start = f"backbone.{number}."
        first, *rest = shapes[f"{start}0.block.0.0.weight"]
        expands = f"{start}0.block.1.0.weight" in shapes
        last = f"{start}0.block.{3 if not usual.is_fused else int(expands)}.0.weight"
        num_blocks = len({name.split(".")[2] for name in shapes if name.startswith(start)})
        return Stage(usual.is_fused, first // rest[0] if expands else 1, usual.stride, shapes[last][0], num_blocks)

    return tuple(of_file(number, usual) for number, usual in enumerate(STAGES, start=1))


def stages_in_config(stages: Sequence[Sequence[int]]) -> tuple[Stage, ...]:
    """Return the stages in a config, each as the values of a `Stage`; EfficientNetV2-S's if it has none."""
    return tuple(Stage(bool(is_fused), *rest) for is_fused, *rest in stages) or STAGES


def efficient_net(stages: tuple[Stage, ...] = STAGES, width: int = WIDTH) -> nn.Sequential:
    """Return the network from images (B, 3, P, P) to features (B, `width`, P / 32, P / 32)."""
    first = stages[0].channels
    layers: list[nn.Module] = [_conv(3, first, 3, stride=2)]
    before = first
    for stage in stages:
        layers.append(nn.Sequential(*_blocks(stage, before)))
        before = stage.channels
    return nn.Sequential(*layers, _conv(before, width, 1))


def _blocks(stage: Stage, before: int) -> Iterator[nn.Module]:
    kind = FusedBlock if stage.is_fused else Block
    for index in range(stage.num_blocks):
        rows, stride = (before, stage.stride) if index == 0 else (stage.channels, 1)
        yield kind(rows, stage.channels, expansion=stage.expansion, stride=stride)


def _conv(rows: int, channels: int, side: int, *, stride: int = 1, groups: int = 1, acts: bool = True) -> nn.Sequential:
    """Return a convolution, its batch norm and, with `acts`, SiLU."""
    conv = nn.Conv2d(rows, channels, side, stride=stride, padding=side // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(channels, eps=_EPSILON), *([nn.SiLU()] if acts else []))


class _Residual(nn.Module):
    """Layers, `block`, whose input is added to their output if both have the same shape."""

    def __init__(self, *layers: nn.Module, adds: bool) -> None:
        super().__init__()
        self.block = nn.Sequential(*layers)
        self.adds = adds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the states (B, C, H, W) after the block."""
        result: torch.Tensor = self.block(x)
        return x + result if self.adds else result


class FusedBlock(_Residual):
    """A Fused-MBConv: one convolution expands the channels, a second one of a pixel reduces them again."""

    def __init__(self, rows: int, channels: int, *, expansion: int, stride: int) -> None:
        inner = rows * expansion
        layers = (
            (_conv(rows, channels, 3, stride=stride),)
            if expansion == 1
            else (_conv(rows, inner, 3, stride=stride), _conv(inner, channels, 1, acts=False))
        )
        super().__init__(*layers, adds=stride == 1 and rows == channels)


class Block(_Residual):
    """An MBConv: expansion, a convolution within each channel, squeeze and excitation, reduction."""

    def __init__(self, rows: int, channels: int, *, expansion: int, stride: int) -> None:
        inner = rows * expansion
        super().__init__(
            _conv(rows, inner, 1),
            _conv(inner, inner, 3, stride=stride, groups=inner),
            SqueezeExcitation(inner, rows // _SQUEEZED),
            _conv(inner, channels, 1, acts=False),
            adds=stride == 1 and rows == channels,
        )


class SqueezeExcitation(nn.Module):
    """Weighs each channel by a number that follows from the means of all channels (Hu et al. 2018)."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the weighted states."""
        means = x.mean(dim=(2, 3), keepdim=True)
        weights: torch.Tensor = self.fc2(nn.functional.silu(self.fc1(means))).sigmoid()
        return x * weights


class EffNetEncoder(nn.Module):
    """The encoder of the published files: the features, reduced to the channels of latents and normalized.

    `is_scaled`: each channel is multiplied by a weight, and a bias is added.
    """

    def __init__(self, stages: tuple[Stage, ...], width: int, latent_channels: int, *, is_scaled: bool = False) -> None:
        super().__init__()
        self.backbone = efficient_net(stages, width)
        self.mapper = nn.Sequential(
            nn.Conv2d(width, latent_channels, 1, bias=False), nn.BatchNorm2d(latent_channels, affine=is_scaled)
        )

    def forward(self, images_B3PP: torch.Tensor) -> torch.Tensor:
        """Return the latents (B, C, P / 32, P / 32) of normalized images."""
        latents_BCHW: torch.Tensor = self.mapper(self.backbone(images_B3PP))
        return latents_BCHW
