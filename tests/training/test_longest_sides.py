"""The longest side that preflight allows is the one for which diffusers' models have positions."""

from __future__ import annotations

import pytest
import torch

from modules.memory.recording import PassSize
from modules.system.factories import load_factory
from tests.builders.flow_models import FLOW_MODELS, flow_model

LIMITED = [name for name in FLOW_MODELS if flow_model(name).spec.denoiser.model.longest_side is not None]


@pytest.mark.parametrize("name", LIMITED)
def test_the_longest_side_is_read_and_a_longer_one_is_not(name: str, request: pytest.FixtureRequest) -> None:
    folder, spec = request.getfixturevalue(name), flow_model(name).spec
    part, step_px = spec.denoiser.model, spec.size_step_px
    denoiser = load_factory(part.reference).from_pretrained(folder / spec.denoiser.name).eval()
    [forward] = load_factory(part.passes)(denoiser, spec).values()
    assert part.longest_side is not None
    longest_px = part.longest_side(denoiser.config) * spec.latents.factor

    @torch.no_grad()
    def read(height_px: int) -> None:
        inputs = forward.inputs(PassSize(batch=1, width_px=step_px, height_px=height_px, tokens=8))
        forward.run(**inputs)

    read(longest_px)
    with pytest.raises((ValueError, RuntimeError, IndexError)):
        read(longest_px + step_px)
