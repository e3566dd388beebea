"""OneTrainer's configs of the flow families load as the user means them, and run on the tiny models."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.config.codec import decode, encode
from modules.families.kinds.identify import identify
from tests.builders.configs import laid_over, small_config
from tests.builders.flow_models import FLOW_MODELS, flow_model
from tests.builders.pipelines import load_tiny, noise_of
from tests.builders.runs import losses, run

ROWS = [(name, config) for name in FLOW_MODELS for config in flow_model(name).onetrainer]


@pytest.mark.daily(6)
@pytest.mark.parametrize(("tiny_name", "config_name"), ROWS)
def test_a_config_of_onetrainer_runs(
    tiny_name: str, config_name: str, request: pytest.FixtureRequest, images: Path, tmp_path: Path
) -> None:
    tiny, model = flow_model(tiny_name), request.getfixturevalue(tiny_name)
    theirs = tiny.onetrainer[config_name]
    loaded = decode(theirs.tree())
    assert {p.path for p in loaded.problems if p.severity != "info"} == theirs.closest
    config, tree = loaded.config, encode(loaded.config)
    assert config.family.name == tiny.family
    expected: dict[str, Any] = {"training.noise.distribution": "logit_normal", **theirs.values}
    is_full = config.training.trains == "full"
    if not is_full:
        expected = {"adapter.layers": "custom" if theirs.tree().get("layer_filter") else "attention_mlp", **expected}
    assert {path: value_at(tree, path) for path in expected} == expected
    is_folder = is_full and config.output.model_format == "diffusers"
    unquantized = {"dtype": "float32"} if is_folder else {}  # the folder contains the text encoder, too
    ours = encode(small_config(tmp_path, model=model, images=images))
    here: dict[str, Any] = {
        "general": ours["general"],
        "concepts": ours["concepts"],
        "data": ours["data"],
        "model": {"base_model": str(model)},
        "parts": {"transformer": {"offload_fraction": 0.0}, "text_encoder": {"offload_fraction": 0.0, **unquantized}},
        "training": {"epochs": 1},
        "sampling": {"prompts": []},
        "output": {"destination": str(tmp_path / ("out" if is_folder else "out.safetensors"))},
    }
    ran = run(laid_over(config, here))
    assert ran.finished.outcome == "finished"
    assert all(map(math.isfinite, losses(ran)))
    saved = Path(ran.finished.model_path)
    assert identify(saved).family == tiny.family
    if is_folder:
        again = load_tiny(saved, tiny.family)
        text, noisy = again.encode_prompts(["a disc"]), noise_of(again, batch=1, seed=0)
        with torch.no_grad():
            assert again.predict(noisy, torch.tensor([500.0]), text).isfinite().all()


def value_at(tree: Any, path: str) -> Any:
    for key in path.split("."):
        tree = tree[int(key) if isinstance(tree, list) else key]
    return tree
