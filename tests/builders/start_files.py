"""Runs that start from an adapter file which has more than the run trains."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from modules.config.schema import Config
from modules.families.protocol import ModelFamily
from tests.builders.adapter_files import Filled, places
from tests.builders.configs import USUAL_LAYERS, laid_over, small_config
from tests.builders.runs import Ran, run
from trainer.events import RunFailed, ValidationFinished, WarningRaised
from trainer.preflight import check

TEXT = ("text_encoder", "text_encoder_2")
UNET_ONLY: dict[str, Any] = {"parts": {name: {"train": False} for name in TEXT}}
FEED_FORWARD = ("unet", "mid_block.attentions.0.transformer_blocks.0.ff.net.0.proj")


def config_of_start(model: Path, images: Path, folder: Path) -> Config:
    """Return the config of a run that validates before its first step and writes float32."""
    return laid_over(
        small_config(folder, model=model, images=images),
        {
            "training": {"epochs": 1, "learning_rate": 0.02},
            "adapter": {"rank": 4, "alpha": 4.0, **USUAL_LAYERS},
            "validation": {"every": {"n": 1, "unit": "epoch"}},
            "concepts": [{"path": str(images)}, {"path": str(images), "kind": "validation"}],
            "output": {"dtype": "float32"},
        },
    )


def starting(config: Config, file: Path, **changes: Any) -> Config:
    """Return the config of a run that starts from a file, with changes laid over it."""
    adapter = {"start_from": str(file), **changes.pop("adapter", {})}
    return laid_over(config, {"adapter": adapter, **changes})


def first_loss(config: Config) -> float:
    """Return the loss of a run before its first step."""
    ran = run(config)
    assert ran.finished.outcome == "finished"
    loss = ran.of(ValidationFinished)[0].loss
    assert loss is not None
    return loss


def result(ran: Ran) -> dict[str, torch.Tensor]:
    """The tensors of a run's result, read now: another run of the same config replaces it."""
    return {name: tensor.clone() for name, tensor in load_file(ran.finished.model_path).items()}


def notes(ran: Ran) -> list[str]:
    """Return the notes of a run about what it does not train of its start file."""
    return [w.message for w in ran.of(WarningRaised) if "that this run does not train" in w.message]


def infos(config: Config) -> dict[str, str]:
    """Return preflight's notes about the adapter by setting; there must be no errors."""
    report = check(config)
    assert not report.errors
    return {p.path: p.message for p in report.problems if p.severity == "info" and p.path.startswith("adapter.")}


def failure(config: Config) -> tuple[str, str]:
    """Return the message and the advice of a run that fails."""
    ending = run(config).ending
    assert isinstance(ending, RunFailed)
    return ending.message, ending.advice


def is_text(name: str) -> bool:
    """Return whether a tensor of a kohya file is of a text encoder."""
    return name.startswith("lora_te")


def norms_and_more(family: ModelFamily, filled: Filled) -> Mapping[str, torch.Tensor]:
    """What LyCORIS also writes: norms, biases, a LoHa layer in the same file, and a bundled embedding."""
    tensors: dict[str, torch.Tensor] = {}
    for part, path in places(family, nn.LayerNorm, nn.GroupNorm):
        if part != "unet":
            continue
        width = family.parts[part].module.get_submodule(path).weight.shape[0]  # type: ignore[union-attr]
        name = family.lora_naming.kohya_name(part, path)
        tensors |= {f"{name}.w_norm": filled(width), f"{name}.b_norm": filled(width)}
    tensors["bundle_emb.disc.string_to_param.*"] = filled(2, 24)
    return tensors


def with_a_loha(family: ModelFamily, filled: Filled) -> Mapping[str, torch.Tensor]:
    """A LoHa on the first feed-forward layer of the UNet, as in LyCORIS files of several kinds."""
    part, path = FEED_FORWARD
    weight = family.parts[part].module.get_submodule(path).weight
    assert isinstance(weight, torch.Tensor)
    rows, columns = weight.shape
    name = family.lora_naming.kohya_name(part, path)
    sizes = {"hada_w1_a": (rows, 2), "hada_w1_b": (2, columns), "hada_w2_a": (rows, 2), "hada_w2_b": (2, columns)}
    return {f"{name}.{factor}": filled(*size) * 5 for factor, size in sizes.items()}
