"""The settings of a self-test: those that are known to work, the config with some of them, and a run on one image."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

from modules.adapters.registry import DEFAULT_ADAPTER
from modules.config.schema import Config
from modules.config.sections.evaluation import SamplePrompt
from modules.config.sections.loss import Loss
from modules.config.sections.model import Part
from modules.config.sections.noise import Noise
from modules.config.sections.training import Ema, Training
from modules.config.usage import trained_parts
from modules.data.concept import Concept
from modules.data.image_settings import CONDITIONING_FOLDERS
from modules.optim.registry import DEFAULT_OPTIMIZER, OPTIMIZERS
from modules.optim.schedule_registry import DEFAULT_SCHEDULE
from modules.settings.edit import replace_value
from modules.settings.every import Every
from modules.settings.shared_types import side_of
from modules.system.paths import from_root

KNOWN_RATE = 5e-4
"""Of AdamW for a LoRA: more than usual, as it has to show within a minute."""
_KNOWN_RATE_OF_FINE_TUNES = 2e-5


def groups(config: Config) -> Iterator[tuple[str, Callable[[Config], Config], str]]:
    """Yield groups of settings: the name, what replaces them by known ones, and the sentence if they are wrong."""
    rate, known, clipped = _oddest_rate(config), _known_rate(config), config.training.clip_grad_norm
    optimizer = OPTIMIZERS[config.training.optimizer.name].label
    yield (
        "the learning rate",
        _with_known_rate,
        f"the learning rate is too {'high' if rate > known else 'low'}. It is {rate:g}, and with {known:g} the model "
        "learns"
        if rate != known
        else "the learning rate scaler. Without it the model learns",
    )
    yield (
        "the gradient clipping",
        _with_known_clipping,
        f"gradients are {'not clipped' if clipped is None else f'clipped at {clipped:g}'}. With the default of "
        f"{Training.with_defaults().clip_grad_norm:g} the model learns",
    )
    yield (
        "the optimizer",
        _with_known_optimizer,
        f"the optimizer or its settings. It is {optimizer}, and with the defaults of {DEFAULT_OPTIMIZER.label} and a "
        f"learning rate of {known:g} the model learns",
    )
    yield (
        "the noise and the loss",
        _with_known_noise,
        "the noise, the timestep distribution or the loss. With their defaults the model learns",
    )
    yield (
        "what is trained",
        _with_known_targets,
        f"what is trained: the layers, the parts or the adapter. With {DEFAULT_ADAPTER.label} on the "
        f"{config.family.denoiser.label} the model learns",
    )


def with_known_settings(config: Config) -> Config:
    """Return the config with settings that train any working model; what decides memory and precision stays."""
    config = _with_known_noise(_with_known_targets(config))
    return replace_value(_with_known_optimizer(config), "sampling.model", "")


def _known_rate(config: Config) -> float:
    return KNOWN_RATE if config.training.trains == "adapter" else _KNOWN_RATE_OF_FINE_TUNES


def _oddest_rate(config: Config) -> float:
    """Return the learning rate of a trained part that is farthest from the known one."""
    general, known = config.training.learning_rate, _known_rate(config)
    of_parts = [config.part(part.name).learning_rate for part in trained_parts(config)] or [None]
    rates = [general if rate is None else rate for rate in of_parts]
    return max(rates, key=lambda rate: abs(math.log(max(rate, 1e-30) / known)))


def _with_known_rate(config: Config) -> Config:
    config = replace_value(config, "training.learning_rate", _known_rate(config))
    config = replace_value(config, "training.learning_rate_scaler", Training.with_defaults().learning_rate_scaler)
    for part in config.family_parts:
        config = replace_value(config, f"parts.{part.name}.learning_rate", None)
    return config


def _with_known_clipping(config: Config) -> Config:
    return replace_value(config, "training.clip_grad_norm", Training.with_defaults().clip_grad_norm)


def _with_known_optimizer(config: Config) -> Config:
    config = replace_value(config, "training.optimizer", DEFAULT_OPTIMIZER.settings.with_defaults())
    return _with_known_rate(_with_known_clipping(config))


def _with_known_noise(config: Config) -> Config:
    config = replace_value(config, "training.noise", Noise.with_defaults())
    return replace_value(config, "training.loss", Loss.with_defaults())


def _with_known_targets(config: Config) -> Config:
    config = replace_value(config, "training.trains", "adapter")
    config = replace_value(config, "training.layer_filter", Training.with_defaults().layer_filter)
    config = replace_value(config, "adapter", DEFAULT_ADAPTER.settings.with_defaults())
    no_stop = Part.with_defaults().stop_after
    for part in config.family_parts:
        changes = {"train": part.role == "denoiser", "stop_after": no_stop}
        config = replace_value(config, f"parts.{part.name}", config.part(part.name).model_copy(update=changes))
    return config


def side_px_of(config: Config) -> int:
    """Return the side of samples, in pixels; of several resolutions the first is tested."""
    return max(64, side_of(config.data.resolution_px[0]) // 64 * 64)


def _reference_folders(config: Config, image: Path) -> dict[str, str]:
    """Return where the concept that has the image has its reference images or depth maps, by setting."""
    for concept in config.concepts:
        if (folder := from_root(concept.path)) in image.parents:
            given = {name: str(getattr(concept.image, name)).strip() for name in CONDITIONING_FOLDERS}
            return {n: str(from_root(f) / image.parent.relative_to(folder)) for n, f in given.items() if f}
    return {}


def on_one_image(
    config: Config, image: Path, caption: str, *, workspace: Path, num_steps: int, num_timesteps: int
) -> Config:
    """Return the config as a run of some steps on the image, which is measured before and after."""
    side = side_px_of(config)
    concept = Concept(name="the image", path=str(image), caption_source="fixed_text", fixed_caption=caption)
    changes = concept.image.model_copy(update=_reference_folders(config, image))
    concept = concept.model_copy(update={"image": changes})
    for path, value in (
        ("general.workspace_dir", str(workspace)),
        ("general.tensorboard", False),
        ("general.only_cache", False),
        ("data.resolution_px", config.data.resolution_px[:1]),
        ("concepts_file", ""),
        ("concepts", (concept, concept.model_copy(update={"name": "again", "kind": "validation"}))),
        ("masks.enabled", False),
        ("training.method", Training.with_defaults().method),
        ("training.schedule", DEFAULT_SCHEDULE.settings.with_defaults()),
        ("training.epochs", num_steps),
        ("training.batch_size", 1),
        ("training.accumulation_steps", 1),
        ("training.ema", Ema.with_defaults()),
        ("validation.every", Every(n=num_steps, unit="step")),
        ("validation.num_timesteps", num_timesteps),
        ("validation.keep_best", False),
        ("validation.early_stopping_patience", 0),
        ("sampling.every", Every()),
        ("sampling.at_start", True),
        ("sampling.at_end", True),
        ("sampling.model", ""),
        ("sampling.prompts_file", ""),
        ("sampling.prompts", (SamplePrompt(prompt=caption, width_px=side, height_px=side),)),
        ("backup.every", Every()),
        ("backup.save_every", Every()),
        ("backup.at_end", False),
        ("output.destination", str(workspace / "self_test.safetensors")),
        ("multi_gpu.enabled", False),
    ):
        config = replace_value(config, path, value)
    return config
