"""Builds the training method of a config by its record's factory, and loads the perceptual distance of a VAE's loss."""

from __future__ import annotations

from collections.abc import Callable

from modules.config.schema import Config
from modules.config.sections.training import Training, method_in_use
from modules.diffusion.process import NoiseProcess
from modules.formats.hub_files import Downloads, local_file
from modules.objectives.perceptual import PerceptualDistance, read_perceptual_distance
from modules.objectives.perceptual_files import NEEDED_BY, requests_of
from modules.objectives.spec import OTHER_METHOD
from modules.rewards.composite import CompositeReward
from modules.system.devices import Device
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from modules.system.secrets import hub_access
from modules.system.secrets_file import load_secrets
from trainer.methods.protocol import TrainingMethod


def require_process(training: Training, process: NoiseProcess) -> None:
    """Raise DarkroomError if the method of a training section has no form for a model's noise process."""
    spec, settings = method_in_use(training)
    if sentence := spec.refusal(settings, process.spec):
        raise DarkroomError(sentence, advice=OTHER_METHOD)


def build_method(training: Training, measure: CompositeReward | PerceptualDistance | None) -> TrainingMethod:
    """Return the method of a training section.

    `measure` is what it measures images with in its loss: the reward of a reward method, the perceptual distance of a
    VAE's reconstructions.
    """
    spec, settings = method_in_use(training)
    method: TrainingMethod = load_factory(spec.factory)(settings, training, measure)
    return method


# The perceptual distance in the loss of a VAE's reconstructions: its files, found or downloaded.


def load_perceptual(
    config: Config, device: Device, on_bytes: Callable[[float, float], None] | None
) -> PerceptualDistance:
    """Return the perceptual distance of a config on a device.

    Raises DarkroomError for a file that is missing and cannot be downloaded, or contains something else.
    """
    access = hub_access(load_secrets().secrets)
    downloads = Downloads(config.model.offline, config.model.hub_cache_dir, access, on_bytes)
    vgg, lpips = (local_file(wanted, downloads, needed_by=NEEDED_BY) for wanted in requests_of(config.training.vae))
    return read_perceptual_distance(vgg, lpips, device)
