"""OneTrainer's steps of the chain, from any version of its configs to its version 11.

They check keys alone and do nothing to a newer tree; only 3 to 4 and 8 to 9 add keys that a newer tree may lack, and
are skipped if the file is proven to be newer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from modules.config.migrations.onetrainer_keys import FIRST_VERSION, KEYS, LAST_VERSION, NEWEST, PARTS, STEP_OF
from modules.config.migrations.onetrainer_steps import (
    has_prior,
    to_1,
    to_2,
    to_3,
    to_4,
    to_5,
    to_6,
    to_7,
    to_8,
    to_9,
    to_10,
    to_11,
)
from modules.config.migrations.tree_moves import Notes, Tree, number
from modules.config.schema import Config
from modules.system.problem import Problem, quote

# Which program wrote a file, and in which version: inferred from its keys, never from its name.

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
    """Return whether a tree has an old name of the output format.

    SAFETENSORS proves nothing in a file that states a version: complete files of version 11 have it as a raw default.
    """
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


# OneTrainer's defaults that changed without a migration step: a missing key means the default of the file's version.
#
# If the version of the file is certain, the old default is written into the tree. If not, the current default is used,
# and a note reports it where it matters. This runs after the steps, on a tree with the keys of version 11. A part's
# weight dtype NONE meant float32 if the file has no dtype for the whole model. Two changes need nothing here: the old
# noising bias is restored by the step 3 to 4, and the base model's new address is the same model.


@dataclass(frozen=True, slots=True)
class _ChangedDefault:
    """A default that changed: the version, OneTrainer's path and ours, the old and the new default, and the condition
    under which a missing key matters.
    """

    in_version: int
    path: str
    ours: str
    before: Any
    now: Any
    matters: Callable[[Tree], bool]


def _lacks_cloud_create(tree: Tree) -> bool:
    cloud = tree.get("cloud")
    return isinstance(cloud, dict) and cloud.get("enabled") is True and "create" not in cloud


def _lacks_huber_delta(tree: Tree) -> bool:
    return "huber_delta" not in tree and bool(number(tree.get("huber_strength")))


def _has_no_dtype(part_name: str, tree: Tree) -> bool:
    part = tree.get(part_name)
    return isinstance(part, dict) and part.get("weight_dtype") == "NONE"


def _lacks_prior_weighting(tree: Tree) -> bool:
    return has_prior(tree) and not {"loss_weight_fn", "loss_weight_strength"} & tree.keys()


_CHANGES = (
    _ChangedDefault(3, "loss_weight_fn", "training.loss.weighting", "P2", "CONSTANT", _lacks_prior_weighting),
    _ChangedDefault(3, "loss_weight_strength", "training.loss.gamma", 1.0, 5.0, _lacks_prior_weighting),
    _ChangedDefault(9, "huber_delta", "training.loss.huber_delta", 0.1, 1.0, _lacks_huber_delta),
    *(
        _ChangedDefault(
            10, f"{name}.weight_dtype", f"parts.{name}.dtype", "FLOAT_32", "FLOAT_32", partial(_has_no_dtype, name)
        )
        for name in PARTS
    ),
    _ChangedDefault(11, "cloud.create", "onetrainer.cloud.create", True, False, _lacks_cloud_create),
)


def with_old_defaults(tree: Tree, era: Era, notes: Notes) -> Tree:
    """Return the tree with the defaults of its own version, where that version is certain and they matter."""
    result = dict(tree)
    # Conditions are checked on the original tree: a default that was just written must not affect the next.
    for change in [c for c in _CHANGES if c.matters(tree)]:
        if era.is_before(change.in_version):
            _write_default(result, change)
        elif era.may_be_before(change.in_version) and change.before != change.now:
            message = (
                f"{change.path} is not in the file. Before OneTrainer's config version {change.in_version} its "
                f"default was {change.before!r}; the current default, {change.now!r}, is used."
            )
            notes.append(Problem(change.ours, message, "info"))
    return result


def _write_default(tree: Tree, change: _ChangedDefault) -> None:
    folder, _, key = change.path.rpartition(".")
    if folder:
        tree[folder] = {**tree[folder], key: change.before}
    else:
        tree[key] = change.before


Step = Callable[[Tree, list[Problem]], Tree]

ONETRAINER_STEPS: tuple[Step, ...] = (to_1, to_2, to_3, to_4, to_5, to_6, to_7, to_8, to_9, to_10, to_11)


def to_onetrainer_11(tree: Tree, notes: list[Problem]) -> Tree:
    """Return an OneTrainer tree of any version, or without a version, at version 11.

    A version in the file decides about the defaults; keys older than that version are still migrated.
    """
    stated = _stated_version(tree, notes)
    era = era_of(tree) if stated is None else Era(stated, stated)
    oldest = first_step_for(tree)
    _report_age(stated, era, oldest, notes)
    # The last step runs on version 11 too: the raw default of its format has the old name.
    for step in ONETRAINER_STEPS[min(era.first, oldest, NEWEST - 1) :]:
        tree = step(tree, notes)
    return with_old_defaults(tree, era, notes)


def _stated_version(tree: Tree, notes: list[Problem]) -> int | None:
    """Return the version in the file; None if it is missing or invalid. Numbers in quotes are accepted."""
    given: Any = tree.get("__version")
    is_in_quotes = isinstance(given, str) and given.isdecimal() and len(given) < 10
    if is_in_quotes or (isinstance(given, float) and given.is_integer()):
        given = int(given)
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return given
    if given is not None:
        message = f"{quote(given)} is not a valid OneTrainer config version; the version is inferred from the settings."
        notes.append(Problem("", message, "warning"))
    return None


def _report_age(stated: int | None, era: Era, oldest: int, notes: list[Problem]) -> None:
    """Report the version of a file, and whether it has settings of an older version."""
    if stated is not None and stated > NEWEST:
        message = f"The file is from a newer OneTrainer (version {quote(stated)}); only known settings are loaded."
        notes.append(Problem("", message, "warning"))
        return
    if stated is None:
        versions = f"version {era.last}" if era.first == era.last else f"versions {era.first} to {era.last}"
        message = f"This OneTrainer config has no version; its settings are from {versions}. It was"
    elif oldest < stated:
        message = f"This is a OneTrainer config of version {stated} with settings of version {oldest}; it was"
    else:
        message = f"This is a OneTrainer config of version {stated}; it was"
    if min(era.last, oldest) < NEWEST:
        notes.append(Problem("", f"{message} migrated.", "info"))
