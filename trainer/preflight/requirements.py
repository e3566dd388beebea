"""Packages and tools that the optimizer, attention and compiling need.

Only what is missing for certain is reported: torch is not imported.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterator

from modules.config.schema import Config
from modules.config.sections.training import SIXTEEN_BITS
from modules.config.usage import scorers_of
from modules.families.attention import ATTENTIONS, usable_attentions
from modules.optim.registry import optimizer_spec
from modules.rewards.registry import REWARDS
from modules.system import hardware
from modules.system.factories import Package
from modules.system.problem import Problem

_KINDS = {kind for spec in ATTENTIONS.values() for kind in spec.devices}
_COMPILERS = ("cl",) if sys.platform == "win32" else ("c++", "g++", "clang++")


def problems_of_speed(config: Config) -> Iterator[Problem]:
    """Yield an attention that does not run on the training device, and a missing compiler."""
    kind = hardware.here().kind_of(config.general.train_device)
    yield from _attention(config, kind)
    yield from _compiler(config, kind)


def _attention(config: Config, kind: str) -> Iterator[Problem]:
    """Yield an error for an attention that the model, device, dtype or packages do not support; it names those that do.

    A family whose denoiser chooses no attention has PyTorch's alone.
    """
    spec, is_16_bit, is_masked = ATTENTIONS[config.training.attention], _is_16_bit(config), _is_masked(config)
    model = config.family.denoiser.model
    missing = [package for package in spec.packages if not package.is_installed]
    if spec.kernel and (not model.attention or (model.has_backends and not spec.backend)):
        why = f"is not supported for {config.family.label}"
    elif missing:
        why = f"needs the package {missing[0].name}, which is not installed"
    elif kind in _KINDS and kind not in spec.devices:  # a device that does not exist is reported by its own check
        why = f"does not train on this device ({kind})"
    elif kind == "cuda" and spec.needs_16_bit and not is_16_bit:
        why = f"computes in bfloat16 or float16 only, and the precision is {config.training.precision}"
    elif is_masked and not spec.takes_mask:
        why = f"cannot leave out the padding of shorter prompts, as {config.family.label} needs"
    elif spec.packages and model.has_backends and config.general.deterministic:
        why = f"is not deterministic for {config.family.label}, and deterministic mode is on"
    else:
        return
    usable = ", ".join(ATTENTIONS[name].label for name in attentions_that_work(config, kind))
    message, advice = f"The attention {spec.label} {why}.", f"Choose another attention: {usable}."
    yield Problem("training.attention", message, advice=advice, remedy="attention" if usable else "")


def attentions_that_work(config: Config, kind: str) -> list[str]:
    """Return the names of the attentions that a config can use on a type of device, the best choice first."""
    model = config.family.denoiser.model
    names = usable_attentions(
        kind or "cuda", is_16_bit=_is_16_bit(config), is_masked=_is_masked(config), has_backends=model.has_backends
    )
    if not model.attention:
        names = [name for name in names if not ATTENTIONS[name].kernel]
    # diffusers does not ask the packages for their deterministic backward passes.
    asks_none = model.has_backends and config.general.deterministic
    return [name for name in names if not (asks_none and ATTENTIONS[name].packages)]


def _is_16_bit(config: Config) -> bool:
    denoisers = (p for p in config.family.parts if p.role == "denoiser")
    return config.training.precision in SIXTEEN_BITS or any(
        config.part(p.name).dtype in SIXTEEN_BITS for p in denoisers
    )


def _is_masked(config: Config) -> bool:
    return config.family.denoiser.model.masks_padding


def _compiler(config: Config, kind: str) -> Iterator[Problem]:
    """Yield a warning if the model is to be compiled and what compiles it is missing."""
    if config.model.compile != "on":
        return
    if kind == "cuda" and importlib.util.find_spec("triton") is None:
        missing, install = "Triton", "Install the package triton (on Windows triton-windows)"
    elif kind == "cpu" and not any(shutil.which(name) for name in _COMPILERS):
        missing, install = "a C++ compiler", "Install one, such as g++"
    else:
        return
    yield Problem(
        "model.compile",
        f"Compiling the model needs {missing}, which was not found: the run will continue without compiling.",
        "warning",
        f"{install}, or switch off Compile the model.",
    )


def problems_of_packages(config: Config) -> Iterator[Problem]:
    """Yield settings of the optimizer whose package is missing. No package is imported."""
    spec = optimizer_spec(config.training.optimizer)
    for package in spec.packages_of(config.training.optimizer):
        if not package.is_installed:
            yield Problem(
                "training.optimizer",
                f"The optimizer {spec.label} needs the package {package.name}, which is not installed.",
                advice=f"{package.install}, or choose another optimizer.",
                remedy="packages" if package.is_offered else "",
            )


def offered_packages(config: Config) -> tuple[Package, ...]:
    """Return the packages that the choices of a config need and that the program can install."""
    scorers = scorers_of(config)
    packages = list(optimizer_spec(config.training.optimizer).packages_of(config.training.optimizer))
    for scorer in scorers.all if scorers is not None else ():
        packages += REWARDS[scorer.kind].packages
    return tuple(dict.fromkeys(package for package in packages if package.is_offered))


def missing_packages(config: Config) -> tuple[str, ...]:
    """Return the packages that the choices of a config lack and that the program can install, by their pip names."""
    return tuple(package.pip_name for package in offered_packages(config) if not package.is_installed)
