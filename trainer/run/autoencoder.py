"""What a run of the VAE trains: its decoder alone, or all of it. Other parts are not even read."""

from __future__ import annotations

import torch

from modules.config.embedding_facts import trained_parts
from modules.config.method_facts import trains_on_pixels
from modules.config.schema import Config
from modules.families.protocol import ModelFamily

_DECODER = ("decoder.", "post_quant_conv.")


def unread_parts(config: Config) -> tuple[str, ...]:
    """Return the parts whose weights a run does not need: all but the trained ones where it trains on pixels."""
    if not trains_on_pixels(config):
        return ()
    trained = {p.name for p in trained_parts(config)}
    return tuple(p.name for p in config.family.parts if p.name not in trained)


def train_autoencoder(family: ModelFamily, config: Config) -> dict[str, dict[str, torch.nn.Parameter]]:
    """Enable gradients on the trained weights of the VAE, and return them by part and full name."""
    parameters = {}
    for part in trained_parts(config):
        module = family.parts[part.name].module
        named = dict(module.named_parameters())
        if config.training.vae.decoder_only:
            named = {name: p for name, p in named.items() if name.startswith(_DECODER)}
        for parameter in named.values():
            parameter.requires_grad_(True)
        module.train()
        parameters[part.name] = {f"{part.name}.{name}": p for name, p in named.items()}
    return parameters
