"""Keys of configs that name a secret: what is read from a file is kept without them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from modules.system.problem import Problem

WHERE_TO_IMPORT = "Tokens…, Import… in the window, or python -m trainer secrets import FILE"
_SECRET_KEY = re.compile(
    r"secrets?|(\w+_)?(password|passwd|passphrase|api_?key)|"
    r"((huggingface|hugging_face|hf|hub|access|auth|bearer|civitai|github|wandb)_)?token",
    re.IGNORECASE,
)
# Cloud settings, also of newer versions, are kept uninterpreted: none of their keys with such a name is a
# setting.
_CLOUD_KEY = re.compile(r"(\w+_)?(token|secret|passwd|passphrase|key)", re.IGNORECASE)


def without_secrets(tree: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Return a config's data without any key that names a secret, at any depth, and a note for each removed one.

    Unknown settings are kept, so an unremoved token would be kept too.
    """
    notes: list[Problem] = []
    return _sift(tree, "", notes), notes


def _sift(node: Any, path: str, notes: list[Problem]) -> Any:
    if isinstance(node, list):
        return [_sift(value, f"{path}{number}.", notes) for number, value in enumerate(node)]
    if not isinstance(node, Mapping):
        return node
    kept = {}
    for key, value in node.items():
        if not _is_secret(path, str(key)):
            kept[key] = _sift(value, f"{path}{key}.", notes)
        elif _is_set(value):
            message = "Passwords and tokens are not imported into configs."
            notes.append(Problem(f"{path}{key}", message, "info", f"Import them with {WHERE_TO_IMPORT}."))
    return kept


def _is_set(value: Any) -> bool:
    """Return whether a secret, or any of a group of them, is set; OneTrainer writes a group with all values empty."""
    if isinstance(value, Mapping):
        return any(_is_set(v) for key, v in value.items() if key != "__version" and (key, v) != ("user", "root"))
    return bool(value)


def _is_secret(path: str, key: str) -> bool:
    """Return whether a key names a secret; among cloud settings also one that names how to reach a machine."""
    if any(_SECRET_KEY.fullmatch(part) for part in key.split(".")):
        return True
    *above, name = f"{path}{key}".split(".")
    if "cloud" not in above:
        return False
    from modules.system.secrets import SECRET_NAMES  # only for a config of OneTrainer, or of a newer version

    return f"cloud.{name}" in SECRET_NAMES or _CLOUD_KEY.fullmatch(name) is not None
