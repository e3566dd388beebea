"""Helpers of the preflight tests: model files as the check reads them, edits of a config, and the reported fields."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from modules.config.schema import Config
from modules.settings.edit import set_path
from trainer.preflight import Report

Break = Callable[[Config, Path], Config]
EMPTY_WEIGHTS = (2).to_bytes(8, "little") + b"{}"  # a header without a tensor


def write_model(folder: Path, **index: Any) -> Path:
    """Write the files of a diffusers model that the check reads."""
    folder.mkdir(parents=True)
    (folder / "model_index.json").write_text(json.dumps({"_class_name": "StableDiffusionPipeline", **index}))
    for part in ("unet", "vae", "text_encoder"):
        write_part(folder / part)
    return folder


def write_part(folder: Path) -> None:
    """Write a part of a model without a tensor in it."""
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    name = "model" if "text_encoder" in folder.name else "diffusion_pytorch_model"
    (folder / f"{name}.safetensors").write_bytes(EMPTY_WEIGHTS)


def write_sdxl(folder: Path, **scheduler: Any) -> Path:
    """Write the files of an SDXL model that the check reads."""
    write_model(folder, _class_name="StableDiffusionXLPipeline")
    write_part(folder / "text_encoder_2")
    (folder / "scheduler").mkdir()
    (folder / "scheduler" / "scheduler_config.json").write_text(json.dumps(scheduler))
    return folder


def changed(config: Config, **changes: Any) -> Config:
    """Return the config with edits; a dot of a path is written as two underscores."""
    for path, value in changes.items():
        config, problems = set_path(config, path.replace("__", "."), value)
        assert problems == []
    return config


def errors(report: Report) -> list[str]:
    """Return the fields of the errors."""
    return [p.path for p in report.errors]


def reported(report: Report) -> list[tuple[str, str]]:
    """Return the fields of all problems, with their severity."""
    return [(p.path, p.severity) for p in report.problems]


def at_output(name: str) -> Break:
    """Set the result to a name in the test's folder."""
    return lambda config, tmp: changed(config, output__destination=str(tmp / name))


def base_model(name: str) -> Break:
    """Set another base model; TMP is the test's folder."""
    return lambda config, tmp: changed(config, model__base_model=name.replace("TMP", str(tmp)))


def concept(**changes: Any) -> Break:
    """Change the first concept; TMP is the test's folder."""

    def apply(config: Config, tmp: Path) -> Config:
        changes_here = {k: v.replace("TMP", str(tmp)) if isinstance(v, str) else v for k, v in changes.items()}
        return changed(config, **{f"concepts__0__{k}": v for k, v in changes_here.items()})

    return apply
