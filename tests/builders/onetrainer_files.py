"""Config files as OneTrainer writes them, of every model type, method and config version, with all values of all keys.

The keys, their values and the versions are those of OneTrainer's facts, not what our migrations know. A file is drawn
in the form of version 11 and then written in the form of an older version (`aged`), by the reverse of OneTrainer's own
steps: both have to mean the same.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

Tree = dict[str, Any]

NEWEST = 11
METHODS = ("LORA", "FINE_TUNE", "EMBEDDING", "FINE_TUNE_VAE")
_SWITCH = (True, False)
_UNITS = ("EPOCH", "STEP", "SECOND", "MINUTE", "HOUR", "NEVER", "ALWAYS")
_FLOATS = ("FLOAT_32", "FLOAT_16", "BFLOAT_16", "TFLOAT_32")
_QUANTIZED = ("FLOAT_8", "INT_8", "NFLOAT_4", "FLOAT_W8A8", "INT_W8A8", "FLOAT_W8A8_COMPRESSED", "GGUF")
_SCALERS = ("NONE", "BATCH", "GLOBAL_BATCH", "GRADIENT_ACCUMULATION", "BOTH", "GLOBAL_BOTH")
_SCHEDULES = ("CONSTANT", "LINEAR", "COSINE", "COSINE_WITH_RESTARTS", "COSINE_WITH_HARD_RESTARTS", "REX", "ADAFACTOR")
_CUSTOM = {"learning_rate_scheduler": "CUSTOM", "custom_learning_rate_scheduler": "torch.optim.lr_scheduler.StepLR"}

# Every top-level key with values: the first is OneTrainer's default. By the version that first wrote it.
VALUES: Mapping[int, Mapping[str, Sequence[Any]]] = {
    0: {
        "workspace_dir": ("workspace/run", "w", "/tmp/w"),
        "cache_dir": ("workspace-cache/run", "c"),
        "debug_mode": (False, True),
        "debug_dir": ("debug", "d"),
        "tensorboard": (True, False),
        "tensorboard_expose": (False, True),
        "continue_last_backup": (False, True),
        "base_model_name": ("stable-diffusion-v1-5/stable-diffusion-v1-5", "someone/model", "models/m.safetensors"),
        "output_dtype": (*_FLOATS, "FLOAT_8"),
        "output_model_destination": ("models/model.safetensors", "o/out.safetensors"),
        "aspect_ratio_bucketing": (True, False),
        "latent_caching": (True, False),
        "clear_cache_before_training": (True, False),
        "learning_rate_scheduler": _SCHEDULES,
        "learning_rate": (3e-6, 3e-4, 1, 0.01),
        "learning_rate_warmup_steps": (200.0, 0, 10, 0.1, 1.0),
        "learning_rate_cycles": (1.0, 3, 0.5),
        "epochs": (100, 1, 20),
        "batch_size": (1, 2, 4),
        "gradient_accumulation_steps": (1, 2, 3),
        "ema": ("OFF", "GPU", "CPU"),
        "ema_decay": (0.999, 0.9),
        "ema_update_step_interval": (5, 1, 20),
        "train_device": ("cuda", "cpu", "cuda:1"),
        "temp_device": ("cpu", "cuda:0"),
        "train_dtype": ("FLOAT_16", "BFLOAT_16", "FLOAT_32", "TFLOAT_32"),
        "fallback_train_dtype": ("BFLOAT_16", "FLOAT_32"),
        "only_cache": (False, True),
        "resolution": ("512", "1024", "512,768", "1024x768", "640, 768, 1024"),
        "attention_mechanism": ("SDP", "FLASH", "CUDNN", "FLEX"),
        "mse_strength": (1.0, 0.5, 0),
        "mae_strength": (0.0, 0.5),
        "vb_loss_strength": (1.0, 0.0),
        "loss_scaler": _SCALERS,
        "learning_rate_scaler": _SCALERS,
        "offset_noise_weight": (0.0, 0.05),
        "perturbation_noise_weight": (0.0, 0.1),
        "rescale_noise_scheduler_to_zero_terminal_snr": (False, True),
        "force_v_prediction": (False, True),
        "force_epsilon_prediction": (False, True),
        "min_noising_strength": (0.0, 0.2),
        "max_noising_strength": (1.0, 0.8),
        "text_encoder_layer_skip": (0, 1, 2),
        "text_encoder_2_layer_skip": (0, 1),
        "masked_training": (False, True),
        "unmasked_probability": (0.1, 0.0, 0.5),
        "unmasked_weight": (0.1, 0.0, 1.0),
        "normalize_masked_area_loss": (False, True),
        "embedding_weight_dtype": ("FLOAT_32", "BFLOAT_16"),
        "lora_model_name": ("", "l.safetensors"),
        "lora_rank": (16, 4, 128),
        "lora_alpha": (1.0, 16, 0.5),
        "lora_weight_dtype": ("FLOAT_32", "BFLOAT_16", "FLOAT_16"),
        "sample_after": (10, 1, 0),
        "sample_after_unit": ("MINUTE", *(u for u in _UNITS if u != "MINUTE")),
        "sample_image_format": ("JPG", "PNG"),
        "samples_to_tensorboard": (True, False),
        "non_ema_sampling": (True, False),
        "backup_after": (30, 1),
        "backup_after_unit": ("MINUTE", *(u for u in _UNITS if u != "MINUTE")),
        "rolling_backup": (False, True),
        "rolling_backup_count": (3, 1),
        "backup_before_save": (True, False),
        "save_every": (0, 5),
        "save_every_unit": ("NEVER", *(u for u in _UNITS if u != "NEVER")),
    },
    1: {
        "include_train_config": ("NONE", "SETTINGS", "ALL"),
        "enable_autocast_cache": (True, False),
        "dropout_probability": (0.0, 0.1),
        "save_filename_prefix": ("", "p-"),
    },
    2: {
        "force_circular_padding": (False, True),
        "dataloader_threads": (2, 1, 8),
        "embedding_learning_rate": (None, 0.01),
        "preserve_embedding_norm": (False, True),
        "bundle_additional_embeddings": (True, False),
        "text_encoder_3_layer_skip": (0, 1),
    },
    3: {
        "loss_weight_fn": ("CONSTANT", "P2", "MIN_SNR_GAMMA", "DEBIASED_ESTIMATION", "SIGMA"),
        "loss_weight_strength": (5.0, 1, 20),
        "peft_type": ("LORA", "LOHA"),
        "lora_decompose": (False, True),
        "lora_decompose_norm_epsilon": (True, False),
    },
    4: {
        "timestep_distribution": (
            *("UNIFORM", "SIGMOID", "LOGIT_NORMAL", "HEAVY_TAIL", "COS_MAP", "INVERTED_PARABOLA", "BETA"),
        ),
        "noising_weight": (0.0, 1, 7.7),
        "noising_bias": (0.0, -0.5, 0.25),
        "validation": (False, True),
        "validate_after": (1, 50),
        "validate_after_unit": ("EPOCH", *(u for u in _UNITS if u != "EPOCH")),
        "log_cosh_strength": (0.0, 0.5),
    },
    5: {
        "tensorboard_always_on": (False, True),
        "tensorboard_port": (6006, 7007),
        "learning_rate_min_factor": (0.0, 0.1, 1),
        "frames": ("25", "1", "17,33"),
        "clip_grad_norm": (1.0, None, 0.5),
        "timestep_shift": (1.0, 3, 0.5),
        "dynamic_timestep_shifting": (False, True),
        "masked_prior_preservation_weight": (0.0, 0.5),
        "custom_conditioning_image": (False, True),
        "sample_skip_first": (0, 2),
        "sample_video_format": ("MP4",),
        "sample_audio_format": ("MP3",),
        "save_skip_first": (0, 3),
        "lora_decompose_output_axis": (False, True),
        "text_encoder_4_layer_skip": (0, 1),
    },
    6: {
        "generalized_offset_noise": (False, True),
    },
    7: {
        "multi_gpu": (False, True),
        "device_indexes": ("", "0,1"),
        "gradient_reduce_precision": (
            *("FLOAT_32_STOCHASTIC", "WEIGHT_DTYPE", "FLOAT_32", "WEIGHT_DTYPE_STOCHASTIC"),
        ),
        "fused_gradient_reduce": (True, False),
        "async_gradient_reduce": (True, False),
        "async_gradient_reduce_buffer": (100, 50),
        "huber_strength": (0.0, 0.5),
        "huber_delta": (1.0, 0.1, 2),
    },
    8: {
        "compile": (False, True),
        "oft_block_size": (32, 16),
        "oft_block_share": (False, True),
        "text_encoder_2_sequence_length": (77, 256, 512, None),
    },
    9: {
        "prevent_overwrites": (False, True),
        "lokr_dim": (16, 4),
        "lokr_decompose_factor": (-1, 8),
        "lokr_decompose_both": (False, True),
        "lokr_use_tucker": (False, True),
        "lokr_weight_decompose": (False, True),
        "lokr_full_matrix": (False, True),
        "lokr_dora_on_output": (True, False),
        "lokr_vec_trick": (True, False),
        "oft_scaled": (False, True),
        "text_encoder_sequence_length": (512, 256, 77, None),
    },
    10: {"huggingface_cache_dir": ("", "hub"), "offline_mode": (False, True)},
}  # fmt: skip
# Values that a key has only since a later version than the key itself.
_LATER_VALUES: Mapping[str, tuple[int, Sequence[Any]]] = {
    "peft_type": (9, ("OFT_2", "LOKR")),
    "learning_rate_scheduler": (2, ("CUSTOM",)),
}
PART_KEYS: Mapping[int, Mapping[str, Sequence[Any]]] = {
    2: {
        "train": _SWITCH,
        "stop_training_after": (None, 0, 5, 30),
        "stop_training_after_unit": ("NEVER", "EPOCH", "STEP", "MINUTE"),
        "learning_rate": (None, 1e-4, 0.5),
        "weight_dtype": (*_FLOATS, *_QUANTIZED),
        "model_name": ("", "p.safetensors"),
    },
    3: {
        "include": (True, False),
        "dropout_probability": (0.0, 0.1),
        "train_embedding": (True, False),
        "attention_mask": (False, True),
    },
    5: {"guidance_scale": (1.0, 3.5)},
    11: {
        "gradient_checkpointing": (True, False),
        "offload_fraction": (0.0, 0.5),
        "activation_offloading": (False, True),
    },
}
"""The keys of a part of the model, by the version that first wrote them; here the first value need not be a default."""
PARTS: Mapping[str, int] = {
    **dict.fromkeys(("unet", "prior", "text_encoder", "text_encoder_2", "text_encoder_3", "vae", "effnet_encoder"), 2),
    **{"decoder": 2, "decoder_text_encoder": 2, "decoder_vqgan": 2, "text_encoder_4": 5, "transformer": 9},
    "unconditional_transformer": 10,
}
MODEL_TYPES = (
    *("STABLE_DIFFUSION_15", "STABLE_DIFFUSION_15_INPAINTING", "STABLE_DIFFUSION_20", "STABLE_DIFFUSION_20_BASE"),
    *("STABLE_DIFFUSION_20_INPAINTING", "STABLE_DIFFUSION_20_DEPTH", "STABLE_DIFFUSION_21", "STABLE_DIFFUSION_21_BASE"),
    *("STABLE_DIFFUSION_3", "STABLE_DIFFUSION_35", "STABLE_DIFFUSION_XL_10_BASE"),
    *("STABLE_DIFFUSION_XL_10_BASE_INPAINTING", "WUERSTCHEN_2", "STABLE_CASCADE_1", "PIXART_ALPHA", "PIXART_SIGMA"),
    *("FLUX_DEV_1", "FLUX_FILL_DEV_1", "FLUX_2", "SANA", "HUNYUAN_VIDEO", "HI_DREAM_FULL", "CHROMA_1", "QWEN"),
    *("Z_IMAGE", "ERNIE", "KREA_2", "ANIMA", "IDEOGRAM_4"),
)
_WITH_PRIOR = ("WUERSTCHEN_2", "STABLE_CASCADE_1")
# When all parts of a model have keys of their own.
_SINCE = {"HI_DREAM_FULL": 5, "STABLE_DIFFUSION_3": 2, "STABLE_DIFFUSION_35": 2}
_FLAT = ("unet", "text_encoder", "text_encoder_2", "vae", "prior", "decoder", "effnet_encoder")
_NEVER_FLAT = {f"{part} {key}" for part in ("vae", "decoder", "effnet_encoder") for key in ("train", "learning_rate")}
_FULL_FORMATS = ("DIFFUSERS", "ORIGINAL_SINGLE_FILE", "LEGACY_SAFETENSORS")
_LORA_FORMATS = ("DIFFUSERS_LORA", "KOHYA_LORA", "LEGACY_LORA", "ORIGINAL_LORA", "COMFY_LORA")
EMBEDDING: Mapping[str, Sequence[Any]] = {
    "uuid": ("3f", "4a"),
    "model_name": ("", "e.safetensors"),
    "placeholder": ("<embedding>", "<zog>"),
    "train": (True, False),
    "stop_training_after": (None, 5),
    "stop_training_after_unit": ("NEVER", "EPOCH", "STEP"),
    "token_count": (1, 4, None),
    "initial_embedding_text": ("*", "a disc"),
    "is_output_embedding": (False, True),
}
_FIRST_EMBEDDING = ("model_name", "token_count", "initial_embedding_text")  # the keys of versions 0 and 1
CONCEPT: Mapping[str, Sequence[Any]] = {
    "name": ("", "discs"),
    "path": ("images", "/data/images"),
    "seed": (5, -7),
    "enabled": (True, False),
    "type": ("STANDARD", "VALIDATION", "PRIOR_PREDICTION"),
    "include_subdirectories": (False, True),
    "image_variations": (1, 3),
    "text_variations": (1, 2),
    "balancing": (1.0, 3, 0.5),
    "balancing_strategy": ("REPEATS", "SAMPLES"),
    "loss_weight": (1.0, 0.5),
    "concept_stats": ({}, {"image_count": 5}),
}
_COLOURS = ("flip", "rotate", "brightness", "contrast", "saturation", "hue")
CONCEPT_IMAGE: Mapping[str, Sequence[Any]] = {
    "enable_crop_jitter": (True, False),
    **{f"enable_{how}_{name}": (False, True) for how in ("random", "fixed") for name in _COLOURS},
    "random_rotate_max_angle": (0.0, 10),
    **{f"random_{name}_max_strength": (0.0, 0.2) for name in _COLOURS[2:]},
    "enable_resolution_override": (False, True),
    "resolution_override": ("512", "640", "512,768"),
    "enable_random_circular_mask_shrink": (False, True),
    "enable_random_mask_rotate_crop": (False, True),
}
CONCEPT_TEXT: Mapping[str, Sequence[Any]] = {
    "prompt_source": ("sample", "concept", "filename"),
    "prompt_path": ("", "captions.txt"),
    "enable_tag_shuffling": (False, True),
    "tag_delimiter": (",", ";"),
    "keep_tags_count": (1, 0, 3),
    "tag_dropout_enable": (False, True),
    "tag_dropout_mode": ("FULL", "RANDOM", "RANDOM WEIGHTED"),
    "tag_dropout_probability": (0.0, 0.3),
    "tag_dropout_special_tags_mode": ("NONE", "BLACKLIST", "WHITELIST"),
    "tag_dropout_special_tags": ("", "a,b"),
    "tag_dropout_special_tags_regex": (False, True),
    "caps_randomize_enable": (False, True),
    "caps_randomize_mode": ("capslock, title, first, random", "title"),
    "caps_randomize_probability": (0.0, 0.4),
    "caps_randomize_lowercase": (False, True),
}
SAMPLE: Mapping[str, Sequence[Any]] = {
    "enabled": (True, False),
    "prompt": ("", "a disc"),
    "negative_prompt": ("", "blurry"),
    "height": (512, 1024, 640),
    "width": (512, 1024, 768),
    "frames": (1, 9),
    "length": (10.0,),
    "seed": (42, 7),
    "random_seed": (False, True),
    "diffusion_steps": (30, 8),
    "cfg_scale": (7.5, 1, 4.5),
    "noise_scheduler": (
        *("DDIM", "EULER", "EULER_A", "DPMPP", "DPMPP_SDE", "UNIPC", "EULER_KARRAS", "DPMPP_KARRAS"),
        *("DPMPP_SDE_KARRAS", "UNIPC_KARRAS"),
    ),
    "text_encoder_1_layer_skip": (0, 1),
    "text_encoder_1_sequence_length": (None, 256),
    "transformer_attention_mask": (False, True),
    "force_last_timestep": (False, True),
    "sample_inpainting": (False, True),
    "base_image_path": ("", "b.png"),
    "mask_image_path": ("", "m.png"),
}  # fmt: skip
QUANTIZATION: Mapping[str, Sequence[Any]] = {
    "layer_filter": ("", "attn1,ff"),
    "layer_filter_preset": ("full", "attn-mlp", "custom"),
    "layer_filter_regex": (False, True),
    "svd_dtype": ("NONE", "BFLOAT_16"),
    "svd_rank": (16, 4),
    "cache_dir": (None, "q"),
}
# Each optimizer with settings, mostly other values than its defaults; all other keys are empty in a file.
_BETAS = {"beta1": 0.8, "beta2": 0.95, "eps": 1e-6, "weight_decay": 0.1}
_BLOCKS = {"min_8bit_size": 1024, "percentile_clipping": 50, "block_wise": False}
_ADV = {"cautious_wd": True, "weight_decay": 0.1, "nnmf_factor": True, "orthogonal_gradient": True}
_MUON = {"MuonWithAuxAdam": False, "muon_hidden_layers": "attn", "muon_adam_lr": 1e-4, "ns_steps": 4}
OPTIMIZERS: Mapping[str, Tree] = {
    "ADAFACTOR": {"eps": 1e-20, "eps2": 0.01, "clip_threshold": 2.0, "decay_rate": -0.7, "scale_parameter": True},
    "ADAGRAD": {"lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.1, "eps": 1e-8},
    "ADAGRAD_8BIT": {"weight_decay": 0.1, **_BLOCKS},
    "ADAM_8BIT": {**_BETAS, **_BLOCKS, "amsgrad": False, "is_paged": True},
    "ADAMW_8BIT": {**_BETAS, **_BLOCKS, "is_paged": True},
    "MUON": {"momentum": 0.9, "weight_decay": 0.1, "muon_adam_lr": 1e-4},
    "AdEMAMix_8BIT": {**_BETAS, "beta3": 0.999, "alpha": 4, "min_8bit_size": 1024, "is_paged": True},
    "AdEMAMix": {**_BETAS, "beta3": 0.999, "alpha": 4},
    "ADOPT": {**_BETAS, "decoupled_decay": True, "cautious": True},
    "LAMB": {**_BETAS, "bias_correction": False, "adam_w_mode": False, "max_unorm": 0.5},
    "LAMB_8BIT": {**_BETAS, "bias_correction": False},
    "LARS": {"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1, "max_unorm": 0.5},
    "LARS_8BIT": {"momentum": 0.9, "weight_decay": 0.1},
    "LION_8BIT": {"beta1": 0.8, "beta2": 0.95, "weight_decay": 0.1, "is_paged": True},
    "RMSPROP": {"alpha": 0.9, "eps": 1e-6, "momentum": 0.5, "centered": False},
    "RMSPROP_8BIT": {"alpha": 0.9, "momentum": 0.5},
    "SGD_8BIT": {"momentum": 0.9, "weight_decay": 0.1},
    "SCHEDULE_FREE_ADAMW": {**_BETAS, "r": 0.5, "weight_lr_power": 1.0},
    "SCHEDULE_FREE_SGD": {"momentum": 0.9, "weight_decay": 0.1, "r": 0.5},
    "PRODIGY": {**_BETAS, "beta3": 0.9, "decouple": False, "use_bias_correction": True, "d_coef": 2.0, "slice_p": 5},
    "PRODIGY_PLUS_SCHEDULE_FREE": {**_BETAS, "prodigy_steps": 100, "use_stableadamw": False, "d_coef": 2.0},
    "DADAPT_ADA_GRAD": {"momentum": 0.5, "weight_decay": 0.1, "d0": 1e-5},
    "DADAPT_ADAN": {"beta1": 0.9, "beta2": 0.9, "beta3": 0.9, "weight_decay": 0.1, "no_prox": True},
    "DADAPT_ADAM": {**_BETAS, "decouple": True, "use_bias_correction": True, "growth_rate": 2.0},
    "DADAPT_SGD": {"momentum": 0.5, "weight_decay": 0.1},
    "DADAPT_LION": {"beta1": 0.8, "weight_decay": 0.1},
    "ADAM": {**_BETAS, "amsgrad": True, "fused_back_pass": True, "stochastic_rounding": True},
    "ADAMW": {**_BETAS, "amsgrad": True, "fused": False, "foreach": True, "stochastic_rounding": True},
    "SGD": {"momentum": 0.9, "dampening": 0, "weight_decay": 0.1, "nesterov": True},
    "LION": {"beta1": 0.8, "beta2": 0.95, "weight_decay": 0.1, "use_triton": False},
    "CAME": {"beta1": 0.8, "beta3": 0.999, "eps2": 1e-10, "use_cautious": True, "stochastic_rounding": True},
    "CAME_8BIT": {"beta1": 0.8, "min_8bit_size": 8192, "quant_block_size": 1024},
    "ADAMW_ADV": {**_ADV, "use_atan2": True, "use_AdEMAMix": True, "beta3_ema": 0.999, "kourkoutas_beta": True},
    "ADOPT_ADV": {**_ADV, "use_atan2": False, "Simplified_AdEMAMix": True, "alpha_grad": 50.0},
    "PRODIGY_ADV": {**_ADV, "d_coef": 2.0, "d_limiter": True, "prodigy_steps": 50},
    "SIGNSGD_ADV": {**_ADV, "momentum": 0.9},
    "LION_ADV": {**_ADV, "clip_threshold": 1.0, "auto_kappa_p": False},
    "MUON_ADV": {**_ADV, **_MUON, "normuon_variant": False, "approx_mars": True},
    "ADAMUON_ADV": {**_ADV, **_MUON, "low_rank_ortho": True, "ortho_rank": 64},
    "ADABELIEF": {**_BETAS, "decoupled_decay": False, "rectify": False},
    "TIGER": {"beta1": 0.9, "weight_decay": 0.1, "fixed_decay": True},
    "AIDA": {**_BETAS, "k": 3, "xi": 1e-15, "adanorm": True},
    "YOGI": {"beta1": 0.8, "beta2": 0.95, "initial_accumulator": 1e-5, "eps": 0.01},
}
"""The 43 optimizers of the newest version."""
REMOVED_OPTIMIZERS = ("LION_PRODIGY_ADV", "SIMPLIFIED_AdEMAMix")
_FIRST_OPTIMIZERS = (
    *("ADAM", "ADAMW", "ADAM_8BIT", "ADAMW_8BIT", "SGD", "LION", "ADAFACTOR", "PRODIGY", "DADAPT_ADAM"),
)
ALIGN_PROP: Mapping[str, Sequence[Any]] = {
    "align_prop": (True, False),
    "align_prop_probability": (0.1, 1.0),
    "align_prop_loss": ("AESTHETIC", "HPS"),
    "align_prop_weight": (0.01, 0.1),
    "align_prop_steps": (20, 10),
    "align_prop_truncate_steps": (0.5, 0.25),
    "align_prop_cfg_scale": (7.0, 5.0),
}
"""The keys of AlignProp, of versions 0 to 6."""


class _Draws:
    """Values in turn: each key goes through all of its values, in an order that is its own, before any comes again."""

    def __init__(self, seed: str) -> None:
        self._rng = random.Random(seed)
        self._left: dict[str, list[Any]] = {}

    def __call__(self, name: str, values: Sequence[Any]) -> Any:
        left = self._left.setdefault(f"{name} {len(values)}", [])
        if not left:
            left += self._rng.sample(list(values), len(values))
        return deepcopy(left.pop())

    def is_one_in(self, n: int, name: str) -> bool:
        """Return whether it is this name's turn, of every n."""
        return bool(self(f"one in {n} {name}", (True, *[False] * (n - 1))))

    def some(self, table: Mapping[str, Sequence[Any]], place: str, *, is_whole: bool) -> Tree:
        """Return all keys of a table, or about half of them."""
        return {
            key: self(f"{place}.{key}", values)
            for key, values in table.items()
            if is_whole or self.is_one_in(2, f"{place}.{key}")
        }


def since(table: Mapping[int, Mapping[str, Sequence[Any]]], version: int) -> dict[str, Sequence[Any]]:
    """Return the keys that a version has, with their values."""
    keys = {key: values for first, inner in table.items() if first <= version for key, values in inner.items()}
    for key, (first, values) in _LATER_VALUES.items():
        if key in keys and first <= version:
            keys[key] = (*keys[key], *values)
    return keys


def files(versions: Sequence[int] = range(NEWEST + 1), *, seed: int = 0) -> Iterator[tuple[str, Tree]]:
    """Yield the files in the form of version 11, each with its name: all model types, methods and versions.

    Which keys a file has, and which values, is drawn for each version; `aged(tree, version)` is its older form.
    """
    for version in versions:
        draw = _Draws(f"{seed} {version}")
        for model_type in MODEL_TYPES:
            for method in METHODS:
                yield f"{version} {model_type} {method}", _drawn(draw, model_type, method, version)


def _drawn(draw: _Draws, model_type: str, method: str, version: int) -> Tree:
    """Return a file in the form of version 11 that `version` could express, too."""
    is_whole = draw.is_one_in(3, "whole")
    tree: Tree = {"__version": NEWEST, "training_method": method, "model_type": model_type}
    tree |= draw.some(since(VALUES, version), "top", is_whole=is_whole)
    if tree.get("learning_rate_scheduler") == "CUSTOM":
        tree |= {**_CUSTOM, "scheduler_params": [{"key": "step_size", "value": "3"}]}
    tree["output_model_format"] = _format(draw, method, version)
    if version >= 3:
        tree["layer_filter_preset"] = draw("layers", ("full", "attn-mlp", "attn-only", "custom"))
    if tree.get("layer_filter_preset") == "custom":
        tree["layer_filter"] = "attn1,ff"
        if version >= 6:
            tree["layer_filter_regex"] = draw("regex", _SWITCH)
    tree["optimizer"] = _optimizer(draw, version)
    if version >= 1 and draw.is_one_in(3, "defaults"):
        names = [draw("optimizer", tuple(OPTIMIZERS)) for _ in range(2)]
        tree["optimizer_defaults"] = {name: {"optimizer": name, **deepcopy(OPTIMIZERS[name])} for name in names}
    if version >= 8 and draw.is_one_in(3, "quantization"):
        tree["quantization"] = draw.some(QUANTIZATION, "quantization", is_whole=is_whole)
    if version <= 6 and draw.is_one_in(4, "alignprop"):
        tree |= draw.some(ALIGN_PROP, "alignprop", is_whole=is_whole)
    tree |= _parts(draw, version, model_type, is_whole=is_whole)
    tree |= _lists(draw, method, version, is_whole=is_whole)
    return _as_meant(tree, draw, version)


def _as_meant(tree: Tree, draw: _Draws, version: int) -> Tree:
    """Return the file with the defaults of its version, where they are not those of version 11."""
    if "huber_strength" in tree and version < 9:
        tree.setdefault("huber_delta", 0.1)
    if version < 4:
        for key in ("timestep_distribution", "noising_weight", "noising_bias"):
            tree.pop(key, None)
        if draw.is_one_in(2, "noising"):
            tree |= {"timestep_distribution": "UNIFORM", "noising_weight": 0.0, "noising_bias": 0.0}
            if draw.is_one_in(2, "sigmoid"):
                tree |= {"timestep_distribution": "SIGMOID", "noising_weight": 2.0, "noising_bias": 0.25}
    elif tree.get("noising_weight") or tree.get("noising_bias"):
        tree.setdefault("timestep_distribution", "UNIFORM")
    if version < 3 and tree["model_type"] in _WITH_PRIOR:
        tree |= {"loss_weight_fn": "P2", "loss_weight_strength": 1.0}
    elif 1 <= version < 3 and draw.is_one_in(2, "gamma"):
        tree |= {"loss_weight_fn": "MIN_SNR_GAMMA", "loss_weight_strength": 3.0}
    return tree


def _format(draw: _Draws, method: str, version: int) -> str:
    if method == "EMBEDDING":
        return "SAFETENSORS"
    if version == NEWEST:
        return str(draw(f"format {method}", _LORA_FORMATS if method == "LORA" else _FULL_FORMATS))
    if method != "LORA" and draw.is_one_in(3, "diffusers"):
        return "DIFFUSERS"
    return "LEGACY_LORA" if method == "LORA" else "LEGACY_SAFETENSORS"


def _optimizer(draw: _Draws, version: int) -> Tree:
    name = draw("optimizer", _FIRST_OPTIMIZERS if version < 2 else (*OPTIMIZERS, *REMOVED_OPTIMIZERS))
    settings = OPTIMIZERS.get(name, {})
    if version == NEWEST and draw.is_one_in(2, "empty keys"):  # files have the keys of all optimizers, most are null
        settings = {**{key: None for other in OPTIMIZERS.values() for key in other}, **settings}
    return {"optimizer": name, **deepcopy(settings)}


def _parts(draw: _Draws, version: int, model_type: str, *, is_whole: bool) -> Tree:
    """Return parts of this model and of others. What was one setting for all of them is in each, and equal."""
    keys = dict(since(PART_KEYS, min(version, 10)))
    if version < 2:
        keys = {key: PART_KEYS[2][key] for key in ("train", "learning_rate", "weight_dtype")}
    names = [name for name in PARTS if _has_part(name, version, model_type)]
    # A setting for all parts needs all of them in the file: some came with later versions than the switch.
    is_dense = version < NEWEST and version >= _SINCE.get(model_type, 0) and draw.is_one_in(2, "dense")
    shared = _shared(draw, version) if is_dense else {}
    parts: Tree = {}
    for name in names:
        if not (is_dense or is_whole or draw.is_one_in(2, f"part {name}")):
            continue
        part = draw.some(keys, f"part {name}", is_whole=is_whole)
        if version < 2:
            part = {key: value for key, value in part.items() if f"{name} {key}" not in _NEVER_FLAT}
        if version == NEWEST:
            part |= draw.some(PART_KEYS[NEWEST], f"part {name}", is_whole=is_whole)
        if is_dense:
            part.setdefault("weight_dtype", "FLOAT_32")
        if "stop_training_after" in part:
            part.setdefault("stop_training_after_unit", "EPOCH")
        if part or version >= 2:  # a flat file cannot have an empty part
            parts[name] = part | shared
    return parts


def _shared(draw: _Draws, version: int) -> Tree:
    is_on = draw("checkpointing", _SWITCH)
    offloads = version >= 5 and is_on
    return {
        "gradient_checkpointing": is_on,
        "offload_fraction": draw("fraction", (0.0, 0.5)) if offloads else 0.0,
        "activation_offloading": draw("activations", _SWITCH) if offloads else False,
    }


def _has_part(name: str, version: int, model_type: str) -> bool:
    has_prior = model_type in _WITH_PRIOR
    if version < 2:
        return name in _FLAT if has_prior else name == "transformer" or (name in _FLAT and name != "prior")
    if name == "prior" and version < 9:
        return has_prior
    if name == "transformer" and version < 9:
        return not has_prior  # as the prior
    return PARTS[name] <= version


# From version 11 to older ones: the reverse of OneTrainer's own steps.


def aged(tree: Tree, version: int) -> Tree:
    """Return a drawn file in the form of an older version; the one of version 0 states no version."""
    old = deepcopy(tree)
    steps = (_to_0, _to_1, _to_2, _to_3, _to_4, _to_5, _to_6, _to_7, _to_8, _to_9, _to_10)
    for step in reversed(steps[version:]):
        step(old)
    if "concepts" in old:
        old["concepts"] = [_aged_concept(concept, version) for concept in old["concepts"]]
    old.pop("__version")
    return old if version == 0 else {"__version": version, **old}


def _objects(tree: Tree) -> list[Tree]:
    return [tree[name] for name in PARTS if name in tree]


def _to_10(tree: Tree) -> None:
    parts = [part for part in _objects(tree) if "gradient_checkpointing" in part]
    shared = [{key: part.pop(key) for key in PART_KEYS[NEWEST]} for part in parts]
    if shared:
        is_on, activations = shared[0]["gradient_checkpointing"], shared[0]["activation_offloading"]
        fraction = shared[0]["offload_fraction"]
        is_offloaded = activations or fraction > 0
        tree["gradient_checkpointing"] = "CPU_OFFLOADED" if is_offloaded else "ON" if is_on else "OFF"
        if is_offloaded:
            tree |= {"enable_activation_offloading": activations, "layer_offload_fraction": fraction}
    if tree["output_model_format"].startswith("LEGACY"):
        tree["output_model_format"] = "SAFETENSORS"


def _to_9(tree: Tree) -> None:
    parts = _objects(tree)
    if parts and all("weight_dtype" in part for part in parts) and "gradient_checkpointing" in tree:
        tree["weight_dtype"] = parts[0]["weight_dtype"]
        for part in parts:
            if part["weight_dtype"] == tree["weight_dtype"]:
                part["weight_dtype"] = "NONE"


def _to_8(tree: Tree) -> None:
    if "transformer" in tree:
        tree["prior"] = tree.pop("transformer")


def _to_7(tree: Tree) -> None:
    for old, new in (("lora_layers", "layer_filter"), ("lora_layers_regex", "layer_filter_regex")):
        if new in tree:
            tree[old] = tree.pop(new)
    if "layer_filter_preset" in tree:
        tree["lora_layer_preset"] = tree.pop("layer_filter_preset")


def _to_6(tree: Tree) -> None:
    if tree.get("lora_layer_preset") == "full":
        tree["lora_layer_preset"] = None
    if tree.get("attention_mechanism") == "SDP":
        tree["attention_mechanism"] = "XFORMERS"


def _to_5(tree: Tree) -> None:
    for unit in ("", "_unit"):
        if f"save_every{unit}" in tree:
            tree[f"save_after{unit}"] = tree.pop(f"save_every{unit}")


def _to_4(tree: Tree) -> None:
    if "gradient_checkpointing" in tree:
        tree["gradient_checkpointing"] = tree["gradient_checkpointing"] == "ON"


def _to_3(tree: Tree) -> None:
    if tree.pop("timestep_distribution", None) is not None:
        tree["noising_bias"] += 0.5


def _to_2(tree: Tree) -> None:
    if tree.pop("loss_weight_fn", None) == "MIN_SNR_GAMMA":
        tree["min_snr_gamma"] = tree["loss_weight_strength"]
    tree.pop("loss_weight_strength", None)
    if "embedding" in tree:
        tree["embeddings"] = [tree.pop("embedding")]


def _to_1(tree: Tree) -> None:
    for name in _FLAT:
        for key, value in tree.pop(name, {}).items():
            tree[f"train_{name}" if key == "train" else f"{name}_{key}"] = value
    for embedding in tree.pop("embeddings", []):
        tree |= {key: embedding[key] for key in ("token_count", "initial_embedding_text") if key in embedding}
        if embedding.get("model_name"):
            tree["embedding_model_names"] = [embedding["model_name"]]


def _to_0(tree: Tree) -> None:
    optimizer = tree.pop("optimizer")
    tree["optimizer"] = optimizer.pop("optimizer")
    tree |= {f"optimizer_{key}": value for key, value in optimizer.items()}


def _aged_concept(concept: Tree, version: int) -> Tree:
    """Its own versions are 0 to 2: `repeats` until 2024, and a switch for validation until May 2025."""
    old = {**concept}
    if version < 7 and old.get("type") != "PRIOR_PREDICTION" and "type" in old:
        old |= {"__version": 1, "validation_concept": old.pop("type") == "VALIDATION"}
    if version < 3 and old.get("__version") == 1 and old.get("balancing_strategy", "REPEATS") == "REPEATS":
        old |= {"__version": 0, "repeats": old.pop("balancing", 1.0)}
    return old


def _lists(draw: _Draws, method: str, version: int, *, is_whole: bool) -> Tree:
    tree: Tree = {}
    if method == "EMBEDDING":
        keys = EMBEDDING if version >= 2 else {key: EMBEDDING[key] for key in _FIRST_EMBEDDING}
        tree["embedding"] = draw.some(keys, "embedding", is_whole=is_whole)
    if version >= 3 and draw.is_one_in(3, "additional"):
        tree["additional_embeddings"] = [
            {**draw.some(EMBEDDING, "additional", is_whole=is_whole), "placeholder": f"<{n}>"} for n in range(2)
        ]
    if draw.is_one_in(2, "concepts inside"):
        tree["concepts"] = [_concept(draw, is_whole=is_whole) for _ in range(draw("concepts", (1, 2, 3)))]
    if draw.is_one_in(2, "samples inside"):
        tree["samples"] = [draw.some(SAMPLE, "sample", is_whole=is_whole) for _ in range(draw("samples", (1, 2)))]
    return tree


def _concept(draw: _Draws, *, is_whole: bool) -> Tree:
    return {
        "__version": 2,
        **draw.some(CONCEPT, "concept", is_whole=is_whole),
        "image": draw.some(CONCEPT_IMAGE, "image", is_whole=is_whole),
        "text": draw.some(CONCEPT_TEXT, "text", is_whole=is_whole),
    }
