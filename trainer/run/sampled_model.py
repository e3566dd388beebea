"""The model that samples are generated with: without the training adapter, or with a sampling model's denoiser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from modules.adapters.training_adapter import TrainingAdapter, read_training_adapter
from modules.config.quantized_parts import QuantizedParts, part_source
from modules.config.sampled_model import config_of_samples
from modules.config.schema import Config
from modules.config.usage import uses_denoiser
from modules.families.protocol import ModelFamily
from modules.memory.other_weights import OtherWeights
from modules.memory.placement import Placement
from modules.system.paths import from_root
from trainer import phases
from trainer.callbacks.image_sampler import SampledModel

Load = Callable[[Config, QuantizedParts], ModelFamily]
_ADAPTER, _MODEL = "training adapter", "sampling model"


def merge_training_adapter(config: Config, family: ModelFamily) -> TrainingAdapter | None:
    """Merge the training adapter of a run into a model's denoiser, before it is quantized; None without one.

    Raises DarkroomError for a file that cannot be one of this model.
    """
    name = config.model.training_adapter.strip()
    if not name or not uses_denoiser(config):
        return None
    path, denoiser = from_root(name), family.spec.denoiser.name
    layers = read_training_adapter(path, family.lora_naming.targets, denoiser)
    return TrainingAdapter(path.name, family.parts[denoiser].module, layers)


@dataclass(frozen=True, eq=False)
class SamplingModel:
    """The denoiser of a sampling model: the family that it was loaded with, and its weights."""

    family: ModelFamily
    weights: OtherWeights


def load_sampling_model(
    config: Config, base: ModelFamily, quantized: QuantizedParts, load: Load
) -> SamplingModel | None:
    """Load the denoiser of a run's sampling model with the dtypes and formats of the base model; None without one.

    `load(config, quantized)` loads the denoiser alone. Raises DarkroomError for a model of another architecture.
    """
    if not config.sampling.model.strip() or not uses_denoiser(config):
        return None
    sampled, denoiser = config_of_samples(config), base.spec.denoiser.name
    files = {**quantized.files, denoiser: part_source(sampled, base.spec.denoiser)}
    family = load(sampled, replace(quantized, files=files))
    own, other = (f.parts[denoiser].module for f in (base, family))
    zeros = () if base.spec.distilled is None else base.spec.distilled.lacks
    return SamplingModel(family, OtherWeights(own, other, name=config.sampling.model.strip(), zeros=zeros))


def place_sampled_model(
    family: ModelFamily, placement: Placement, adapter: TrainingAdapter | None, other: SamplingModel | None
) -> tuple[SampledModel | None, SampledModel | None]:
    """Place the weights that samples need besides the model; return the model of samples, and the one of measurements.

    Both lack the training adapter; measurements use the base model's own weights. None if nothing differs from the
    model in training.
    """
    measured = None
    if adapter is not None:
        in_training = (phases.TRAIN, phases.VALIDATE) if adapter.is_added_in_training else ()
        placement.add(_ADAPTER, adapter.weights, phases=(phases.SAMPLE_DENOISE, *in_training))
        measured = SampledModel(family, partial(adapter.used_for, "sampling"))
    if other is None:
        return measured, measured
    placement.add(_MODEL, other.weights.other, phases=())
    return SampledModel(other.family, partial(_with_other_weights, family, placement, adapter, other)), measured


@contextmanager
def _with_other_weights(
    family: ModelFamily, placement: Placement, adapter: TrainingAdapter | None, other: SamplingModel
) -> Iterator[None]:
    with placement.exchanged(family.spec.denoiser.name, other.weights.exchange):
        if adapter is None:
            yield
        else:
            with adapter.used_for("other weights"):
                yield
