"""The .yaml next to an SD 1 or SD 2 checkpoint, from which A1111 and Forge read its architecture and prediction type.

SD 1 and SD 2 files have no marker for these (formats.md 5.5 in short). The keys are those that LDM's
`instantiate_from_config` reads; sizes come from the parts' configs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.families.parts.single_file.record import Configs
from modules.families.parts.single_file.sidecar_trees import unet_sizes, vae_tree
from modules.families.parts.single_file.yaml_text import Tree, yaml_text

_INPAINTING_CHANNELS = 9
_UNET = "ldm.modules.diffusionmodules.openaimodel.UNetModel"
_CLIP: Tree = {"target": "ldm.modules.encoders.modules.FrozenCLIPEmbedder"}
_OPEN_CLIP: Tree = {
    "target": "ldm.modules.encoders.modules.FrozenOpenCLIPEmbedder",
    "params": {"freeze": True, "layer": "penultimate"},
}


def first_sidecar(configs: Configs, prediction: str) -> str:
    """Return the sidecar of an SD 1 model: only v-prediction needs one."""
    return sidecar_text(configs, prediction, _CLIP) if prediction == "v_prediction" else ""


def second_sidecar(configs: Configs, prediction: str) -> str:
    """Return the sidecar of an SD 2 model, which always needs it."""
    return sidecar_text(configs, prediction, _OPEN_CLIP)


def sidecar_text(configs: Configs, prediction: str, text_encoder: Tree) -> str:
    """Return the sidecar's text; `text_encoder` is LDM's class with its parameters."""
    scheduler, inpaints = configs["scheduler"], configs["unet"]["in_channels"] == _INPAINTING_CHANNELS
    parameters: Tree = {
        "parameterization": "v" if prediction == "v_prediction" else "eps",
        "linear_start": scheduler["beta_start"],
        "linear_end": scheduler["beta_end"],
        "num_timesteps_cond": 1,
        "timesteps": scheduler["num_train_timesteps"],
        "first_stage_key": "jpg",
        "cond_stage_key": "txt",
        "image_size": configs["unet"]["sample_size"],
        "channels": configs["vae"]["latent_channels"],
        "cond_stage_trainable": False,
        "conditioning_key": "hybrid" if inpaints else "crossattn",
        "monitor": "val/loss_simple_ema",
        "scale_factor": configs["vae"]["scaling_factor"],
        "use_ema": False,
        "unet_config": {"target": _UNET, "params": _unet(configs["unet"])},
        "first_stage_config": {"target": "ldm.models.autoencoder.AutoencoderKL", "params": vae_tree(configs["vae"])},
        "cond_stage_config": text_encoder,
    }
    name = "LatentInpaintDiffusion" if inpaints else "LatentDiffusion"
    return yaml_text({"model": {"target": f"ldm.models.diffusion.ddpm.{name}", "params": parameters}})


def _unet(config: Mapping[str, Any]) -> Tree:
    widths = list(config["block_out_channels"])
    heads = config["attention_head_dim"]
    tree: Tree = {
        "use_checkpoint": True,
        "use_fp16": True,
        "image_size": 32,
        **unet_sizes(config),
        "use_spatial_transformer": True,
        "transformer_depth": 1,
        "context_dim": config["cross_attention_dim"],
        "legacy": False,
    }
    if isinstance(heads, list | tuple):
        tree |= {"num_head_channels": widths[0] // heads[0], "use_linear_in_transformer": True}
    else:
        tree["num_heads"] = heads
    return tree
