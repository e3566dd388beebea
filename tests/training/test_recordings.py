"""The recordings of passes: those that ship equal a new trace, and one of any size serves all sizes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from modules.estimate import recordings, shipping
from modules.estimate.recordings import SHIPPED, PassesOfPart, perceptual_file, recordings_of, shipped_file
from modules.estimate.shipping import published_parts
from modules.estimate.tracing import trace_part, trace_perceptual
from modules.families.parts.fused_norms import norms_to_fuse
from modules.families.parts.single_file.checkpoint import empty_part
from modules.families.parts.single_file.models import shipped_configs
from modules.families.registry import FAMILIES, published_model
from modules.memory.arrays import Array, Tape
from modules.memory.part_plan import PartPlan
from modules.memory.recording import Operation, PassSize, Program, from_text, to_text
from modules.memory.replay import Replay
from modules.memory.trace import TracedPass, trace
from modules.quantization.registry import FORMATS, ChosenFormat
from modules.settings.layer_filter import LayerFilter
from modules.system.factories import load_factory
from tests.builders.adapter_plans import lora_plan
from tests.builders.recordings import packed_tracer, tracer_version

_PARTS = [pytest.param(*part, id=part[0].stem, marks=pytest.mark.full) for part in published_parts()]


@pytest.mark.parametrize(("file", "spec", "part", "config"), _PARTS)
def test_the_shipped_recordings_are_those_of_the_real_modules(file: Path, spec: Any, part: Any, config: Any) -> None:
    assert_equal_recordings(file, trace_part(spec, part, config))


def test_the_recordings_of_all_published_models_ship_as_this_tracer_makes_them_and_no_others() -> None:
    """The name of a file has a digest of the tracer's code: a file that another version made has another name."""
    needed = {part[0].name for part in published_parts()} | {perceptual_file().name}
    assert {file.name for file in SHIPPED.iterdir()} == needed, _how_to_ship()


@pytest.mark.parametrize("edited", ["modules.memory.trace", "modules.families.parts.traced_passes"])
@pytest.mark.parametrize("model", ["sd1", "flux_dev", "z_image"])
def test_another_version_of_the_tracer_has_other_recordings(
    model: str, edited: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passes of FLUX.1 and Z-Image are in their own modules, and use the one with those of other models."""
    spec = FAMILIES[published_model(model).family]
    config = shipped_configs(model)[spec.denoiser.name]
    assert shipped_file(spec, spec.denoiser, config).is_file()
    digest = recordings._digest
    monkeypatch.setattr(recordings, "_digest", lambda module: digest(module) + "edited" * (module == edited))
    assert not shipped_file(spec, spec.denoiser, config).is_file()


@pytest.mark.parametrize(
    ("edited", "becomes", "is_other"),
    [
        ("norm.weight.float() + 1.0", "({})", True),
        ("size.patches(config.in_channels)", "({})", True),
        ("def PASSES(", "@cache\n{}", True),
        ("DESCRIBE_IMAGE.before", "({})", False),
    ],
)
def test_only_what_a_pass_uses_of_its_module_makes_another_recording(
    edited: str, becomes: str, is_other: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Krea 2's pass uses a function next to it, but not the one that reads prompts."""
    passes = FAMILIES["krea2"].denoiser.model.passes
    before, source = recordings.passes_digest(passes), recordings._source(passes.partition(":")[0])
    edited = edited.replace("PASSES", passes.partition(":")[2])
    assert edited in source
    monkeypatch.setattr(recordings, "_source", lambda module: source.replace(edited, becomes.format(edited)))
    assert (recordings.passes_digest.__wrapped__(passes) != before) is is_other


@pytest.mark.parametrize("model", ["sana", "sd35_medium", "z_image"])
def test_norms_that_a_run_fuses_are_single_operations(model: str) -> None:
    """Sana's was recorded as diffusers writes it out: its family had not asked for it."""
    spec, configs = FAMILIES[published_model(model).family], shipped_configs(model)
    module = empty_part(load_factory(spec.denoiser.model_class), configs[spec.denoiser.name])
    fused = set(norms_to_fuse(module))
    weights = {f"{path}.weight" for path, norm in module.named_modules() if norm in fused}
    programs = recordings_of(spec, configs)[spec.denoiser.name]["forward"].programs
    steps = [step for program in programs for step in program.steps if isinstance(step, Operation)]
    kinds = {step.kind for step in steps if any(w.endswith(f".{n}") or w == n for n in step.weights for w in weights)}
    assert kinds == {"norm"}


def test_the_recordings_of_the_tests_models_are_of_this_tracer() -> None:
    """They were not for a day, and the suite took half as long again."""
    assert packed_tracer() == tracer_version(), "pack them again: tests/builders/recordings.py says how"


def test_shipping_removes_the_recordings_that_no_model_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "SHIPPED", tmp_path)
    monkeypatch.setattr(shipping, "SHIPPED", tmp_path)
    needed = tmp_path / "UNet2DConditionModel-abcd.json"
    spec = FAMILIES["sd"]
    monkeypatch.setattr(shipping, "published_parts", lambda: [(needed, spec, spec.denoiser, {})])
    monkeypatch.setattr(shipping, "trace_part", lambda *_part: trace_perceptual())
    for file in (needed, tmp_path / "UNet2DConditionModel-0123.json"):
        file.write_text("{}")
    shipping.ship(again=False)
    assert {file.name for file in tmp_path.iterdir()} == {perceptual_file().name, needed.name}
    assert needed.read_text() == "{}"  # it has the name of this tracer and this shape
    shipping.ship(again=True)
    assert needed.read_text() == perceptual_file().read_text()


def test_the_shipped_recording_of_a_text_encoder_is_that_of_the_real_module() -> None:
    spec, config = FAMILIES["sd"], shipped_configs("sd1")["text_encoder"]
    part = next(p for p in spec.parts if p.name == "text_encoder")
    file = shipped_file(spec, part, config)
    assert_equal_recordings(file, trace_part(spec, part, config))
    text = file.read_text(encoding="utf-8")
    assert to_text(from_text(text)) == text


def test_the_shipped_recording_of_the_perceptual_distance_is_that_of_the_real_one() -> None:
    assert_equal_recordings(perceptual_file(), trace_perceptual())


def test_a_part_of_another_shape_has_another_recording() -> None:
    spec, config = FAMILIES["sd"], shipped_configs("sd1")["unet"]
    part = spec.denoiser
    assert shipped_file(spec, part, config).is_file()
    assert shipped_file(spec, part, {**config, "in_channels": 9}).is_file()
    assert not shipped_file(spec, part, {**config, "layers_per_block": 3}).is_file()
    unimportant = {**config, "_name_or_path": "a/b", "sample_size": 96}
    assert shipped_file(spec, part, unimportant) == shipped_file(spec, part, config)


def test_twice_the_images_need_twice_the_activations() -> None:
    spec, config = FAMILIES["sd"], shipped_configs("sd1")["unet"]
    recording = from_text(shipped_file(spec, spec.denoiser, config).read_text(encoding="utf-8"))["forward"]

    def kept(batch: int) -> int:
        tape = Tape()
        plan = PartPlan(trains="full")
        replay = Replay(tape, plan, recording, PassSize(batch, 512, 512, 77), records=True)
        replay.run(replay.inputs())
        return tape.kept_bytes

    assert kept(4) == pytest.approx(2 * kept(2), rel=1e-3)


_ADAPTED: dict[str, Any] = {"trains": "adapter", "adapter": lora_plan(8, 4, ("attn",))}
_PLANS: dict[str, dict[str, Any]] = {
    "checkpointed": {"checkpointing": "block", "compute_bytes": 2, **_ADAPTED},
    "half of the blocks": {"checkpointing": "block", "layers": LayerFilter(("1.",)), "trains": "full"},
    "unreached, offloaded": {
        "checkpointing": "transformer",
        "unreached": ("mid_block.",),
        "offloads": True,
        **_ADAPTED,
    },
    "quantized": {"checkpointing": "block", "quantized": ChosenFormat(FORMATS["int8"], LayerFilter(("2.",)))},
}


@pytest.mark.parametrize("plan", _PLANS.values(), ids=list(_PLANS))
@pytest.mark.parametrize("records", [True, False])
def test_a_block_like_one_before_does_what_it_would_do_alone(
    plan: dict[str, Any], records: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, config = FAMILIES["sd"], shipped_configs("sd1")["unet"]
    recording = from_text(shipped_file(spec, spec.denoiser, config).read_text(encoding="utf-8"))["forward"]
    num_runs = 0
    run_program = Replay._run

    def counted(*given: Any) -> list[Array]:
        nonlocal num_runs
        num_runs += 1
        return run_program(*given)

    def passed() -> tuple[Any, ...]:
        nonlocal num_runs
        num_runs, tape = 0, Tape()
        for _ in range(2):  # in the second pass the casts of trained weights are there
            replay = Replay(tape, PartPlan(**plan), recording, PassSize(2, 512, 768, 77), records=records)
            results = replay.run(replay.inputs())
        counts = (tape.meter.live, tape.meter.peak, tape.kept_bytes, tape.trained_bytes, tape.moments)
        casts = [(name, cast.num_bytes) for name, cast in tape.casts.items()]
        return *counts, casts, [(r.num_bytes, r.needs_grad, r.channels, r.storage.num_bytes) for r in results]

    monkeypatch.setattr(Replay, "_run", counted)
    found, num_found = passed(), num_runs
    monkeypatch.setattr(Replay, "_likeness", lambda *_: None)
    assert found == passed()
    assert num_found < 0.8 * num_runs


class NormedThird(nn.Module):
    """Norms a third of its input, as FLUX.2 does the queries in its fused product."""

    def forward(self, fused: torch.Tensor) -> torch.Tensor:
        third: torch.Tensor = fused.chunk(3, -1)[0]
        return functional.layer_norm(third, third.shape[-1:])


def test_autocast_copies_of_a_view_what_is_read() -> None:
    module = NormedThird()
    traced = TracedPass(module, lambda size: {"fused": torch.empty(size.batch, size.tokens, 24)})
    recording = trace(module, traced, sizes=[PassSize(3, 8, 8, 32), PassSize(2, 8, 16, 64), PassSize(5, 16, 8, 96)])
    again = from_text(to_text({"forward": recording}))["forward"]
    tape = Tape()
    replay = Replay(tape, PartPlan(weight_bytes=2, compute_bytes=2), again, PassSize(2, 8, 8, 100), records=True)
    replay.run(replay.inputs(need_grad=[0]))
    of_a_token = 4 * (8 + 2)  # in float32, with the mean and the deviation
    assert tape.kept_bytes == 2 * 100 * of_a_token


def assert_equal_recordings(shipped: Path, traced: PassesOfPart) -> None:
    """The order in which values are freed between two operations means nothing: Python's collector changes it."""
    assert _sorted(from_text(shipped.read_text(encoding="utf-8"))) == _sorted(traced), _how_to_ship()


def _sorted(recordings: PassesOfPart) -> str:
    def of_program(program: Program) -> Program:
        return replace(program, steps=tuple(replace(s, frees=tuple(sorted(s.frees))) for s in program.steps))

    return to_text({n: replace(r, programs=tuple(map(of_program, r.programs))) for n, r in recordings.items()})


def _how_to_ship() -> str:
    return "Run python -m modules.estimate.shipping if the change is meant."
