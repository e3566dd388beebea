"""Fine-tunes and conversions in scaled float8, as ComfyUI reads them, on the tiny flow models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from modules.config.rules import problems_of
from modules.config.schema import Config
from modules.families.kinds.identify import identify
from modules.families.parts.single_file.write import require_scalable, to_scaled_float8
from modules.families.registry import FAMILIES, files_of, published_model
from modules.formats.lazy_tensors import lazy
from modules.system.errors import DarkroomError
from tests.builders.configs import laid_over, small_config
from tests.builders.flow_models import FLOW_MODELS, flow_model
from tests.builders.part_files import dequantized
from tests.builders.pipelines import load_tiny
from tests.builders.runs import Ran, run
from trainer.__main__ import main
from trainer.preflight import check

START = "model.diffusion_model."
FULL: dict[str, Any] = {
    "training": {"trains": "full", "epochs": 1, "batch_size": 2, "learning_rate": 1e-3},
    "output": {"model_format": "single_file", "dtype": "scaled_float8"},
}


# Those whose single files have the transformer alone; for others it is refused.
MODELS = [name for name in FLOW_MODELS if files_of(flow_model(name).family).has_denoiser_alone]


@pytest.fixture(scope="module", params=MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest, name: str) -> Path:
    folder: Path = request.getfixturevalue(name)
    return folder


def assert_near(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Within the rounding of float8: a sixteenth, or the distance of the smallest numbers of a scaled matrix."""
    largest = wanted.float().abs().max().item()
    torch.testing.assert_close(found.float(), wanted.float(), rtol=0.0626, atol=largest / 448 * 2**-9)


def test_a_converted_model_has_the_tensors_that_comfyui_reads(name: str, model: Path, tmp_path: Path) -> None:
    spec = flow_model(name).spec
    plain, scaled = tmp_path / "plain.safetensors", tmp_path / "scaled.safetensors"
    assert main(["convert", str(model), str(scaled), "--to", "single", "--dtype", "scaled_float8"]) == 0
    family = load_tiny(model, spec.name)
    assert main(["convert", str(model), str(plain), "--to", "single"]) == 0
    wanted, written = load_file(plain), load_file(scaled)
    matrices = {n for n, t in written.items() if t.dtype == torch.float8_e4m3fn and t.ndim == 2}
    assert len(matrices) > 4
    for matrix in matrices:
        scale = written[f"{matrix.removesuffix('.weight')}.scale_weight"]
        assert (scale.shape, scale.dtype) == ((), torch.float32)  # of the whole matrix: rows are not read
        assert written[matrix].float().abs().max() == 448.0
    [mark_name] = [name for name in written if name.endswith("scaled_fp8")]
    mark = written[mark_name]
    assert mark.numel() == (2 if spec.denoiser.model.overflows_in_float16 else 0)
    assert {t.dtype for n, t in written.items() if n not in matrices and not n.endswith("_weight")} - {mark.dtype} == {
        torch.float16
    }
    assert written.keys() - wanted.keys() == {
        mark_name,
        *(f"{m.removesuffix('.weight')}.scale_weight" for m in matrices),
    }
    for key, tensor in dequantized(written).items():
        assert_near(tensor, wanted[key])
    # What is never quantized has no scale: the embeddings, the modulations where they are sensitive, and the output.
    state = family.denoiser.state_dict()
    from_file = load_tiny(model, spec.name, part_files={spec.denoiser.name: str(scaled)}).denoiser.state_dict()
    for key, tensor in state.items():
        assert_near(from_file[key], tensor)
    never = spec.denoiser.model.never_quantized
    assert never
    for key in (k for k in state if not never.isdisjoint(k.split("."))):
        torch.testing.assert_close(from_file[key].float(), state[key].half().float(), rtol=0, atol=0)
    assert "scaled float8" in identify(scaled).sentence


@pytest.mark.daily(1)
def test_a_fine_tune_is_written_with_scales_and_trained_on(
    name: str, model: Path, images: Path, tmp_path: Path
) -> None:
    saved = tmp_path / "tuned.safetensors"
    base = small_config(tmp_path, model=model, images=images)
    config = laid_over(base, {**FULL, "output": {**FULL["output"], "destination": str(saved)}})
    ran: Ran = run(config)
    assert ran.finished.outcome == "finished"
    part = flow_model(name).spec.denoiser.name
    again = load_tiny(model, flow_model(name).family, part_files={part: str(saved)}).denoiser.state_dict()
    trained = {n.removeprefix(f"{part}."): t for n, t in ran.weights.items() if n.startswith(f"{part}.")}
    assert trained
    for key, tensor in trained.items():
        assert_near(again[key], tensor)
    start = {"parts": {part: {"file": str(saved), "dtype": "float8"}}, "training": {"epochs": 1}}
    continued = laid_over(base, start)
    assert not check(continued).errors
    assert run(continued).finished.outcome == "finished"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training": {"trains": "adapter"}}, "a form of whole models"),
        ({"training": {"trains": "vae"}}, "A VAE cannot be saved in float8"),
        ({"output": {"model_format": "diffusers"}}, "A diffusers folder has no scales"),
        ({"model": {"family": "sdxl"}}, "files of Stable Diffusion XL contain all parts"),
        ({"model": {"family": "sd3"}}, "files of Stable Diffusion 3 contain all parts"),
    ],
)
def test_it_is_refused_where_it_has_no_meaning(changes: dict[str, Any], message: str) -> None:
    config = laid_over(Config(), {**FULL, "model": {"family": "z_image"}})
    assert not [p for p in problems_of(config) if p.path == "output.dtype"]
    [problem] = [p for p in problems_of(laid_over(config, changes)) if p.path == "output.dtype"]
    assert message in problem.message
    assert problem.advice


def test_conversions_are_refused_where_it_has_no_meaning(
    tiny_sd: Path, tiny_sd3: Path, tiny_z_image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for source, out, message in (
        (tiny_sd, "a.safetensors", "contain all parts"),
        (tiny_sd3, "a.safetensors", "contain all parts"),
        (tiny_z_image, "folder", "A diffusers folder has no scales"),
    ):
        assert main(["convert", str(source), str(tmp_path / out), "--dtype", "scaled_float8"]) != 0
        assert message in capsys.readouterr().err
        assert not (tmp_path / out).exists()
    with pytest.raises(DarkroomError, match="transformer alone"):
        require_scalable("sd1")


def test_a_matrix_of_zeros_has_a_scale_of_one() -> None:
    record = published_model("z_image")
    configs = record.shipped_configs()
    layout = files_of("z_image").denoiser_file
    assert layout is not None
    slots = layout.layout(configs["transformer"]).slots
    zeros = lazy(torch.zeros(2, 2))
    tensors = {f"{START}{slot.original}": zeros for slot in slots}
    written = to_scaled_float8("z_image", configs, tensors)
    name = f"{START}layers.0.attention.qkv"
    assert written[f"{name}.scale_weight"].make() == 1.0
    assert not written[f"{name}.weight"].make().float().any()
    assert FAMILIES["z_image"].denoiser.model.overflows_in_float16
