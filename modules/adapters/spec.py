"""The record of an adapter, which each adapter's file fills in: all that is known before anything is built."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from modules.formats.adapter_types import DORA_SCALE, AdapterType
from modules.settings.field import Section
from modules.system.problem import Problem

if TYPE_CHECKING:  # the window reads this file, and neither reads adapters nor estimates
    from modules.formats.adapter_forms import FileForm
    from modules.memory.arrays import Array
    from modules.memory.replay import Replay

Shape = tuple[int, ...]


Trainable = Callable[[Mapping[str, Shape]], frozenset[str]]


@dataclass(frozen=True, slots=True)
class AdapterMemory:
    """The weights and the computation of an adapter next to a layer, for the memory estimate.

    `factor_shapes(settings, weight)` returns the shapes of its trained weights by name, `fixed_shapes` of those that it
    does not train. `walk(settings, replay, path, weight, x, out)` runs it in the replay of a pass for the layer at
    `path`, whose input is `x` and whose result is `out`, and returns the change of `out` (`modules/memory/replay.py`).
    `weight` is the shape of the layer's weight: out, in, and height and width of a kernel.
    """

    factor_shapes: Callable[[Any, Shape], Mapping[str, Shape]]
    walk: Callable[[Any, Replay, str, Shape, Array, Array], Array]
    fixed_shapes: Callable[[Any, Shape], Mapping[str, Shape]] = lambda settings, weight: {}


@dataclass(frozen=True, slots=True)
class NetworkMetadata:
    """An adapter in kohya's `ss_network_*` metadata: its module, rank ("dim"), alpha and other arguments."""

    module: str
    rank: int
    alpha: float
    args: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OneTrainerNames:
    """An adapter in OneTrainer's configs: its `peft_type`, and its keys with the names of our fields.

    `dora_on_outputs` is OneTrainer's default for the axis of DoRA's magnitudes, None without DoRA. `fixed` are fields
    with a fixed value in OneTrainer, about which `note` and `advice` inform the user.
    """

    peft_type: str
    fields: Mapping[str, str] = field(default_factory=dict)
    dora_on_outputs: bool | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    advice: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class AdapterSpec:
    """The record of an adapter: its label, its settings, and all that the rest of the program needs to know about it.

    `files` describes it in files, by the same label. `kohya` are words in the names of kohya's networks and LyCORIS'
    algorithms that identify it, `onetrainer` describes it in OneTrainer's configs. `factory` names its `AdapterKind`
    (`modules/adapters/protocol.py`) as "module:name", imported inside the training thread. `forms` are the file forms
    it can be written in. `memory` counts its weights and its computation for the estimate, `network(settings)` returns
    it for the file's metadata. `raised` are parts of the names of the weights to which the ratio of LoRA+ applies.

    `trainable(shapes)` returns which factors of a layer in a file this adapter continues to train, from the shapes of
    all factors but DoRA's magnitudes; `trainable_with` adds the magnitudes for a run that trains them.
    `settings_as(settings, shapes)` returns the settings that give a layer factors of these shapes. `float8_factors` are
    the factors whose product the layer's alpha scales, so that they can be written in float8; without any, the adapter
    cannot be written in float8. `problems(settings, shapes)` yields the problems of its settings for layers with
    weights of these shapes. `computes_in_input_dtype(settings)`: the adapter can multiply in the dtype of its layer's
    input, and then needs no autocast (`CastingAdapter` in `modules/adapters/protocol.py`).
    """

    label: str
    settings: type[Section]
    files: AdapterType
    factory: str
    kohya: tuple[str, ...] = ()
    onetrainer: OneTrainerNames | None = None
    forms: tuple[FileForm, ...] = ("kohya", "comfyui")
    supports_dora: bool = False
    raised: tuple[str, ...] = ()
    memory: AdapterMemory | None = None
    network: Callable[[Any], NetworkMetadata] | None = None
    trainable: Trainable | None = None
    settings_as: Callable[[Any, Mapping[str, Shape]], Any] | None = None
    float8_factors: frozenset[str] = frozenset()
    problems: Callable[[Any, Collection[Shape]], Iterator[Problem]] | None = None
    computes_in_input_dtype: Callable[[Any], bool] = lambda settings: False

    @property
    def name(self) -> str:
        """The name in configs, which the settings declare."""
        return str(self.settings.model_fields["name"].default)

    @property
    def help(self) -> str:
        """A description in one sentence."""
        return (self.settings.__doc__ or "").strip().splitlines()[0]

    def trainable_with(self, settings: Any) -> Trainable | None:
        """Return which factors of a layer in a file a run with these settings continues to train, from their shapes.

        DoRA's magnitudes belong to the change of a weight: only a run that trains them continues a layer that has them.
        """
        select = self.trainable
        if select is None or not (self.supports_dora and settings.decompose):
            return select

        def trainable(shapes: Mapping[str, Shape]) -> frozenset[str]:
            names = select({name: shape for name, shape in shapes.items() if name != DORA_SCALE})
            return names | ({DORA_SCALE} & shapes.keys()) if names else names

        return trainable

    def rate_ratios(self, settings: Any, names: Collection[str]) -> dict[str, float]:
        """Return the learning rates of an adapter's weights, by name, as ratios where they are not 1 (LoRA+)."""
        ratio = getattr(settings, "lora_plus_ratio", 1.0)
        return {} if ratio == 1.0 else {n: ratio for n in names if any(part in n for part in self.raised)}
