"""The .yaml next to an SDXL checkpoint with v-prediction, from which A1111 1.10.1 and Forge build the model.

A1111 1.10.1 does not read the tensor `v_pred`: without this file it takes the checkpoint for epsilon. The classes and
keys are those of Stability's generative-models, release 0.1 (MIT), which A1111 1.10.1 includes; sizes come from the
parts' configs, except those of the text encoders, which the classes fix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.families.parts.single_file.record import Configs
from modules.families.parts.single_file.sidecar_trees import unet_sizes, vae_tree
from modules.families.parts.single_file.yaml_text import Tree, yaml_text

_SGM = "sgm.modules"
_DIFFUSION = f"{_SGM}.diffusionmodules"
_CLIP_L: Tree = {
    "is_trainable": False,
    "input_key": "txt",
    "target": f"{_SGM}.encoders.modules.FrozenCLIPEmbedder",
    "params": {"layer": "hidden", "layer_idx": 11},
}
_CLIP_G: Tree = {
    "is_trainable": False,
    "input_key": "txt",
    "target": f"{_SGM}.encoders.modules.FrozenOpenCLIPEmbedder2",
    "params": {
        "arch": "ViT-bigG-14",
        "version": "laion2b_s39b_b160k",
        "freeze": True,
        "layer": "penultimate",
        "always_return_pooled": True,
        "legacy": False,
    },
}


def base_sidecar(configs: Configs, prediction: str) -> str:
    """Return the sidecar of an SDXL base model: only v-prediction needs one."""
    keys = ("original_size_as_tuple", "crop_coords_top_left", "target_size_as_tuple")
    return _text(configs, [_CLIP_L, _CLIP_G], keys) if prediction == "v_prediction" else ""


def refiner_sidecar(configs: Configs, prediction: str) -> str:
    """Return the sidecar of an SDXL refiner, which has one text encoder and reads an aesthetic score."""
    keys = ("original_size_as_tuple", "crop_coords_top_left", "aesthetic_score")
    return _text(configs, [_CLIP_G], keys) if prediction == "v_prediction" else ""


def _text(configs: Configs, text: list[Tree], keys: tuple[str, ...]) -> str:
    unet = configs["unet"]
    sizes = [
        {
            "is_trainable": False,
            "input_key": key,
            "target": f"{_SGM}.encoders.modules.ConcatTimestepEmbedderND",
            "params": {"outdim": unet["addition_time_embed_dim"]},
        }
        for key in keys
    ]
    parameters: Tree = {
        "scale_factor": configs["vae"]["scaling_factor"],
        "disable_first_stage_autocast": True,
        "denoiser_config": _denoiser(configs["scheduler"]),
        "network_config": {"target": f"{_DIFFUSION}.openaimodel.UNetModel", "params": _unet(unet)},
        "conditioner_config": {"target": f"{_SGM}.GeneralConditioner", "params": {"emb_models": [*text, *sizes]}},
        "first_stage_config": {
            "target": "sgm.models.autoencoder.AutoencoderKLInferenceWrapper",
            "params": vae_tree(configs["vae"], attn_type="vanilla-xformers"),
        },
    }
    return yaml_text({"model": {"target": "sgm.models.diffusion.DiffusionEngine", "params": parameters}})


def _denoiser(scheduler: Mapping[str, Any]) -> Tree:
    return {
        "target": f"{_DIFFUSION}.denoiser.DiscreteDenoiser",
        "params": {
            "num_idx": scheduler["num_train_timesteps"],
            "weighting_config": {"target": f"{_DIFFUSION}.denoiser_weighting.VWeighting"},
            "scaling_config": {"target": f"{_DIFFUSION}.denoiser_scaling.VScaling"},
            "discretization_config": {
                "target": f"{_DIFFUSION}.discretizer.LegacyDDPMDiscretization",
                "params": {
                    "linear_start": scheduler["beta_start"],
                    "linear_end": scheduler["beta_end"],
                    "num_timesteps": scheduler["num_train_timesteps"],
                },
            },
        },
    }


def _unet(config: Mapping[str, Any]) -> Tree:
    depth, context = config["transformer_layers_per_block"], config["cross_attention_dim"]
    is_list = isinstance(depth, list | tuple)
    heads, width = config["attention_head_dim"], config["block_out_channels"][0]
    return {
        "adm_in_channels": config["projection_class_embeddings_input_dim"],
        "num_classes": "sequential",
        "use_checkpoint": True,
        **unet_sizes(config),
        "num_head_channels": width // (heads[0] if isinstance(heads, list | tuple) else heads),
        "use_spatial_transformer": True,
        "use_linear_in_transformer": True,
        "transformer_depth": list(depth) if is_list else depth,
        "context_dim": context if is_list else [context] * depth,
        "spatial_transformer_attn_type": "softmax-xformers",
        "legacy": False,
    }
