"""The layers that adapter files can change, with the shapes of their weights, against diffusers and transformers.

All published models, at full size on the meta device: no weight is read or created.
"""

from __future__ import annotations

import pytest
from torch import nn

from modules.families.parts.lora_names import file_path
from modules.families.parts.single_file.checkpoint import empty_part
from modules.families.parts.single_file.models import shipped_configs
from modules.families.registry import FAMILIES, published_model, published_models
from modules.system.factories import load_factory

NORMS = (nn.GroupNorm, nn.LayerNorm)


@pytest.mark.parametrize("model", sorted(m.name for m in published_models()))
def test_every_layer_has_the_shape_of_its_module(model: str) -> None:
    configs, family = shipped_configs(model), FAMILIES[published_model(model).family]
    ours = published_model(model).adapter_targets(configs).all
    parts = {
        part.name: empty_part(load_factory(part.model_class), configs[part.name])
        for part in family.trainable_parts
        if part.name in configs
    }
    theirs = {
        (part, file_path(part, path)): (tuple(layer.weight.shape), isinstance(layer, NORMS))
        for part, module in parts.items()
        for path, layer in module.named_modules()
        if isinstance(layer, nn.Linear | nn.Conv2d | nn.GroupNorm | nn.LayerNorm)
        and layer.weight is not None
        and getattr(layer, "groups", 1) == 1
    }
    assert len(ours) == len(theirs)
    assert {(t.part, t.path): (t.weight, t.is_norm) for t in ours} == theirs
    assert len({t.kohya_name for t in ours}) == len(ours)
