"""The files on a machine are matched to the parts that the file of a denoiser lacks, by the checks before a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from modules.config.schema import Config
from modules.families.registry import FAMILIES, published_model
from modules.system.factories import load_factory
from tests.unit.test_kinds import write_header
from trainer.preflight.part_files import fitting_files


def part_file(path: Path, model: str, name: str) -> Path:
    """Write the header of a part of a published model, under diffusers' or transformers' names."""
    record = published_model(model)
    part = next(p for p in FAMILIES[record.family].parts if p.name == name)
    kind: Any = load_factory(part.model_class)
    config = record.shipped_configs()[name]
    with torch.device("meta"):
        module = kind.from_config(config) if hasattr(kind, "from_config") else kind(kind.config_class(**config))
    shapes = {n: tuple(tensor.shape) for n, tensor in module.state_dict().items()}
    return write_header(path, shapes, dtype="BF16")


def test_each_part_gets_the_files_that_fit(tmp_path: Path) -> None:
    transformer = part_file(tmp_path / "flux.safetensors", "flux_dev", "transformer")
    clip = part_file(tmp_path / "clip_l.safetensors", "flux_dev", "text_encoder")
    t5 = part_file(tmp_path / "t5.safetensors", "flux_dev", "text_encoder_2")
    vae = part_file(tmp_path / "ae.safetensors", "flux_dev", "vae")
    others = [
        part_file(tmp_path / "sdxl_vae.safetensors", "sdxl", "vae"),
        part_file(tmp_path / "clip_g.safetensors", "sdxl", "text_encoder_2"),
        tmp_path / "gone.safetensors",
    ]
    config = Config.model_validate({"model": {"family": "flux", "base_model": str(transformer)}})
    files = [*others, t5, clip, vae]
    assert fitting_files(config, files) == {"text_encoder": [clip], "text_encoder_2": [t5], "vae": [vae]}
    assert fitting_files(config, [vae]) == {"text_encoder": [], "text_encoder_2": [], "vae": [vae]}
