"""Training the VAE: what moves, resuming, memory settings, validation, samples, and files that other programs read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file

from modules.config.schema import Config
from modules.families.kinds.identify import identify
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder, draw_mask
from tests.builders.pipelines import load_tiny
from tests.builders.runs import Ran, assert_equal_tensors, run, stop_at
from tests.builders.vgg import write_perceptual_files
from trainer.events import PhaseChanged, SampleReady, StepFinished, ValidationFinished

SIZES = [(64, 64)] * 3 + [(80, 64)] * 2


def vae_config(folder: Path, model: Path, images: Path, **changes: Any) -> Config:
    """Six steps of the decoder, whose weights are written as they are."""
    training = {"trains": "vae", "learning_rate": 3e-3, **changes.pop("training", {})}
    output = {"destination": str(folder / "out" / "vae.safetensors"), "dtype": "float32", **changes.pop("output", {})}
    return small_config(folder, model=model, images=images, training=training, output=output, **changes)


@pytest.fixture(scope="module")
def pixels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five images without captions."""
    return draw_folder(tmp_path_factory.mktemp("pixels") / "images", sizes=SIZES)


@dataclass(frozen=True)
class Trained:
    """A run, the folder of its model, and its result."""

    ran: Ran
    model: Path
    result: Path


@pytest.fixture(scope="module")
def trained(tiny_sd: Path, pixels: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The decoder trained with validation, samples, accumulation and EMA, debug checks on a second device."""
    folder = tmp_path_factory.mktemp("vae")
    config = vae_config(
        folder,
        tiny_sd,
        pixels,
        general={"debug_checks": True, "temp_device": "cpu:1"},
        data={"latent_cache": True, "text_cache": True},
        concepts=[{"path": str(pixels)}, {"path": str(pixels), "kind": "validation"}],
        validation={"every": {"n": 1, "unit": "epoch"}},
        sampling={"at_start": True, "at_end": True, "prompts": []},
        training={
            "epochs": 4,
            "batch_size": 2,
            "ema": {"mode": "train_device", "decay": 0.5},
            "vae": {"perceptual_strength": 0.1, **write_perceptual_files(folder / "vgg")},
        },
    )
    ran = run(config)
    assert ran.finished.outcome == "finished", ran.ending
    return Trained(ran, tiny_sd, Path(ran.finished.model_path))


@pytest.mark.full
def test_only_the_decoder_moves_and_its_loss_falls(trained: Trained) -> None:
    steps = trained.ran.of(StepFinished)
    assert steps[-1].training_parts == ("vae",)
    assert all(step.metrics.keys() >= {"psnr", "lpips"} for step in steps)
    assert "the perceptual distance" in [p.detail for p in trained.ran.of(PhaseChanged)]
    before = load_file(trained.model / "vae" / "diffusion_pytorch_model.safetensors")
    after = AutoencoderKL.from_single_file(str(trained.result), config=str(trained.model / "vae")).state_dict()
    moved = {name for name, weight in before.items() if not torch.equal(weight, after[name])}
    decoder = {n for n in before if n.startswith(("decoder.", "post_quant_conv."))}
    assert moved <= decoder
    assert len(moved) > 0.9 * len(decoder)
    assert {n for n in trained.ran.weights if not n.startswith(("vae.decoder.", "vae.post_quant_conv."))} == set()


@pytest.mark.full
def test_validation_measures_reconstructions(trained: Trained) -> None:
    validations = trained.ran.of(ValidationFinished)
    assert validations[-1].loss < validations[0].loss
    for name in ("psnr", "ssim"):
        assert validations[-1].metrics[name] > validations[0].metrics[name]
    assert 0 < validations[-1].metrics["lpips"] < validations[0].metrics["lpips"]
    assert validations[0].by_timestep == {}
    assert PhaseChanged("caching", "") not in trained.ran.of(PhaseChanged)


def test_samples_show_each_image_beside_its_reconstruction(trained: Trained, pixels: Path) -> None:
    samples = trained.ran.of(SampleReady)
    assert [(s.step, s.index) for s in samples] == [(0, 0), (0, 1), (0, 2), (0, 3), (12, 0), (12, 1), (12, 2), (12, 3)]
    with Image.open(samples[0].path) as image, Image.open(pixels / f"{samples[0].prompt}.png") as original:
        assert image.size == (128, 64)
        difference = [abs(a - b) for a, b in zip(image.crop((0, 0, 64, 64)).tobytes(), original.tobytes(), strict=True)]
        assert max(difference) <= 1


def test_the_file_is_a_vae_that_programs_and_this_one_read(trained: Trained) -> None:
    with safe_open(trained.result, framework="pt") as file:
        assert {n.split(".")[0] for n in file.keys()} == {"encoder", "decoder", "quant_conv", "post_quant_conv"}  # noqa: SIM118
        assert file.get_tensor("decoder.mid.attn_1.q.weight").dim() == 4  # a 1x1 convolution, as published
    kind = identify(trained.result)
    assert (kind.kind, kind.facts["layout"]) == ("vae", "original")
    theirs = AutoencoderKL.from_single_file(str(trained.result), config=str(trained.model / "vae")).state_dict()
    ours = load_tiny(trained.model, "sd", part_files={"vae": str(trained.result)}).vae.state_dict()
    assert_equal_tensors(theirs, ours)
    averages = load_file(Path(trained.ran.finished.backup_path) / "ema.safetensors")
    assert_equal_tensors({n: theirs[n.removeprefix("vae.")] for n in averages}, averages)


@pytest.mark.full
def test_a_stopped_run_of_the_whole_vae_resumes_bit_equal(tiny_sd: Path, pixels: Path, tmp_path: Path) -> None:
    """With masks of the pixels, samples of the posterior, LPIPS, a KL term and accumulation; the result is a folder."""
    folder = tmp_path / "masked"
    folder.mkdir()
    for file in pixels.glob("*.png"):
        (folder / file.name).write_bytes(file.read_bytes())
    draw_mask(folder / "000-masklabel.png")
    changes: dict[str, Any] = {
        "masks": {"enabled": True, "unmasked_weight": 0.1},
        "backup": {"every": {"n": 2, "unit": "step"}},
        "output": {"destination": str(tmp_path / "whole"), "model_format": "diffusers"},
        "training": {
            "accumulation_steps": 2,
            "batch_size": 1,
            "vae": {
                "decoder_only": False,
                "kl_strength": 1e-3,
                "mae_strength": 0.5,
                "perceptual_strength": 0.5,
                **write_perceptual_files(tmp_path / "vgg"),
            },
        },
    }
    config = vae_config(tmp_path, tiny_sd, folder, **changes)
    whole = run(config)
    assert whole.finished.outcome == "finished", whole.ending
    assert any(n.startswith("vae.encoder.") for n in whole.weights)
    other = laid_over(config, {"general": {"workspace_dir": str(tmp_path / "other")}})

    stopped = run(other, on_event=stop_at(3))
    resumed = run(other, resume_from=Path(stopped.finished.backup_path))
    assert_equal_tensors(resumed.weights, whole.weights)
    assert identify(tmp_path / "whole").kind == "vae"
    read = AutoencoderKL.from_pretrained(tmp_path / "whole")
    ours = load_tiny(tiny_sd, "sd", part_files={"vae": str(tmp_path / "whole")}).vae
    assert_equal_tensors(ours.state_dict(), read.state_dict())
    written = json.loads((tmp_path / "whole" / "config.json").read_text())
    own = json.loads((tiny_sd / "vae" / "config.json").read_text())
    assert {k: written[k] for k in ("scaling_factor", "force_upcast")} == {
        k: own[k] for k in ("scaling_factor", "force_upcast")
    }
    assert_equal_tensors(read.state_dict(), {n.removeprefix("vae."): w for n, w in whole.weights.items()})


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    "changes",
    [
        {"parts": {"vae": {"checkpointing": "block", "offload_activations": True}}},
        {"parts": {"vae": {"checkpointing": "whole"}}},
    ],
)
def test_checkpointing_changes_nothing(tiny_sd: Path, pixels: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    once = {"training": {"epochs": 1, "vae": {"decoder_only": False}}}
    plain = run(laid_over(vae_config(tmp_path / "plain", tiny_sd, pixels), once))
    saving = run(laid_over(vae_config(tmp_path / "saving", tiny_sd, pixels, **changes), once))
    assert_equal_tensors(saving.weights, plain.weights)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sdxls_vae_trains_in_bfloat16(tiny_sdxl: Path, pixels: Path, tmp_path: Path, dtype: str) -> None:
    """Under autocast, with float32 or bfloat16 weights; the fused backward pass; nothing but the VAE is read."""
    config = vae_config(
        tmp_path,
        tiny_sdxl,
        pixels,
        parts={"vae": {"dtype": dtype}},
        training={
            "epochs": 2,
            "precision": "bfloat16",
            "clip_grad_norm": None,
            "optimizer": {"name": "adafactor", "fused_back_pass": True},
        },
    )
    steps = run(config).of(StepFinished)
    assert steps[-1].loss is not None
    assert steps[0].loss is not None
    assert steps[-1].loss < steps[0].loss


def test_no_other_part_is_read(tiny_sd: Path, pixels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer.run import reading

    seen: list[Any] = []
    load_family = reading.load_family
    monkeypatch.setattr(reading, "load_family", lambda *a, **k: seen.append(load_family(*a, **k)) or seen[-1])
    run(vae_config(tmp_path, tiny_sd, pixels, training={"epochs": 1}))
    assert {n for n, p in seen[0].parts.items() if next(p.module.parameters()).is_meta} == {"unet", "text_encoder"}


@pytest.mark.full
@pytest.mark.parametrize(
    ("dtype", "precision", "decoder_only"),
    [
        ("bfloat16", "float16", True),
        ("float16", "bfloat16", False),
        *(pytest.param(d, p, o, marks=pytest.mark.full) for d in ("float32", "bfloat16", "float16")
          for p in ("float32", "tfloat32", "bfloat16", "float16") for o in (True, False)),
    ],
)  # fmt: skip
def test_every_weight_dtype_trains_in_every_precision(
    tiny_sd: Path, pixels: Path, tmp_path: Path, dtype: str, precision: str, decoder_only: bool
) -> None:
    """A CPU raises an error for norms of two 16-bit dtypes; samples and validation run without autocast."""
    config = vae_config(
        tmp_path,
        tiny_sd,
        pixels,
        concepts=[{"path": str(pixels)}, {"path": str(pixels), "kind": "validation"}],
        validation={"every": {"n": 1, "unit": "epoch"}},
        sampling={"at_end": True, "prompts": []},
        training={"epochs": 1, "batch_size": 2, "precision": precision, "vae": {"decoder_only": decoder_only}},
        parts={"vae": {"dtype": dtype}},
    )
    ran = run(config)
    assert ran.finished.outcome == "finished", ran.ending
    assert ran.of(SampleReady)
    exact = laid_over(config, {"training": {"precision": "float32"}, "parts": {"vae": {"dtype": "float32"}}})
    losses = [r.of(StepFinished)[0].loss for r in (ran, run(exact))]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
