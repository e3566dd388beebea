"""The layers that adapter files can change, with the shapes of their weights, against diffusers and transformers.

All published models, at full size on the meta device: no weight is read or created.
"""

from __future__ import annotations

import pytest
from torch import nn

from modules.families.parts.lora_names import file_path
from modules.families.parts.single_file.checkpoint import empty_part
from modules.families.parts.single_file.models import shipped_configs
from modules.families.registry import published, published_models
from tests.builders.single_files import CLASSES

NORMS = (nn.GroupNorm, nn.LayerNorm)


@pytest.mark.parametrize("model", sorted(m.name for m in published_models()))
def test_every_layer_has_the_shape_of_its_module(model: str) -> None:
    configs = shipped_configs(model)
    parts = {name: empty_part(CLASSES[name], configs[name]) for name in configs if name not in ("vae", "scheduler")}
    theirs = {
        (part, file_path(part, path)): (tuple(layer.weight.shape), isinstance(layer, NORMS))
        for part, module in parts.items()
        for path, layer in module.named_modules()
        if isinstance(layer, nn.Linear | nn.Conv2d | nn.GroupNorm | nn.LayerNorm)
    }
    ours = published(model).adapter_targets(configs).all
    assert len(ours) == len(theirs)
    assert {(t.part, t.path): (t.weight, t.is_norm) for t in ours} == theirs
    assert len({t.kohya_name for t in ours}) == len(ours)
