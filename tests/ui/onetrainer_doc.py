"""The table of OneTrainer's config keys in docs/onetrainer.md: `python -m tests.ui.onetrainer_doc` writes it.

Where a key leads to is found by migrating it (modules/config/imports/other_names.py). Only the keys that are no single
setting of ours are listed here.
"""

from __future__ import annotations

from collections import defaultdict

from modules.config.imports.other_names import other_names
from modules.config.migrations.onetrainer_keys import KEYS
from modules.config.schema import Config
from modules.system.paths import PROGRAM_ROOT
from ui.features.search.model import Index, Match
from ui.forms.setting_pages import TOP_BAR_TITLE

DOCUMENT = PROGRAM_ROOT / "docs" / "onetrainer.md"
_HEAD = "| OneTrainer's key | here | our key |\n|---|---|---|\n"
OTHER_FAMILIES = "Of other model families; kept in the file."
_NO_DUMP = "No images of each batch; the previews of concepts and the debug bundle take their place."
_PARTS = "Model › the part's card"
_ADAPTER = "Training"

# Keys that are no single setting of ours.
ELSEWHERE = {
    "additional_embeddings": "Embeddings: the list",
    "align_prop": "Top bar › Method: AlignProp",
    "align_prop_cfg_scale": "Rewards › Method › Guidance",
    "align_prop_loss": "Rewards: the list of reward models",
    "align_prop_probability": "Rewards › Method › Reward step probability",
    "align_prop_steps": "Rewards › Method › Denoising steps",
    "align_prop_truncate_steps": "Rewards › Method › Gradient truncation",
    "align_prop_weight": "Rewards › Method › Reward loss weight",
    "async_offloading": "No effect here; kept in the file.",
    "circular_mask_generation": "Concepts: Augmentation, of each concept",
    "clear_cache_before_training": "Not needed: only what a change affects is encoded again.",
    "cloud": "A machine is a record of its own: `remote import`; kept in the file.",
    "coft_eps": f"{_ADAPTER} › Adapter type › COFT constraint",
    "continue_last_backup": "The button Resume run (F6), and the Run history page",
    "debug_dir": _NO_DUMP,
    "debug_mode": _NO_DUMP,
    "custom_learning_rate_scheduler": "Training › Learning rate › Schedule: PyTorch class",
    "embedding": "Embeddings: the list, with the training target Embedding",
    "embedding_model_names": "Embeddings: the list",
    "embeddings": "Embeddings: the list",
    "enable_activation_offloading": f"{_PARTS}: Activation offloading",
    "enable_async_offloading": "No effect here; kept in the file.",
    "extra_model_name": "Embeddings: the list",
    "gradient_accumulation_steps": "Training › Length › Accumulation steps",
    "gradient_checkpointing": f"{_PARTS}: Gradient checkpointing",
    "initial_embedding_text": "Embeddings: the list",
    "latent_caching_epochs": "Concepts: Image variations, of each concept",
    "layer_offload_fraction": f"{_PARTS}: Layer offload fraction",
    "learning_rate_cycles": "Training › Schedule › Cycles",
    "loss_function": "Training › Loss",
    "min_snr_gamma": "Training › Loss › Loss weighting: Min-SNR",
    "oft_coft": f"{_ADAPTER} › Adapter type › COFT constraint",
    "optimizer_defaults": "The settings of each optimizer are remembered when another one is chosen.",
    "lokr_weight_decompose": "Training › Adapter › DoRA, with the magnitudes of outputs",
    "quantization": "Model › Quantization",
    "random_rotate_and_crop": "Concepts: Augmentation, of each concept",
    "rescale_noise_scheduler_to_zero_terminal_snr": "Model › Base model › Zero terminal SNR, and Prediction type",
    "rolling_backup": "Output & backups › Backups › Rolling backups",
    "samples": "Sampling: the list of prompts",
    "save_after": "Output & backups › Saves › Save every",
    "save_every": "Output & backups › Saves › Save every",
    "scheduler_params": "Training › Learning rate › Schedule: PyTorch class",
    "secrets": "Model: the button Tokens…; never in a config",
    "sequential_model_setup": "No effect here; kept in the file.",
    "tensorboard_always_on": "General: Always-on TensorBoard",
    "tensorboard_expose": "General: Expose TensorBoard",
    "tensorboard_port": "General: TensorBoard port",
    "text_encoder": "Model › Text encoder",
    "text_encoder_2": "Model › the second text encoder (Stable Diffusion XL and 3, FLUX.1)",
    "text_encoder_2_learning_rate": "Model › the second text encoder (Stable Diffusion XL and 3, FLUX.1)",
    "text_encoder_2_weight_dtype": "Model › the second text encoder (Stable Diffusion XL and 3, FLUX.1)",
    "text_encoder_3": "Model › the third text encoder (Stable Diffusion 3); `include` is Use",
    "token_count": "Embeddings: the list",
    "train_text_encoder_2": "Model › the second text encoder (Stable Diffusion XL and 3, FLUX.1)",
    "train_text_encoder_2_epochs": "Model › the second text encoder (Stable Diffusion XL and 3, FLUX.1)",
    **dict.fromkeys(("layer_filter", "lora_layers"), "Training › Training target › Layer names"),  # and Layer filter
    "dynamic_timestep_shifting": "Training › Timesteps › Dynamic shift (FLUX, Qwen-Image, Krea 2); kept for others",
    "text_encoder_sequence_length": "Model › Base model › Text tokens (FLUX.2); kept in the file for others",
    "text_encoder_2_sequence_length": "Model › Base model › T5 tokens (FLUX.1); kept in the file for others",
    "transformer": "Model › the transformer (flow models)",
    "unet": "Model › UNet",
    "unmasked_probability": "Data › Masks › Unmasked probability",
    "vae": "Model › VAE",
    "weight_dtype": f"{_PARTS}: Weight dtype",
    **dict.fromkeys(
        (
            "frames", "sample_audio_format", "sample_video_format", "text_encoder_3_layer_skip", "text_encoder_4",
            "text_encoder_4_layer_skip", "text_encoder_sequence_length", "unconditional_transformer",
            "vb_loss_strength",
        ),
        OTHER_FAMILIES,
    ),
    **{
        key: OTHER_FAMILIES
        for key in KEYS
        if key.startswith(("decoder", "effnet_encoder", "prior", "train_prior"))
    },
}  # fmt: skip


def key_rows() -> list[str]:
    """Return the lines of the table, one for each key that any version of OneTrainer wrote."""
    matches = places(Config())
    paths: defaultdict[str, list[str]] = defaultdict(list)
    for path, names in other_names().items():
        for name in names:
            if name.program == "OneTrainer":
                paths[name.key].append(path)
    rows = []
    for key in sorted(KEYS):
        if key in ELSEWHERE:
            rows.append(f"| `{key}` | {ELSEWHERE[key]} |  |")
            continue
        (path,) = paths[key]  # a key that is no single setting must be in ELSEWHERE
        rows.append(f"| `{key}` | {place_of(matches[path])} | `{path}` |")
    return rows


def places(config: Config) -> dict[str, Match]:
    """Return what Find shows of each setting, by path."""
    found: dict[str, Match] = {}
    for entry in Index(config)._entries:  # also those that do not apply now
        found.setdefault(entry.match.path, entry.match)
    return found


def place_of(match: Match) -> str:
    """Return page, card and label of a setting; a choice of the top bar is its own card."""
    return match.place if match.place.startswith(TOP_BAR_TITLE) else f"{match.place} › {match.label}"


def with_keys(document: str) -> str:
    """Return the document with the current table."""
    before, _, _ = document.partition(_HEAD)
    return before + _HEAD + "\n".join(key_rows()) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(with_keys(DOCUMENT.read_text("utf-8")), "utf-8")
