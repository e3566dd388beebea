"""OneTrainer's top-level keys, by which its files are recognized, and the config versions in which each was written.

A key introduced by a version proves that a file is not older; a key removed by a version proves that it is not newer.
If the exact version of a change is not known, the wider bound is used, so that these proofs always hold.
"""

from __future__ import annotations

from collections.abc import Mapping

NEWEST = 11

# The nested objects, one for each part of a model, for all families.
PARTS = (
    "unet", "prior", "transformer", "unconditional_transformer", "text_encoder", "text_encoder_2", "text_encoder_3",
    "text_encoder_4", "vae", "effnet_encoder", "decoder", "decoder_text_encoder", "decoder_vqgan",
)  # fmt: skip

_WITH_SWITCH = ("unet", "prior", "text_encoder", "text_encoder_2")
_WITH_DTYPE = (
    *_WITH_SWITCH, "vae", "effnet_encoder", "decoder", "decoder_text_encoder", "decoder_vqgan",
)  # fmt: skip
_WITH_FILE = ("prior", "vae", "effnet_encoder", "decoder")

# Flat keys of versions 0 and 1, the part they belong to, and the key in it.
FLAT_PART_KEYS: Mapping[str, tuple[str, str]] = {
    **{f"train_{part}": (part, "train") for part in _WITH_SWITCH},
    **{f"train_{part}_epochs": (part, "stop_training_after") for part in _WITH_SWITCH},
    **{f"{part}_learning_rate": (part, "learning_rate") for part in _WITH_SWITCH},
    **{f"{part}_weight_dtype": (part, "weight_dtype") for part in _WITH_DTYPE},
    **{f"{part}_model_name": (part, "model_name") for part in _WITH_FILE},
}
FLAT_EMBEDDING_KEYS = ("token_count", "initial_embedding_text")

_FIRST: Mapping[int, str] = {
    0: """
        training_method model_type debug_mode debug_dir workspace_dir cache_dir tensorboard tensorboard_expose
        continue_last_backup base_model_name output_dtype output_model_format output_model_destination
        concept_file_name aspect_ratio_bucketing latent_caching clear_cache_before_training learning_rate_scheduler
        learning_rate learning_rate_warmup_steps learning_rate_cycles epochs batch_size gradient_accumulation_steps
        ema ema_decay ema_update_step_interval train_device temp_device train_dtype fallback_train_dtype only_cache
        resolution attention_mechanism mse_strength mae_strength vb_loss_strength loss_scaler learning_rate_scaler
        offset_noise_weight perturbation_noise_weight rescale_noise_scheduler_to_zero_terminal_snr
        force_v_prediction force_epsilon_prediction min_noising_strength max_noising_strength noising_weight
        noising_bias text_encoder_layer_skip text_encoder_2_layer_skip masked_training unmasked_probability
        unmasked_weight normalize_masked_area_loss embedding_weight_dtype lora_model_name lora_rank lora_alpha
        lora_weight_dtype optimizer optimizer_defaults sample_definition_file_name samples sample_after
        sample_after_unit sample_image_format samples_to_tensorboard non_ema_sampling backup_after backup_after_unit
        rolling_backup rolling_backup_count backup_before_save
        """,
    1: "include_train_config enable_autocast_cache dropout_probability save_filename_prefix",
    2: """
        unet prior text_encoder text_encoder_2 text_encoder_3 text_encoder_3_layer_skip vae effnet_encoder decoder
        decoder_text_encoder decoder_vqgan force_circular_padding custom_learning_rate_scheduler scheduler_params
        dataloader_threads embedding additional_embeddings embedding_learning_rate preserve_embedding_norm
        bundle_additional_embeddings
        """,
    3: "loss_weight_fn loss_weight_strength peft_type lora_decompose lora_decompose_norm_epsilon",
    4: "timestep_distribution validate_after validate_after_unit log_cosh_strength",
    5: """
        tensorboard_always_on tensorboard_port learning_rate_min_factor frames clip_grad_norm timestep_shift
        dynamic_timestep_shifting text_encoder_4 text_encoder_4_layer_skip masked_prior_preservation_weight
        custom_conditioning_image cloud secrets sample_skip_first sample_video_format sample_audio_format
        save_skip_first lora_decompose_output_axis
        """,
    6: "save_every save_every_unit generalized_offset_noise",
    7: """
        multi_gpu device_indexes gradient_reduce_precision fused_gradient_reduce async_gradient_reduce
        async_gradient_reduce_buffer huber_strength huber_delta
        """,
    8: """
        layer_filter layer_filter_preset layer_filter_regex compile quantization oft_block_size oft_block_share
        text_encoder_2_sequence_length
        """,
    9: """
        transformer prevent_overwrites lokr_dim lokr_decompose_both lokr_decompose_factor lokr_use_tucker
        lokr_weight_decompose lokr_dora_on_output lokr_full_matrix lokr_vec_trick oft_scaled
        text_encoder_sequence_length
        """,
    10: "huggingface_cache_dir offline_mode unconditional_transformer",
    11: "async_offloading",
}  # fmt: skip
_LAST: Mapping[int, str] = {
    0: "extra_model_name loss_function weight_decay latent_caching_epochs",
    # Presets of version 2 were written with the flat keys of version 1 until March 2024.
    2: " ".join((*FLAT_PART_KEYS, *FLAT_EMBEDDING_KEYS, "embedding_model_names", "min_snr_gamma")),
    # In the first weeks of version 3 some files still had the older ones.
    3: "embeddings circular_mask_generation random_rotate_and_crop",
    5: "save_after save_after_unit",
    6: """
        align_prop align_prop_probability align_prop_loss align_prop_weight align_prop_steps
        align_prop_truncate_steps align_prop_cfg_scale
        """,
    7: "lora_layers lora_layer_preset lora_layers_regex",
    9: "weight_dtype sequential_model_setup",
    10: """
        gradient_checkpointing enable_activation_offloading layer_offload_fraction enable_async_offloading oft_coft
        coft_eps
        """,
}  # fmt: skip
# Old keys that did not exist from the start.
_LATER_FIRST: Mapping[int, str] = {
    1: "min_snr_gamma embeddings",
    3: "lora_layers lora_layer_preset",
    5: "enable_activation_offloading layer_offload_fraction enable_async_offloading",
    6: "lora_layers_regex",
    8: "oft_coft coft_eps",
}


def _by_key(table: Mapping[int, str]) -> dict[str, int]:
    return {key: version for version, keys in table.items() for key in keys.split()}


FIRST_VERSION: Mapping[str, int] = {**_by_key(_FIRST), **_by_key(_LATER_FIRST)}
LAST_VERSION: Mapping[str, int] = _by_key(_LAST)
# The version of the step that reads an old key; files can still have the key in much later versions.
STEP_OF: Mapping[str, int] = {
    **LAST_VERSION,
    **dict.fromkeys((*FLAT_PART_KEYS, *FLAT_EMBEDDING_KEYS, "embedding_model_names"), 1),
    **dict.fromkeys(("embeddings", "circular_mask_generation", "random_rotate_and_crop"), 2),
}
KEYS = frozenset(FIRST_VERSION) | frozenset(LAST_VERSION)
