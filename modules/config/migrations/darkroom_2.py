"""Our version 2 to version 3: DoRA is on the input axis unless a file states otherwise.

Until version 2 a file without the axis meant the output axis, which ComfyUI, Forge and A1111 compute otherwise than the
paper. Such a file keeps what it meant.
"""

from __future__ import annotations

from modules.config.migrations.tree_moves import Notes, Tree

_DECOMPOSE, _AXIS = "decompose", "decompose_output_axis"


def to_darkroom_3(tree: Tree, notes: Notes) -> Tree:
    """Return a tree of our version 2 with the axis of DoRA stated wherever DoRA is on."""
    result = dict(tree)
    if "adapter" in result:
        result["adapter"] = _with_axis(result["adapter"])
    remembered = result.get("remembered")
    if isinstance(remembered, dict) and isinstance(variants := remembered.get("adapter"), dict):
        result["remembered"] = {**remembered, "adapter": {name: _with_axis(own) for name, own in variants.items()}}
    return result


def _with_axis(adapter: object) -> object:
    is_on = isinstance(adapter, dict) and adapter.get(_DECOMPOSE) not in (None, False)
    return {_AXIS: True, **adapter} if isinstance(adapter, dict) and is_on else adapter
