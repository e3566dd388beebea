"""Which program wrote a file, and in which version: inferred from its keys, never from its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from modules.config.migrations.onetrainer_keys import FIRST_VERSION, KEYS, LAST_VERSION, NEWEST, PARTS, STEP_OF
from modules.config.schema import Config

Tree = dict[str, Any]

_OURS = Config.model_fields.keys() - KEYS
# Settings of kohya's scripts, which share many plain keys (resolution, learning_rate) with OneTrainer.
_KOHYA = frozenset({
    "pretrained_model_name_or_path", "train_data_dir", "reg_data_dir", "LoRA_type", "train_batch_size", "network_dim",
    "network_alpha", "network_module", "network_args", "optimizer_type", "lr_scheduler", "max_resolution", "unet_lr",
    "text_encoder_lr", "mixed_precision", "save_precision", "max_train_steps", "max_train_epochs", "output_name",
    "output_dir", "logging_dir", "caption_extension", "dataset_config", "sdxl", "v2",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Era:
    """The range of OneTrainer config versions, first to last, in which a file can have been written."""

    first: int
    last: int

    def is_before(self, version: int) -> bool:
        """Return whether the file is certainly older than a version."""
        return self.last < version

    def may_be_before(self, version: int) -> bool:
        """Return whether the file may be older than a version."""
        return self.first < version


def has_onetrainer_keys(tree: Tree) -> bool:
    """Return whether a tree without a version of ours is OneTrainer's: it has a `__version`, or any of its keys.

    Files of kohya's scripts share some keys; they and ours are recognized by keys that OneTrainer does not have.
    """
    if "__version" in tree:
        return True
    if any(key in _KOHYA or key.startswith("ss_") for key in tree):
        return False
    if any(isinstance(tree.get(key), dict) for key in (*_OURS, "validation")):
        return False
    return any(_is_theirs(key, value) for key, value in tree.items())


def era_of(tree: Tree) -> Era:
    """Return the range of versions inferred from the keys of a tree, regardless of the version it states.

    If keys contradict each other (a file edited by hand), the range covers all the versions between them.
    """
    first, last = max(_firsts(tree), default=0), _oldest_of(tree, LAST_VERSION)
    return Era(min(first, last), max(first, last))


def first_step_for(tree: Tree) -> int:
    """Return the version at which the migration has to start because of the oldest key of a tree."""
    return _oldest_of(tree, STEP_OF)


def _oldest_of(tree: Tree, versions: Mapping[str, int]) -> int:
    by_key = [0 if _is_flat_optimizer_key(key) else versions.get(key, NEWEST) for key in tree]
    return min([NEWEST, *by_key, *(last for proof, _, last in _PROOFS if proof(tree))])


def _firsts(tree: Tree) -> list[int]:
    by_key = [
        FIRST_VERSION[k] for k, v in tree.items() if k in FIRST_VERSION and (k not in PARTS or isinstance(v, dict))
    ]
    return by_key + [first for proof, first, _ in _PROOFS if proof(tree)]


def _is_theirs(key: str, value: object) -> bool:
    if key == "validation":
        return isinstance(value, bool)
    return key in KEYS or key in LAST_VERSION or _is_flat_optimizer_key(key)


def _is_flat_optimizer_key(key: str) -> bool:
    return key.startswith("optimizer_") and key != "optimizer_defaults"


def _has_new_format(tree: Tree) -> bool:
    name = tree.get("output_model_format")
    return isinstance(name, str) and (name.endswith("_LORA") or name in ("ORIGINAL_SINGLE_FILE", "LEGACY_SAFETENSORS"))


def _has_old_format(tree: Tree) -> bool:
    """A file that states version 11 has SAFETENSORS as its raw default; a sparse file contains no defaults."""
    name = tree.get("output_model_format")
    is_stated = name == "SAFETENSORS" and tree.get("training_method") != "EMBEDDING" and "__version" not in tree
    return name == "CKPT" or is_stated


def _has_part_key(tree: Tree, *keys: str) -> bool:
    return any(key in part for name in PARTS if isinstance(part := tree.get(name), dict) for key in keys)


def _optimizer_has(tree: Tree, *keys: str) -> bool:
    optimizer = tree.get("optimizer")
    return isinstance(optimizer, dict) and any(key in optimizer for key in keys)


# Evidence beyond single keys: a condition, and the first and the last version in which it can hold.
_PROOFS: tuple[tuple[Callable[[Tree], bool], int, int], ...] = (
    (lambda t: isinstance(t.get("optimizer"), str), 0, 0),
    (lambda t: isinstance(t.get("gradient_checkpointing"), bool), 0, 4),
    (lambda t: isinstance(t.get("gradient_checkpointing"), str), 5, 10),
    (lambda t: t.get("attention_mechanism") in ("DEFAULT", "XFORMERS"), 0, 6),
    (lambda t: "lora_layer_preset" in t and t["lora_layer_preset"] is None, 3, 6),
    (_has_old_format, 0, 10),
    (_has_new_format, 11, NEWEST),
    (lambda t: isinstance(t.get("validation"), bool), 4, NEWEST),
    (lambda t: _has_part_key(t, "gradient_checkpointing", "offload_fraction", "activation_offloading"), 11, NEWEST),
    (lambda t: _has_part_key(t, "guidance_scale"), 5, NEWEST),
    (lambda t: _has_part_key(t, "attention_mask"), 3, NEWEST),
    (lambda t: _optimizer_has(t, "use_muon_pp", "use_focus"), 6, 8),
    (lambda t: _optimizer_has(t, "cautious_mask", "grams_moment"), 6, 10),
    (lambda t: _optimizer_has(t, "muon_adam_config", "normuon_variant"), 9, NEWEST),
)
