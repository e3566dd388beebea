"""How files contain a prior (`effnet_model`): diffusers' names, and the names in the published files.

They differ in the attention: queries, keys and values are one matrix there (PyTorch's `MultiheadAttention`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from modules.families.parts.single_file.detect import DENOISER_PREFIX, prefixed_names
from modules.families.parts.single_file.record import DenoiserFile, PartLayout
from modules.families.parts.single_file.slots import Slot, fused_slots, limit_layers
from modules.formats.adapter_forms import Layout
from modules.formats.adapter_targets import AdapterTarget

Config = Mapping[str, Any]
PREFIX = "lora_prior_unet_"
"""OneTrainer's beginning of the names of layers."""
EXPANSION = 4
"""The channels inside a residual block for each channel of its input."""
_PART = "prior"
_QKV = ("to_q", "to_k", "to_v")


@dataclass(frozen=True, slots=True)
class PriorLayers:
    """The layers of a family's priors, as functions of a config.

    `others` yields all but the attention's projections, each with the shape of its weight; `attention` the path of each
    attention with its width; `residual` the paths of the residual blocks. `kohya_layout` is the layout of the names in
    kohya's form.
    """

    others: Callable[[Config], Iterable[tuple[str, tuple[int, ...]]]]
    attention: Callable[[Config], Iterable[tuple[str, int]]]
    residual: Callable[[Config], Iterable[str]]
    kohya_layout: Layout = "original"

    def layout(self, config: Config) -> PartLayout:
        """Return the original layout of a prior. Raises ValueError for more layers than any model has."""
        return PartLayout(_PART, DENOISER_PREFIX, tuple(limit_layers(self._slots(config))))

    def targets(self, config: Config) -> Iterator[AdapterTarget]:
        """Yield the layers that adapter files can change.

        The projections have names of their own in the original layout, too: ComfyUI divides the matrix. Raises
        ValueError for more layers than any model has.
        """
        for path, shape in limit_layers(self.others(config)):
            if not path.endswith(".depthwise"):  # no adapter is for convolutions within groups
                yield self._target(path, _original(path), shape)
        for path, width in limit_layers(self.attention(config)):
            for name in _QKV:
                yield self._target(f"{path}.{name}", f"{path}.attn.{name}", (width, width))

    def denoiser_file(self, mark: str, *, attention: str) -> DenoiserFile:
        """Return how files contain such a prior.

        `mark` begins the names of a layer that every prior has, `attention` is the path of its first attention, which
        alone has other names in diffusers' layout.
        """
        return DenoiserFile(
            layout=self.layout,
            original_names=partial(prefixed_names, mark=mark),
            marks=(f".{mark}",),
            diffusers_marks=(f"{attention}.to_q.",),
            diffusers_prefixes=(f"{_PART}.", DENOISER_PREFIX, "diffusion_model."),
        )

    def _target(self, path: str, original: str, shape: tuple[int, ...]) -> AdapterTarget:
        paths: dict[Layout, str] = {"diffusers": path, "original": original}
        return AdapterTarget(_PART, path, shape, paths, PREFIX, self.kohya_layout)

    def _slots(self, config: Config) -> Iterator[Slot]:
        for path, _ in self.others(config):
            for end in ("weight", "bias"):
                yield Slot(f"{path}.{end}", f"{_original(path)}.{end}")
        for block in self.residual(config):
            for name in ("gamma", "beta"):
                yield Slot(f"{block}.channelwise.2.{name}", f"{block}.channelwise.2.{name}")
        for path, _ in self.attention(config):
            for end in ("weight", "bias"):
                yield from fused_slots([f"{path}.{name}.{end}" for name in _QKV], f"{path}.attn.in_proj_{end}")


def residual_layers(block: str, channel: int, skipped: int = 0, side: int = 3) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the layers of a residual block with the shapes of their weights; it reads `skipped` more channels."""
    yield f"{block}.depthwise", (channel, 1, side, side)
    yield f"{block}.channelwise.0", (EXPANSION * channel, channel + skipped)
    yield f"{block}.channelwise.4", (channel, EXPANSION * channel)


def _original(path: str) -> str:
    return path.replace(".attention.to_out.0", ".attention.attn.out_proj")
