"""The .yaml beside an SD 1 or SD 2 checkpoint, from which A1111 and Forge read its architecture and prediction type.

SD 1 and SD 2 files have no marker for these (formats.md 5.5 in short). The keys are those that LDM's
`instantiate_from_config` reads; sizes come from the parts' configs. Torch-free.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.families.parts.single_file.record import Configs
from modules.families.parts.single_file.yaml_text import Tree, yaml_text

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
    scheduler = configs["scheduler"]
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
        "conditioning_key": "crossattn",
        "monitor": "val/loss_simple_ema",
        "scale_factor": configs["vae"]["scaling_factor"],
        "use_ema": False,
        "unet_config": {"target": _UNET, "params": _unet(configs["unet"])},
        "first_stage_config": {"target": "ldm.models.autoencoder.AutoencoderKL", "params": _vae(configs["vae"])},
        "cond_stage_config": text_encoder,
    }
    tree = {"model": {"target": "ldm.models.diffusion.ddpm.LatentDiffusion", "params": parameters}}
    return yaml_text(tree)


def _unet(config: Mapping[str, Any]) -> Tree:
    widths = list(config["block_out_channels"])
    levels = range(len(widths))
    heads = config["attention_head_dim"]
    tree: Tree = {
        "use_checkpoint": True,
        "use_fp16": True,
        "image_size": 32,
        "in_channels": config["in_channels"],
        "out_channels": config["out_channels"],
        "model_channels": widths[0],
        "attention_resolutions": [2**i for i in levels if config["down_block_types"][i].startswith("CrossAttn")][::-1],
        "num_res_blocks": config["layers_per_block"],
        "channel_mult": [w // widths[0] for w in widths],
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


def _vae(config: Mapping[str, Any]) -> Tree:
    widths = list(config["block_out_channels"])
    return {
        "embed_dim": config["latent_channels"],
        "monitor": "val/rec_loss",
        "ddconfig": {
            "double_z": True,
            "z_channels": config["latent_channels"],
            "resolution": 256,
            "in_channels": config["in_channels"],
            "out_ch": config["out_channels"],
            "ch": widths[0],
            "ch_mult": [w // widths[0] for w in widths],
            "num_res_blocks": config["layers_per_block"],
            "attn_resolutions": [],
            "dropout": 0.0,
        },
        "lossconfig": {"target": "torch.nn.Identity"},
    }
