"""The denoisers of flow families at their published sizes, on the meta device: the names and shapes of real files.

Also the states of text encoders under the pinned libraries: `python -m tests.parity.test_flow_shapes` records those of
the tiny models again, after a deliberate change.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.families.parts.single_file.checkpoint import empty_part
from modules.families.parts.single_file.models import shipped_configs
from modules.families.parts.single_file.moves import from_original, to_original
from modules.families.registry import files_of
from modules.formats.lazy_tensors import lazy_state
from modules.system.factories import load_factory
from tests.builders.flow_models import FLOW_MODELS, VARIANTS, flow_model
from tests.builders.pipelines import load_tiny

REFERENCE = Path(__file__).parent.parent / "golden" / "text_states.json"
PROMPTS = ("", "a disc in front of a wall")
_SHOWN = 6


@pytest.mark.parametrize("name", [*FLOW_MODELS, *VARIANTS])
def test_a_published_checkpoint_has_the_names_and_shapes_of_the_layout(name: str) -> None:
    """Every tensor of diffusers' module is in the file once, and comes back from it under its own name."""
    tiny = flow_model(name)
    model = files_of(tiny.family).models[0].name
    denoiser, file = tiny.spec.denoiser, files_of(tiny.family).denoiser_file
    assert file is not None
    config = shipped_configs(model)[denoiser.name]
    state = empty_part(load_factory(denoiser.model_class), config).state_dict()
    layout = file.layout(config)
    original = to_original(layout.slots, lazy_state(dict(state)))
    shapes = {key: tuple(tensor.make().shape) for key, tensor in original.items()}
    assert tiny.published_shapes.items() <= shapes.items()
    assert sum(tensor.numel() for tensor in state.values()) == tiny.published_weights
    again = from_original(layout.slots, original)
    assert {n: tuple(t.make().shape) for n, t in again.items()} == {n: tuple(t.shape) for n, t in state.items()}


@pytest.mark.parametrize("name", [*FLOW_MODELS, *VARIANTS])
def test_text_states_are_those_that_were_recorded(name: str, request: pytest.FixtureRequest) -> None:
    """A new version of transformers that reads another layer, or normalises it, shows here."""
    recorded = json.loads(REFERENCE.read_text()).get(name)
    assert recorded, f"{name} is not recorded yet: run `python -m tests.parity.test_flow_shapes` once its text is right"
    for prompt, tensors in text_states(name, request.getfixturevalue(name)).items():
        assert tensors.keys() == recorded[prompt].keys()
        for tensor, values in tensors.items():
            assert values == pytest.approx(recorded[prompt][tensor], rel=1e-4, abs=1e-5)


def text_states(name: str, folder: Path) -> dict[str, dict[str, list[float]]]:
    """The conditioning of the prompts: of each tensor its mean square and some of its values."""
    family: Any = load_tiny(folder, flow_model(name).family)
    found: dict[str, dict[str, list[float]]] = {}
    with torch.no_grad():
        for prompt in PROMPTS:
            tensors = family.encode_prompts([prompt]).tensors()
            floats = {name: tensor.float() for name, tensor in tensors.items()}
            found[prompt] = {n: [float(t.square().mean()), *t.flatten()[-_SHOWN:].tolist()] for n, t in floats.items()}
    return found


def record() -> None:
    """Write the states of all tiny models."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        names = (*FLOW_MODELS, *VARIANTS)
        states = {name: text_states(name, flow_model(name).write(Path(folder) / name)) for name in names}
    REFERENCE.write_text(json.dumps(states, indent=1) + "\n")


if __name__ == "__main__":
    record()
