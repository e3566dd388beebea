"""A file whose UNet replaces the model's own: its tensors under our names, and those that are packed. Torch-free.

The UNet is in the original layout, with or without a prefix, or in diffusers' layout; other parts in the file are not
used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from modules.families.parts.single_file.layouts import unet_slots
from modules.families.parts.single_file.models import UNET_PREFIX, left_over_names, missing_names, original_names
from modules.families.parts.single_file.record import PartLayout
from modules.formats.checkpoint_header import read_checkpoint_header
from modules.formats.gguf_header import GgufTensor
from modules.system.errors import DarkroomError

_DIFFUSERS_PREFIX = "unet."
_MARKS = (".input_blocks.0.0.", ".mid_block.resnets.0.time_emb_proj.")  # a VAE has no embeddings of timesteps


def has_unet(names: Iterable[str]) -> bool:
    """Return whether a file with tensors of these names contains a UNet in either layout."""
    return any(part in f".{name}" for name in names for part in _MARKS)


def unet_names(names: Iterable[str], config: Mapping[str, Any], *, where: str) -> dict[str, str]:
    """Return the name in a file of each tensor of a UNet with this config: `{ours: name in the file}`.

    `where` names the file in messages. Raises DarkroomError where it has not exactly the tensors of that UNet.
    """
    own = {name.removeprefix(_DIFFUSERS_PREFIX): name for name in names}
    slots = unet_slots(config)
    if any(name.startswith("down_blocks.") for name in own):
        missing = sorted({s.key for s in slots} - own.keys())
        extra: list[str] = []
        found = {s.key: own.get(s.key, "") for s in slots}
    else:
        layout = PartLayout("unet", UNET_PREFIX, slots)
        own = original_names(own.values())
        missing, extra = missing_names(layout, own), left_over_names(layout, own)
        found = {s.key: own.get(f"{UNET_PREFIX}{s.original}", "") for s in slots}
    if missing or extra:
        what = f"lacks {len(missing)} of its weights" if missing else f"has {len(extra)} other weights"
        raise DarkroomError(
            f"The UNet in {where} does not fit the base model's: it {what}; the first is {(missing or extra)[0]}.",
            advice="Choose a UNet of the base model's family and variant.",
        )
    return found


def packed_layers(path: Path, config: Mapping[str, Any]) -> dict[str, GgufTensor]:
    """Return the linear layers of the UNet in a file whose weights are packed in blocks, by name; none without any.

    Raises DarkroomError as `unet_names` does, and UnreadableFileError for a file that cannot be read.
    """
    header = read_checkpoint_header(path)
    if header.container != "gguf":
        return {}
    found = {}
    for ours, name in unet_names(header.shapes, config, where=path.name).items():
        entry = header.entries[name]
        is_linear = ours.endswith(".weight") and len(header.shapes[name]) == 2
        if is_linear and isinstance(entry, GgufTensor) and entry.type.is_packed:
            found[ours.removesuffix(".weight")] = entry
    return found
