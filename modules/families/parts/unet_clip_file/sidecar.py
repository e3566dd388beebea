"""The .yaml next to a checkpoint, from which A1111 and Forge read a model's architecture and prediction type.

SD 1 and SD 2 files have no marker for these, and A1111 1.10.1 does not read SDXL's: without this file it treats a
checkpoint as an epsilon model. Each model's text is a template in its family's folder: the keys are
those that LDM's `instantiate_from_config` reads, for SDXL those of Stability's generative-models 0.1 (MIT), which A1111
1.10.1 includes. Sizes come from the parts' configs, except for text encoders, whose classes fix them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from modules.families.parts.single_file.record import Configs

_INPAINTING_CHANNELS = 9


@dataclass(frozen=True, slots=True)
class Sidecar:
    """The sidecar of a model: its template, and whether a file with epsilon prediction needs it, too."""

    template: Path
    is_always_needed: bool = False

    def __call__(self, configs: Configs, prediction: str) -> str:
        """Return the text of a model with these configs of its parts; empty for a model that needs none."""
        if prediction != "v_prediction" and not self.is_always_needed:
            return ""
        inpaints = configs["unet"]["in_channels"] == _INPAINTING_CHANNELS
        scheduler = configs["scheduler"]
        values = {
            "parameterization": "v" if prediction == "v_prediction" else "eps",
            "diffusion": "LatentInpaintDiffusion" if inpaints else "LatentDiffusion",
            "conditioning": "hybrid" if inpaints else "crossattn",
            "beta_start": scheduler["beta_start"],
            "beta_end": scheduler["beta_end"],
            "num_timesteps": scheduler["num_train_timesteps"],
            **_unet(configs["unet"]),
            **_vae(configs["vae"]),
        }
        return Template(self.template.read_text(encoding="utf-8")).substitute(values)


def _unet(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes of a UNet as `UNetModel` has them."""
    widths, types = list(config["block_out_channels"]), config["down_block_types"]
    heads, context = config["attention_head_dim"], config["cross_attention_dim"]
    depth = config.get("transformer_layers_per_block", 1)
    has_list = isinstance(heads, list | tuple)
    head_channels = widths[0] // (heads[0] if has_list else heads)
    linear = f"num_head_channels: {head_channels}\n        use_linear_in_transformer: true"
    is_deep = isinstance(depth, list | tuple)
    return {
        "sample_size": config["sample_size"],
        "in_channels": config["in_channels"],
        "out_channels": config["out_channels"],
        "model_channels": widths[0],
        "attention_resolutions": [2**i for i, _ in enumerate(widths) if types[i].startswith("CrossAttn")][::-1],
        "num_res_blocks": config["layers_per_block"],
        "channel_mult": [width // widths[0] for width in widths],
        "context_dim": context,
        "contexts": context if is_deep else [context] * depth,
        "depth": list(depth) if is_deep else depth,
        "heads": linear if has_list else f"num_heads: {heads}",
        "num_head_channels": head_channels,
        "adm_in_channels": config.get("projection_class_embeddings_input_dim"),
        "size_dim": config.get("addition_time_embed_dim"),
    }


def _vae(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes of a VAE as `AutoencoderKL` has them."""
    widths = list(config["block_out_channels"])
    return {
        "scale_factor": config["scaling_factor"],
        "latent_channels": config["latent_channels"],
        "vae_in_channels": config["in_channels"],
        "vae_out_channels": config["out_channels"],
        "vae_channels": widths[0],
        "vae_channel_mult": [width // widths[0] for width in widths],
        "vae_num_res_blocks": config["layers_per_block"],
    }
