"""The parts of a checkpoint's .yaml that every family's has: sizes of the UNet, and the VAE. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.families.parts.single_file.yaml_text import Tree


def unet_sizes(config: Mapping[str, Any]) -> Tree:
    """Return the channels and levels of a UNet as `UNetModel` takes them."""
    widths, types = list(config["block_out_channels"]), config["down_block_types"]
    return {
        "in_channels": config["in_channels"],
        "out_channels": config["out_channels"],
        "model_channels": widths[0],
        "attention_resolutions": [2**i for i, _ in enumerate(widths) if types[i].startswith("CrossAttn")][::-1],
        "num_res_blocks": config["layers_per_block"],
        "channel_mult": [width // widths[0] for width in widths],
    }


def vae_tree(config: Mapping[str, Any], **more: Any) -> Tree:
    """Return the parameters of `AutoencoderKL`; `more` are those of its encoder and decoder beyond the sizes."""
    widths = list(config["block_out_channels"])
    return {
        "embed_dim": config["latent_channels"],
        "monitor": "val/rec_loss",
        "ddconfig": {
            **more,
            "double_z": True,
            "z_channels": config["latent_channels"],
            "resolution": 256,
            "in_channels": config["in_channels"],
            "out_ch": config["out_channels"],
            "ch": widths[0],
            "ch_mult": [width // widths[0] for width in widths],
            "num_res_blocks": config["layers_per_block"],
            "attn_resolutions": [],
            "dropout": 0.0,
        },
        "lossconfig": {"target": "torch.nn.Identity"},
    }
