"""The settings of a part that the memory of its passes depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from modules.quantization.registry import ChosenFormat, QuantizedFormat
from modules.settings.layer_filter import EVERYTHING, LayerFilter
from modules.settings.shared_types import CheckpointMode

if TYPE_CHECKING:
    from modules.memory.arrays import Array
    from modules.memory.replay import Replay

Trains = Literal["nothing", "full", "adapter"]
Shape = tuple[int, ...]

FLOAT32_BYTES = 4


Shapes = Mapping[str, Shape]


class AdapterMemory(Protocol):
    """The weights and the computation of an adapter next to a layer (`modules/adapters/spec.py`)."""

    @property
    def factor_shapes(self) -> Callable[[Any, Shape], Shapes]:
        """The shapes of its trained weights, by name."""
        ...

    @property
    def fixed_shapes(self) -> Callable[[Any, Shape], Shapes]:
        """The shapes of its weights that are not trained, by name."""
        ...

    @property
    def walk(self) -> Callable[[Any, Replay, str, Shape, Array, Array], Array]:
        """Its computation in the replay of a pass."""
        ...


@dataclass(frozen=True, slots=True)
class AdapterPlan:
    """An adapter on every linear and convolution layer that `layers` takes.

    `memory` counts it for a layer, by its `settings` or those that `settings_at(path, shape)` returns for the layer,
    from its name and the shape of its weight. `decomposes`: DoRA's magnitudes are trained with it, of the outputs or of
    the inputs of each layer. `has_own` takes the layers that get an adapter of those that `layers` takes; None if all
    do.
    """

    settings: Any
    memory: AdapterMemory
    item_bytes: int
    layers: LayerFilter
    has_dropout: bool = False
    settings_at: Callable[[str, Shape], Any] | None = None
    decomposes: Literal["", "outputs", "inputs"] = ""
    has_own: Callable[[str], bool] | None = None

    def settings_of(self, path: str, weight: Shape) -> Any:
        """Return the settings for a layer."""
        return self.settings if self.settings_at is None else self.settings_at(path, weight)

    def magnitudes(self, weight: Shape) -> Shape:
        """Return the shape of DoRA's magnitudes for a weight."""
        is_per_output = self.decomposes == "outputs"
        return (weight[0] if is_per_output else 1, 1 if is_per_output else weight[1], *(1 for _ in weight[2:]))

    def trained_shapes(self, path: str, weight: Shape) -> Iterator[tuple[str, Shape]]:
        """Yield the names and shapes of the trained weights of a layer."""
        for name, shape in self.memory.factor_shapes(self.settings_of(path, weight), weight).items():
            yield f"{path}.{name}", shape
        if self.decomposes:
            yield f"{path}.magnitudes", self.magnitudes(weight)

    def takes(self, path: str) -> bool:
        """Whether a layer gets the adapter."""
        return self.layers.takes(path) and (self.has_own is None or self.has_own(path))


@dataclass(frozen=True, slots=True)
class PartPlan:
    """The dtypes, training and memory settings of a part.

    `weight_bytes` and `compute_bytes` are item sizes, the latter of autocast, 0 without. Unless it `autocasts`, only an
    adapter multiplies in that size, and the part computes in its weights' own. `trains` selects what is trained, and
    `adapter` is the adapter, if it is one. Layers with a prefix in `unreached` are never trained: they get no gradient;
    a fine-tune only trains the ones that `layers` takes. `offloads` moves activations to the offload device.
    `offload_fraction` of the weights of its blocks stay there; the selection depends on the sizes: the layers with a
    prefix in `offloaded_prefixes`. `num_kept` is the number of values in float32 of an adapter that the part has and
    that is not trained. `quantized` is the format of the linear layers that it takes, whose weights are then frozen.
    `has_words`: embeddings are trained, so that a gradient passes through the text encoder. With the checkpointing
    "auto", `checkpointed_blocks` has the names of the blocks that are checkpointed. `fuses_norms`: without autocast an
    RMS norm of diffusers is one kernel (`modules/families/parts/fused_norms.py`).
    """

    weight_bytes: int = FLOAT32_BYTES
    compute_bytes: int = 0
    trains: Trains = "nothing"
    adapter: AdapterPlan | None = None
    unreached: tuple[str, ...] = ()
    layers: LayerFilter = EVERYTHING
    checkpointing: CheckpointMode = "off"
    offloads: bool = False
    offload_fraction: float = 0.0
    offloaded_prefixes: tuple[str, ...] = ()
    num_kept: int = 0
    quantized: ChosenFormat | None = None
    has_words: bool = False
    checkpointed_blocks: frozenset[str] = frozenset()
    autocasts: bool = True
    fuses_norms: bool = False

    @property
    def autocast_bytes(self) -> int:
        """The item size of autocast's results in the part itself, 0 without."""
        return self.compute_bytes if self.autocasts else 0

    @property
    def has_gradient(self) -> bool:
        """Whether a gradient passes through a text encoder: its weights are trained, or embeddings before them."""
        return self.trains != "nothing" or self.has_words

    def format_of(self, path: str) -> QuantizedFormat | None:
        """Return the format of a linear layer's weight, None where it is not quantized."""
        return self.quantized.format if self.quantized is not None and self.quantized.takes(path) else None

    def is_trained(self, path: str) -> bool:
        """Whether a layer's own weights are trained."""
        return self.trains == "full" and self.layers.takes(path) and not path.startswith(self.unreached)

    def is_trained_here(self, path: str) -> bool:
        """Whether a layer's own weights are trained on the training device."""
        return self.is_trained(path) and not path.startswith(self.offloaded_prefixes)

    def adapter_on(self, path: str) -> AdapterPlan | None:
        """Return the adapter that a layer has, or None."""
        if self.trains != "adapter" or self.adapter is None or path.startswith(self.unreached):
            return None
        return self.adapter if self.adapter.takes(path) else None
