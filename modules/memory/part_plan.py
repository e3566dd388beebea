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
    """An adapter on the linear and convolution layers that match `layers`.

    `memory` counts it for a layer, with `settings`, or with those that `settings_at(path, shape)` returns for the
    layer's name and the shape of its weight. `decomposes`: DoRA's magnitudes are trained, too, of the outputs or of the
    inputs of each layer. `has_rank(path)` is whether a matching layer gets an adapter; without it all do.
    """

    settings: Any
    memory: AdapterMemory
    item_bytes: int
    layers: LayerFilter
    has_dropout: bool = False
    settings_at: Callable[[str, Shape], Any] | None = None
    decomposes: Literal["", "outputs", "inputs"] = ""
    has_rank: Callable[[str], bool] | None = None

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
        return self.layers.takes(path) and (self.has_rank is None or self.has_rank(path))


@dataclass(frozen=True, slots=True)
class PartPlan:
    """The dtypes, training and memory settings of a part.

    `weight_bytes` is the item size of the weights, `compute_bytes` of 16-bit products, 0 without. An adapter's products
    always have that size, those of the part itself only if it `autocasts`.

    `adapter` is set if `trains` is "adapter". Layers with a prefix in `unreached` get no gradient and are not trained;
    a fine-tune trains only the layers that match `layers`. `trains_embeddings`: embeddings are trained, so a gradient
    passes through the text encoder. `num_kept` counts the float32 values of a starting adapter that stay untrained.

    `offloads` moves activations to the offload device. `offload_fraction` of the weights of the blocks stay there:
    those with a prefix in `offloaded_prefixes`, which are chosen by their sizes. With the checkpointing "auto",
    `checkpointed_blocks` are the names of the blocks that are checkpointed. `quantized` is the format of the linear
    layers that match it, whose weights are then frozen. `fuses_norms`: an RMS norm of diffusers is one kernel without
    autocast (`modules/families/parts/fused_norms.py`).
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
    trains_embeddings: bool = False
    checkpointed_blocks: frozenset[str] = frozenset()
    autocasts: bool = True
    fuses_norms: bool = False

    @property
    def autocast_bytes(self) -> int:
        """The item size of autocast's results in the part itself, 0 without autocast."""
        return self.compute_bytes if self.autocasts else 0

    @property
    def has_gradient(self) -> bool:
        """Whether a gradient passes through a text encoder: its weights are trained, or embeddings before them."""
        return self.trains != "nothing" or self.trains_embeddings

    def format_of(self, path: str) -> QuantizedFormat | None:
        """Return the format of a linear layer's weight; None if it is not quantized."""
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
