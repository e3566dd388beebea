"""Every number, switch, text and time of the forms: changed, the run changes, or the check or the form says so.

Choices are tried by test_choices, the fields of optimizers by test_every_optimizer, those of schedules by
test_schedules. What changes nothing by its nature is in `WITHOUT_RESULT`, with the test that shows its effect.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from modules.config.records import is_reachable
from modules.config.schema import Config
from modules.settings.edit import get_path, live_records
from modules.settings.field import FieldRecord
from tests.builders.effects import (
    SHORT,
    SHORT_CHAIN,
    SHORT_DDPO,
    TAG_DROPOUT,
    TWO_LINES,
    config_of_everything,
    draw_everything,
    in_force,
    offered,
    told_by_run,
    with_value,
)
from tests.builders.images import draw_folder
from tests.builders.models import write_inpainting_folder
from tests.builders.pairs import draw_pairs
from trainer.methods import choosing
from trainer.preflight import check
from trainer.run_folder.choices import Answer

KINDS = ("int", "float", "bool", "text", "every", "int_list", "resolutions")
OF_OTHER_TESTS = ("training.optimizer.", "training.schedule.")
WORD = {"embeddings.words": [{"placeholder": "<disc>"}], "concepts.0.text.prefix": "a <disc>,"}
SDXL = {"model.family": "sdxl", "model.base_model": "@sdxl"}
INPAINTING = {"model.variant": "inpainting", "model.base_model": "@inpainting", "sampling.at_end": False}
IMAGES = ("base_image", "mask_image")
MASKED = {"masks.enabled": True}
STEP, NEVER = {"n": 1, "unit": "step"}, {"n": 1, "unit": "never"}
ONLY_THE_UNET = {"parts.text_encoder.train": False}
NFLOAT4 = {"parts.unet.dtype": "nfloat4"}
SVD = {**NFLOAT4, "quantization.svd_dtype": "float32"}
MEASURED = {"training.method": SHORT_CHAIN, "reward.measure_every": STEP}

WITHOUT_RESULT = {
    "training.method.positive_words": "a reward that reads the prompt: test_direct_align",
    "training.method.negative_words": "a reward that reads the prompt: test_direct_align",
    "general.workspace_dir": "where runs lie: test_run_folder",
    "general.cache_dir": "where caches lie: test_cache_reuse",
    "general.notes": "for the reader: test_embedded_config",
    "general.tensorboard": "what is drawn: test_tensorboard",
    "general.tensorboard_always_on": "what is drawn: tests/ui, test_tensorboard",
    "general.tensorboard_port": "what is drawn: test_tensorboard",
    "general.tensorboard_expose": "what is drawn: test_tensorboard",
    "general.separate_process": "where the run trains: tests/ui, test_leaving_a_run",
    "general.num_threads": "speed, up to rounding: test_start_of_a_run",
    "general.deterministic": "a processor computes the same twice: test_deterministic",
    "general.only_cache": "fills the caches and trains nothing: test_one_scan",
    "general.debug_checks": "looks for values that are not finite: test_run",
    "model.compile": "speed: test_compile",
    "training.cuda_graphs": "speed, on GPUs: test_graphs",
    "model.offline": "all is here already: test_loading",
    "model.hub_cache_dir": "where downloads lie: test_hub_datasets",
    "parts.unet.offload_activations": "memory: test_checkpointing",
    "parts.text_encoder.offload_activations": "memory: test_checkpointing",
    "parts.vae.offload_activations": "memory: test_checkpointing",
    "parts.unet.offload_fraction": "memory: test_layer_offload",
    "parts.text_encoder.offload_fraction": "memory: test_layer_offload",
    "parts.vae.offload_fraction": "memory: test_layer_offload",
    "quantization.cache_dir": "where quantized weights lie: test_quantization",
    "data.latent_cache": "speed: test_cache_settings",
    "data.text_cache": "speed: test_cache_settings",
    "data.verify_cache": "reads what is cached once more: test_cache_reuse",
    "data.loader_threads": "speed: test_loader",
    "concepts.0.name": "for the reader: test_scan",
    "training.max_consecutive_skipped_steps": "nothing is skipped here: test_run",
    "training.autocast_cache": "speed: test_autocast_cache",
    "adapter.vec_trick": "speed, up to rounding: test_lokr",
    "sampling.to_tensorboard": "what is drawn: test_sampling_times",
    "multi_gpu.device_indexes": "of several processes: test_several_processes",
    "multi_gpu.fused_reduce": "of several processes: test_several_processes",
    "multi_gpu.async_reduce": "of several processes: test_several_processes",
    "multi_gpu.async_reduce_buffer_mb": "of several processes: test_several_processes",
    "embeddings.words.0.uuid": "names files in backups: test_embeddings",
    "concepts_file": "where a list lies: test_list_files",
    "sampling.prompts_file": "where a list lies: test_list_files",
    "reward.min_diversity": "ends a run whose images have become alike, which a short one does not: test_guards",
    "output.never_replace": "what becomes of an older result: test_destinations",
    **dict.fromkeys(
        (
            f"concepts.0.text.{name}"
            for name in ("capitalization_modes", "capitalization_probability", "lowercase_first")
        ),
        "CLIP reads all text in lower case, which the check says of the switch: test_caption_setting_rules",
    ),
}
# Fields whose surroundings need what is not here, so that the check refuses them before; with the test that has it.
ELSEWHERE = {
    "concepts.0.captions_file": "test_one_scan",
    "data.fixed_width_px": "test_buckets",
    "data.fixed_height_px": "test_buckets",
    **dict.fromkeys(
        (f"training.method.{name}" for name in ("beta", "label_smoothing", "sft_weight", "mapo_beta")), "test_dpo"
    ),
    "training.method.target_margin": "test_generation_noise",
    "model.family.guidance": "test_flux",
    "model.family.text_tokens": "test_sd3",
    "model.family.train_conditioner": "test_anima",
    "model.family.decoder": "test_stable_cascade",
    "model.family.effnet_encoder": "test_stable_cascade",
    "training.vae.vgg_file": "test_perceptual",
    "training.vae.lpips_file": "test_perceptual",
    "training.noise.noising_weight": "test_noise_settings",
    "training.noise.noising_bias": "test_noise_settings",
    "adapter.custom_layers": "test_lora_options",
    "adapter.layers_regex": "test_lora_options",
    **dict.fromkeys(
        (f"reward.models.0.{name}" for name in ("jpeg_quality", "file", "clip_model", "vocabulary")),
        "test_reward_scorers",
    ),
    **dict.fromkeys(
        (f"reward.models.0.{name}" for name in ("address", "model_name", "rubric", "highest_score")),
        "test_reward_servers",
    ),
    "reward.models.0.retry_minutes": "test_reward_servers",
    "reward.models.0.timeout_seconds": "test_reward_servers, test_user_reward_process",
    **dict.fromkeys(
        (f"sampling.prompts.0.{name}" for name in ("inpainting", "base_image", "mask_image", "depth_image")),
        "test_inpainting_models, test_depth_models",
    ),
    "sampling.prompts.0.reference_image": "test_editing_models",
    "sampling.prompts.0.reference_image_2": "test_several_references",
    "sampling.prompts.0.reference_image_3": "test_several_references",
    "data.reference_size": "test_several_references",
    "concepts.0.image.conditioning_folder": "test_editing_models",
    "concepts.0.image.conditioning_folder_2": "test_several_references",
    "concepts.0.image.conditioning_folder_3": "test_several_references",
    "concepts.0.image.conditioning_columns": "test_references",
}
# Values where another number than the default's half or one and a half of it is wanted, or any text.
VALUES: dict[str, Any] = {
    "training.method.divergence_limit": 1e-12,
    "general.train_device": "cuda:99",
    "general.temp_device": "cuda:99",
    "model.base_model": "nowhere/model",
    "model.training_adapter": "nowhere.safetensors",
    "sampling.model": "nowhere.safetensors",
    "model.family.clip_skip": 1,
    "model.family.clip_skip_2": 1,
    "parts.unet.stop_after": STEP,
    "parts.text_encoder.stop_after": STEP,
    "parts.vae.stop_after": STEP,
    "quantization.custom_layers": "attn1",
    "quantization.svd_rank": 1,
    "data.resolution_px": [96, "64x80"],
    "masks.unmasked_probability": 1.0,
    "data.fixed_width_px": 80,
    "data.fixed_height_px": 80,
    "data.max_aspect_ratio": 1.2,
    "data.bucket_step_px": 32,
    "data.min_side_px": 80,
    "data.caption_dropout": 0.9,
    "data.caption_dropout_2": 0.9,
    "data.caption_dropout_3": 0.9,
    "masks.prior_preservation_weight": 0.5,
    "concepts.0.path": "@clear",
    "concepts.0.excluded": "000.png",
    "concepts.0.captions_file": "nowhere.txt",
    "concepts.0.metadata_file": "nowhere.csv",
    "concepts.0.caption_columns": "shape",
    "concepts.0.fixed_caption": "a wheel",
    "concepts.0.samples_per_epoch": 2,
    "concepts.0.repeats": 2.0,
    "concepts.0.image_variations": 2,
    "concepts.0.text_variations": 2,
    "concepts.0.seed": 7,
    "concepts.0.background": "#ff0000",
    "concepts.0.image.rotate_max_degrees": 20.0,
    "concepts.0.image.masks_folder": "nowhere",
    "concepts.0.image.conditioning_folder": "nowhere",
    "concepts.0.image.conditioning_folder_2": "nowhere",
    "concepts.0.image.conditioning_folder_3": "nowhere",
    "concepts.0.image.conditioning_columns": "control",
    "concepts.0.image.resolution_px": ["80x64"],
    "concepts.0.text.replacements": "round => square",
    "concepts.0.text.tag_delimiter": "o",
    "concepts.0.text.keep_tags_count": 3,
    "concepts.0.text.keep_tags_separator": "round",
    "concepts.0.text.tag_group_separator": "round",
    "concepts.0.text.special_tags": "red, small",
    "concepts.0.text.capitalization_modes": "title",
    "concepts.0.text.trigger_word": "sks",
    "concepts.0.text.prefix": "a photo of",
    "concepts.0.text.suffix": ", best quality",
    "training.layer_filter_names": "attn1",
    "training.vae.vgg_file": "nowhere.safetensors",
    "training.vae.lpips_file": "nowhere.safetensors",
    "training.noise.offset_adaptive_scale": 0.5,
    "training.noise.pyramid_iterations": 4,
    "training.noise.noising_bias": 0.5,
    "training.noise.noising_weight": 1.5,
    "training.noise.shift": 3.0,
    "training.clip_grad_norm": 1e-4,
    "training.ema.decay": 0.1,  # a larger one is not reached in a few steps
    "training.method.size": "80x64",
    "training.method.target_reward": 0.9,
    "training.method.tracker_size": 2,
    "training.method.tracker_min_count": 5,
    "training.method.window_every": 1,
    "training.method.shown_candidates": 3,
    "training.method.max_timestep": 400,
    "training.method.clip_range": 0.5,
    "training.method.advantage_clip": 0.5,
    "adapter.lora_plus_ratio": 4.0,
    "adapter.custom_layers": "attn1",
    "adapter.layer_ranks": "attn1: 1",
    "adapter.start_from": "nowhere.safetensors",
    "adapter.conv_rank": 1,
    "adapter.max_norm": 0.001,
    "adapter.factor": 2,
    "adapter.block_size": 4,
    "adapter.constraint": 1e-4,
    "embeddings.words.0.placeholder": "<wheel>",
    "embeddings.words.0.initial_text": "wheel",
    "embeddings.words.0.token_count": 2,
    "embeddings.words.0.file": "nowhere.safetensors",
    **{f"parts.{part}.file": "nowhere.safetensors" for part in ("unet", "text_encoder", "vae")},
    "embeddings.words.0.stop_after": STEP,
    "reward.measure_every": STEP,
    "reward.num_images": 2,
    "reward.early_stopping_patience": 1,
    "reward.stop_at_reward": -1000.0,
    "reward.max_kl": 1e-9,
    "reward.guard_steps": 1,
    "reward.models.0.file": "nowhere.safetensors",
    "reward.models.0.clip_model": "nowhere",
    "reward.models.0.vocabulary": "nowhere",
    "reward.models.0.colour": "#00ff00",
    "validation.every": STEP,
    "validation.early_stopping_patience": 1,
    "sampling.every": STEP,
    "sampling.skip_first": {"n": 2, "unit": "step"},
    "sampling.wildcards_dir": "@wildcards",
    "sampling.prompts.0.prompt": "a wheel",
    "sampling.prompts.0.negative_prompt": "a wheel",
    "sampling.prompts.0.width_px": 96,
    "sampling.prompts.0.height_px": 96,
    "sampling.prompts.0.base_image": "nowhere.png",
    "sampling.prompts.0.mask_image": "nowhere.png",
    "sampling.prompts.0.depth_image": "nowhere.png",
    "sampling.prompts.0.reference_image": "nowhere.png",
    "sampling.prompts.0.reference_image_2": "nowhere.png",
    "sampling.prompts.0.reference_image_3": "nowhere.png",
    "backup.every": STEP,
    "backup.keep": 1,
    "backup.save_every": STEP,
    "backup.save_skip_first": {"n": 2, "unit": "step"},
    "backup.save_prefix": "mine",
    "output.destination": "@elsewhere",
    "output.trigger_words": "sks",
}
# What a setting asks for beside it, where its condition alone is not enough to show it.
BESIDE: dict[str, dict[str, Any]] = {
    "model.family.clip_skip_2": SDXL,
    "data.caption_dropout_2": SDXL,
    "data.caption_dropout_3": {"model.family": "sd3", "model.base_model": "@sd3"},
    "quantization.custom_layers": NFLOAT4,
    "quantization.layers_regex": {**NFLOAT4, "quantization.custom_layers": ".n"},
    "quantization.svd_rank": SVD,
    "data.max_aspect_ratio": {},
    "data.never_upscale": {"data.resolution_px": [96]},
    "data.fixed_width_px": {"data.fixed_height_px": 64},
    "data.fixed_height_px": {"data.fixed_width_px": 64},
    "masks.unmasked_probability": MASKED,
    "masks.custom_conditioning_image": INPAINTING,
    "concepts.0.caption_columns": {"concepts.0.caption_source": "metadata"},
    "concepts.0.image_variations": {"concepts.0.image.crop_jitter": True, "parts.vae.train": False},
    "concepts.0.text_variations": {**ONLY_THE_UNET, "concepts.0.text.shuffle_tags": True},
    "concepts.0.seed": {"concepts.0.text.shuffle_tags": True},
    "concepts.0.background": {"concepts.0.path": "@clear"},
    "concepts.0.image.circular_mask_shrink": MASKED,
    "concepts.0.image.mask_rotate_crop": MASKED,
    "concepts.0.text.tag_delimiter": {"concepts.0.text.shuffle_tags": True},
    "concepts.0.text.keep_tags_count": {"concepts.0.text.shuffle_tags": True},
    "concepts.0.text.tag_dropout": {"concepts.0.text.tag_dropout_probability": 0.7},
    "concepts.0.text.special_tags": {**TAG_DROPOUT, "concepts.0.text.special_tags_mode": "blacklist"},
    "concepts.0.text.special_tags_regex": {
        **TAG_DROPOUT,
        "concepts.0.text.special_tags_mode": "whitelist",
        "concepts.0.text.special_tags": "r.*, an.*",
    },
    "concepts.0.text.randomize_capitalization": {"concepts.0.text.capitalization_probability": 1.0},
    "training.layer_filter_names": {"training.trains": "full"},
    "training.layer_filter_regex": {"training.trains": "full", "training.layer_filter_names": ".a"},
    "adapter.layers_regex": {"adapter.custom_layers": "attn1, attn\\d"},
    **{f"adapter.{name}": {"adapter.layers": "all"} for name in ("conv_rank", "conv_alpha", "use_tucker")},
    **{
        f"adapter.{name}[lokr]": {"adapter.layers": "all", "adapter.rank": 1, "adapter.conv_rank": 1}
        for name in (
            "alpha",
            "full_matrix",
            "decompose_both",
            "conv_alpha",
            "use_tucker",
        )
    },
    **{
        f"adapter.{name}[lokr]": {"adapter.layers": "all", "adapter.rank": 2}
        for name in ("conv_rank", "rank_stabilized")
    },
    "adapter.bundle_embeddings": WORD,
    "embeddings": WORD,
    "embeddings.words.0.learning_rate": WORD,
    "training.vae.kl_strength": {"training.trains": "vae", "training.vae.decoder_only": False},
    "training.vae": {"training.trains": "vae"},
    "training.vae.vgg_file": {"training.trains": "vae", "training.vae.perceptual_strength": 1.0},
    "training.vae.lpips_file": {"training.trains": "vae", "training.vae.perceptual_strength": 1.0},
    "training.noise.pyramid_discount": {"training.noise.pyramid_iterations": 4},
    "training.noise.offset_random_strength": {"training.noise.offset_weight": 0.5},
    "training.noise.generalized_offset": {"training.noise.offset_weight": 0.5},
    "training.noise.input_perturbation_random_strength": {"training.noise.input_perturbation": 0.5},
    "training.loss.mix.huber.delta": {"training.loss.mix.huber.strength": 1.0},
    "training.loss.mix.smooth_l1.delta": {"training.loss.mix.smooth_l1.strength": 1.0},
    "reward": MEASURED,
    "reward.measure_every": {"training.method": SHORT_CHAIN},
    "reward.max_kl": {"training.method": {**SHORT_DDPO, "kl_weight": 0.01}, "reward.guard_steps": 1},
    "reward.guard_steps": {"training.method": {**SHORT_DDPO, "kl_weight": 0.01}, "reward.max_kl": 1e-9},
    "reward.early_stopping_patience": {**MEASURED, "training.learning_rate": 1e-12},
    "reward.models.0": {"training.method": SHORT_CHAIN},
    "sampling.skip_first": {"sampling.every": STEP},
    "sampling.wildcards_dir": {"sampling.prompts.0.prompt": "a __shape__"},
    "sampling.prompts.0.seed": {},
    **{f"sampling.prompts.0.{name}": {**INPAINTING, "sampling.prompts.0.inpainting": True} for name in IMAGES},
    "backup.keep": {"backup.every": STEP},
    "backup.save_skip_first": {"backup.save_every": STEP},
    "backup.save_prefix": {"backup.save_every": STEP},
    "validation.early_stopping_patience": {"validation.every": STEP, "training.learning_rate": 1e-12},
    "validation.keep_best": {},
    "training.method.pairs_per_update[online_dpo]": {"training.method.pairs_per_update": 0, "training.batch_size": 2},
    **{
        f"training.method.{name}[ddpo]": {
            "concepts.0.caption_source": "fixed_text",
            "concepts.0.fixed_caption": "a disc",
        }
        for name in ("tracker_size", "tracker_min_count")
    },
    **{f"training.method.clip_range[{name}]": {"training.method.inner_epochs": 2} for name in ("ddpo", "grpo")},
    **{
        f"training.method.divergence_limit[{name}]": {
            "training.method.inner_epochs": 2,
            "training.method.trust_region": "divergence",
            "training.method.divergence_limit": 1.0,
        }
        for name in ("ddpo", "grpo")
    },
    "training.method.min_timestep[alignprop]": {"training.method.steps": 12},
    "training.method.window_every[grpo]": {"training.method.timesteps": "window"},
}


@pytest.fixture(autouse=True)
def person(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person who prefers the second image, at once."""
    monkeypatch.setattr(choosing, "answer_of", lambda request: Answer("chosen", best=1, worst=0))


@pytest.fixture(scope="module")
def base(tiny_sd: Path, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A run in which every setting has something to work on."""
    folder = tmp_path_factory.mktemp("settings")
    draw_everything(folder)
    draw_folder(folder / "named discs" / "more", sizes=[(64, 64)], captions=TWO_LINES)
    rows = [f"{number:03}.png,a disc {number},a wheel {number}" for number in range(3)]
    (folder / "named discs" / "metadata.csv").write_text("\n".join(["file_name,text,shape", *rows]))
    clear = draw_folder(folder / "clear", sizes=[(64, 64)] * 2, captions=TWO_LINES)
    for file in clear.glob("*.png"):
        image = Image.open(file).convert("RGBA")
        image.putalpha(100)
        image.save(file)
    draw_pairs(folder / "pairs", sizes=[(64, 64)] * 3)
    (folder / "wildcards").mkdir()
    (folder / "wildcards" / "shape.txt").write_text("wheel\n")
    return config_of_everything(folder, tiny_sd)


@pytest.fixture(scope="module")
def places(
    base: Config, tiny_sd: Path, tiny_sdxl: Path, tiny_sd3: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """The paths that stand for the names after an @."""
    folder = Path(base.concepts[0].path).parent
    inside = {f"@{name}": str(folder / name) for name in ("pairs", "clear", "wildcards")}
    inpainting = write_inpainting_folder(tmp_path_factory.mktemp("models") / "inpainting", tiny_sd)
    elsewhere = str(folder / "elsewhere.safetensors")
    return {
        **inside,
        "@sdxl": str(tiny_sdxl),
        "@sd3": str(tiny_sd3),
        "@inpainting": str(inpainting),
        "@elsewhere": elsewhere,
    }


Fields = dict[str, tuple[Config, FieldRecord]]


def fields_of(base: Config) -> Fields:
    """Every field that a form offers, by its path and the variant that it is one of, with the config it is seen in."""
    found: Fields = {}
    for config in (base, with_value(base, "embeddings.words", WORD["embeddings.words"])):
        for seen_in, record in offered(config):
            if record.kind not in KINDS or record.choices or record.path.startswith(OF_OTHER_TESTS):
                continue
            found.setdefault(f"{record.path}{variant_of(seen_in, record)}", (seen_in, record))
    return {key: field for key, field in found.items() if is_shown(*field)}


def variant_of(seen_in: Config, record: FieldRecord) -> str:
    for path in ("training.method", "adapter"):
        if record.path.startswith(f"{path}."):
            name = getattr(get_path(seen_in, path), "name", "")
            return f"[{name}]" if name else ""
    return ""


def is_shown(seen_in: Config, record: FieldRecord) -> bool:
    """Whether the form has it: not the training of a part that is never trained, nor the use of one that all have."""
    setting = record.setting
    depends_on_part = setting.only_if_trainable or setting.only_if_optional or setting.only_if_reads_file
    return not depends_on_part or record.path in {r.path for r in live_records(seen_in)}


FIELDS = fields_of(config_of_everything(Path("folder"), Path("model")))


def placed(value: Any, places: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {name: placed(inner, places) for name, inner in value.items()}
    if isinstance(value, list):
        return [placed(inner, places) for inner in value]
    return places.get(value, value) if isinstance(value, str) else value


def with_beside(config: Config, record: FieldRecord, places: dict[str, str]) -> Config:
    """The config in which a field counts."""
    path = record.path
    beside: dict[str, Any] = {}
    if path.startswith("training.method."):
        name = config.training.method.name
        beside = {"training.method": SHORT.get(name, name)}
        if name == "dpo":
            beside["concepts"] = [{"path": "@pairs", "kind": "pairs"}]
        beside |= BESIDE.get(f"{path}[{name}]", {})
    elif f"{path}{variant_of(config, record)}" in BESIDE:
        beside = BESIDE[f"{path}{variant_of(config, record)}"]
    else:
        while path and path not in BESIDE:
            path = path.rpartition(".")[0]
        beside = BESIDE.get(path, {})
    beside = {name: placed(value, places) for name, value in beside.items()}
    config = in_force(laid_on(config, beside), record)
    # Again: what the field waits for may have brought values of its own. Not the method that it is a field of.
    return laid_on(config, {name: v for name, v in beside.items() if not record.path.startswith(f"{name}.")})


def laid_on(config: Config, values: dict[str, Any]) -> Config:
    for path, value in values.items():
        config = with_value(config, path, value)
    return config


def another_value(config: Config, record: FieldRecord) -> Any:
    """A value within the limits that differs from the one in the config."""
    now = get_path(config, record.path)
    if record.path in VALUES:
        return VALUES[record.path] if plain(now) != VALUES[record.path] else plain(record.default)
    if record.kind == "bool":
        return not now
    assert record.kind in ("int", "float"), f"{record.path} has no value in VALUES"
    usual = now if now is not None else record.default or 0
    tried = (usual * 1.5, usual / 2, 0.5, 1, 2, 0.1)
    whole = int if record.kind == "int" else float
    return next(v for v in map(whole, tried) if v != now and is_allowed(record, v))


def plain(value: Any) -> Any:
    return value.model_dump() if hasattr(value, "model_dump") else list(value) if isinstance(value, tuple) else value


def is_allowed(record: FieldRecord, value: float) -> bool:
    above = record.lo is None or value > record.lo or (value == record.lo and not record.lo_is_open)
    below = record.hi is None or value < record.hi or (value == record.hi and not record.hi_is_open)
    return above and below and not (record.step and value % record.step)


def named(before: Config, changed: Config, record: FieldRecord) -> bool:
    """Whether the check of the changed config says something of the field that it did not say before, or refuses it."""
    known = {(p.path, p.message) for p in check(before).problems}
    new = [p for p in check(changed).problems if (p.path, p.message) not in known]
    return any(p.severity == "error" or p.path == record.path or record.label in p.message for p in new)


@pytest.mark.daily(3)
@pytest.mark.parametrize("key", [key for key, (_, r) in FIELDS.items() if r.path not in WITHOUT_RESULT])
def test_every_setting_does_something_or_is_named(base: Config, places: dict[str, str], key: str) -> None:
    seen_in, record = fields_of(base)[key]
    before = with_beside(seen_in, record, places)
    if errors := check(before).errors:
        assert record.path in ELSEWHERE, errors
        return
    assert is_reachable(before, record)
    changed = with_value(before, record.path, placed(another_value(before, record), places))
    assert named(before, changed, record) or told_by_run(changed) != told_by_run(before)
