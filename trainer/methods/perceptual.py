"""The perceptual distance in the loss of a VAE's reconstructions: its files, found or downloaded."""

from __future__ import annotations

from collections.abc import Callable

from modules.config.schema import Config
from modules.formats.hub_files import Downloads, local_file
from modules.objectives.perceptual import PerceptualDistance, read_perceptual_distance
from modules.objectives.perceptual_files import NEEDED_BY, wanted_of
from modules.system.devices import Device
from modules.system.secrets import hub_access
from modules.system.secrets_file import load_secrets


def load_perceptual(
    config: Config, device: Device, on_bytes: Callable[[float, float], None] | None
) -> PerceptualDistance:
    """Return the perceptual distance of a config on a device.

    Raises DarkroomError for a file that is missing and cannot be downloaded, or contains something else.
    """
    access = hub_access(load_secrets().secrets)
    downloads = Downloads(config.model.offline, config.model.hub_cache_dir, access, on_bytes)
    vgg, lpips = (local_file(wanted, downloads, needed_by=NEEDED_BY) for wanted in wanted_of(config.training.vae))
    return read_perceptual_distance(vgg, lpips, device)
