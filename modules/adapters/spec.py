"""What is known of an adapter before anything is built: a record in the adapter's own file. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from modules.settings.field import Section

FileForm = Literal["kohya", "diffusers"]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LayerShape:
    """A linear layer, or with a kernel (height, width) a convolution, that gets an adapter."""

    out_channels: int
    in_channels: int
    kernel: tuple[int, ...] = ()

    @property
    def weight(self) -> Shape:
        """The shape of the layer's own weight."""
        return (self.out_channels, self.in_channels, *self.kernel)


@dataclass(frozen=True, slots=True)
class AdapterProduct:
    """One of the products that an adapter computes beside a layer, each on the result of the one before.

    `channels` are those of its result, `num_weights` the size of the weight it multiplies by. With `is_composed` that
    weight is computed from trained ones in each pass.
    """

    name: str
    channels: int
    num_weights: int
    is_composed: bool = False


@dataclass(frozen=True, slots=True)
class LayerCost:
    """What an adapter adds to one layer: the shapes of the weights it trains, by name, and what it computes."""

    weights: Mapping[str, Shape]
    products: tuple[AdapterProduct, ...]


@dataclass(frozen=True, slots=True)
class NetworkFacts:
    """What kohya's `ss_network_*` metadata say of an adapter: its module, rank ("dim"), alpha and other arguments."""

    module: str
    rank: int
    alpha: float
    args: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AdapterSpec:
    """An adapter: what people call it, its settings, and what the rest of the program needs to know of it.

    `label` is also what `modules/formats` calls files of its kind. `factory` names its `AdapterKind`
    (`modules/adapters/protocol.py`) as "module:name", imported inside the training thread; it is empty for an adapter
    that files may name and that is not supported yet. `forms` are the file forms it can be written in.
    `layer_cost(settings, shape)` is what the memory estimate counts, `network(settings)` what the file's metadata say.
    """

    label: str
    settings: type[Section]
    factory: str = ""
    forms: tuple[FileForm, ...] = ("kohya",)
    supports_dora: bool = False
    layer_cost: Callable[[Any, LayerShape], LayerCost] | None = None
    network: Callable[[Any], NetworkFacts] | None = None

    @property
    def name(self) -> str:
        """The name in configs, which the settings declare."""
        return str(self.settings.model_fields["name"].default)

    @property
    def help(self) -> str:
        """What it is, in a sentence."""
        return (self.settings.__doc__ or "").strip().splitlines()[0]

    @property
    def is_supported(self) -> bool:
        """Whether a run can train it."""
        return bool(self.factory)
