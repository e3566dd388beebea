"""What is known of an adapter before anything is built: a record in the adapter's own file. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from modules.formats.adapter_types import DORA_SCALE, AdapterType
from modules.settings.field import Section
from modules.system.problem import Problem

if TYPE_CHECKING:  # the window reads this file and never runs the estimate's tape
    from modules.memory.replay import Array, Replay

FileForm = Literal["kohya", "diffusers"]
Shape = tuple[int, ...]


# `walk(settings, walk, path, weight, x, out)` runs an adapter on the memory estimate's tape beside the layer at `path`,
# whose weight has the shape `weight` (out, in, and height and width of a kernel), whose input is `x` and whose result
# is `out`. It returns what is to be added to `out`.
AdapterWalk = Callable[[Any, "Replay", str, Shape, "Array", "Array"], "Array"]


Trainable = Callable[[Mapping[str, Shape]], frozenset[str]]


@dataclass(frozen=True, slots=True)
class NetworkFacts:
    """What kohya's `ss_network_*` metadata say of an adapter: its module, rank ("dim"), alpha and other arguments."""

    module: str
    rank: int
    alpha: float
    args: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OneTrainerNames:
    """How OneTrainer's configs name an adapter: its `peft_type`, and its keys with the fields that they are here.

    `dora_on_outputs` is its default for the axis of DoRA's magnitudes, None without DoRA. `fixed` are fields that are
    always so there, about which `note` and `advice` inform the user.
    """

    peft_type: str
    fields: Mapping[str, str] = field(default_factory=dict)
    dora_on_outputs: bool | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    advice: str = ""


@dataclass(frozen=True, slots=True)
class AdapterSpec:
    """An adapter: what people call it, its settings, and what the rest of the program needs to know of it.

    `files` is how files hold it, by the same label. `kohya` are words in the names of kohya's networks and LyCORIS'
    algorithms that mean it, `onetrainer` is how OneTrainer's configs name it. `factory` names its `AdapterKind`
    (`modules/adapters/protocol.py`) as "module:name", imported inside the training thread. `forms` are the file forms
    it can be written in. `walk` is what the memory estimate counts, `network(settings)` what the file's metadata say.
    `raised` are parts of the names of the weights to which the ratio of LoRA+ applies.

    `trainable(shapes)` returns which factors of a layer in a file this adapter continues to train, from the shapes of
    all but DoRA's magnitudes: `trainable_with` adds these for a run that trains them;
    `settings_as(settings, shapes)` the settings that give a layer the shapes that its factors have there.
    `float8_factors` are the factors whose product the layer's alpha scales, so that they can be written in float8; an
    adapter without any cannot be. `problems(settings, shapes)` yields what is wrong with its settings for layers with
    weights of these shapes.
    """

    label: str
    settings: type[Section]
    files: AdapterType
    factory: str
    kohya: tuple[str, ...] = ()
    onetrainer: OneTrainerNames | None = None
    forms: tuple[FileForm, ...] = ("kohya",)
    supports_dora: bool = False
    raised: tuple[str, ...] = ()
    walk: AdapterWalk | None = None
    network: Callable[[Any], NetworkFacts] | None = None
    trainable: Trainable | None = None
    settings_as: Callable[[Any, Mapping[str, Shape]], Any] | None = None
    float8_factors: frozenset[str] = frozenset()
    problems: Callable[[Any, Collection[Shape]], Iterator[Problem]] | None = None

    @property
    def name(self) -> str:
        """The name in configs, which the settings declare."""
        return str(self.settings.model_fields["name"].default)

    @property
    def help(self) -> str:
        """What it is, in a sentence."""
        return (self.settings.__doc__ or "").strip().splitlines()[0]

    def trainable_with(self, settings: Any) -> Trainable | None:
        """Return which factors of a layer in a file a run with these settings continues to train, from their shapes.

        DoRA's magnitudes belong to the change of a weight: only a run that trains them continues a layer that has them.
        """
        own = self.trainable
        if own is None or not (self.supports_dora and settings.decompose):
            return own

        def trainable(shapes: Mapping[str, Shape]) -> frozenset[str]:
            found = own({name: shape for name, shape in shapes.items() if name != DORA_SCALE})
            return found | ({DORA_SCALE} & shapes.keys()) if found else found

        return trainable

    def rate_ratios(self, settings: Any, names: Collection[str]) -> dict[str, float]:
        """Return the learning rates of an adapter's weights, by name, as ratios where they are not 1 (LoRA+)."""
        ratio = getattr(settings, "lora_plus_ratio", 1.0)
        return {} if ratio == 1.0 else {n: ratio for n in names if any(part in n for part in self.raised)}
