"""The self-test finds whether the model or the settings are at fault: on the demo's models, which are trained."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from modules.config.presets import list_presets
from modules.config.schema import Config
from modules.diffusion.flow import FlowProcess
from modules.diffusion.noise import fixed_timesteps
from modules.diffusion.process import DDPMProcess, NoiseProcess
from modules.diffusion.schedule import cumulative_alphas
from modules.families.parts.effnet_model import cosine_process
from modules.families.parts.noise_process import process_of
from modules.families.registry import files_of
from modules.settings.edit import replace_value
from tests.builders.configs import laid_over
from trainer.__main__ import main
from trainer.commands import CommandDesk, Stop, StopRequested
from trainer.job import Job
from trainer.job_events import JobFinished
from trainer.probe.self_test import ImageTrial, SelfTestRequest, self_test, uninformed_loss, verdict_of

LEARNS, STAYS, RISES = ImageTrial(0.2, 0.1), ImageTrial(0.2, 0.199), ImageTrial(0.2, 0.5)


def demo(tmp_path: Path, name: str = "#demo") -> Config:
    (preset,) = [p for p in list_presets() if p.name == name]
    folders = {"workspace_dir": str(tmp_path / "workspace"), "cache_dir": str(tmp_path / "cache"), "num_threads": 1}
    output = {"destination": str(tmp_path / "lora.safetensors")}
    return laid_over(preset.load().config, {"general": folders, "output": output})


def verdict_on(config: Config, tmp_path: Path, steps: int = 12) -> tuple[str, JobFinished]:
    image = Path(__file__).parents[2] / "demo" / "zog" / "zog-01.png"
    image = image if image.is_file() else sorted(image.parent.glob("*.png"))[0]
    done = self_test(SelfTestRequest(config, image, "a zog", tmp_path / "out", steps), Job(lambda _event: None))
    return json.loads((tmp_path / "out" / "self_test.json").read_text())["verdict"], done


@pytest.mark.full
def test_a_learning_rate_that_teaches_nothing(tmp_path: Path) -> None:
    config = replace_value(demo(tmp_path), "training.learning_rate", 1e-9)
    verdict, done = verdict_on(config, tmp_path)
    assert (verdict, done.code) == ("settings", 1)
    assert "raise the learning rate, now 1e-09" in done.notes[-1]
    samples = {"image.png", "known_before.png", "known_after.png", "config_before.png", "config_after.png"}
    assert {p.name for p in (tmp_path / "out").iterdir()} == samples | {"self_test.json"}
    assert not (tmp_path / "workspace").exists()
    assert not (tmp_path / "lora.safetensors").exists()


@pytest.mark.full
@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "passed"),
        ({"data": {"resolution_px": ["96x64", 64]}}, "passed"),  # the first alone
        ({"training": {"learning_rate": 3.0}}, "settings"),  # its loss is not a number
        ({"training": {"learning_rate": 0.3, "clip_grad_norm": None}}, "diverges"),
        ({"model": {"family": {"name": "sd", "prediction_type": "v_prediction"}}}, "weights"),
        ({"model": {"base_model": "/nowhere"}}, "failed"),
    ],
)
def test_what_is_at_fault(changes: dict[str, object], verdict: str, tmp_path: Path) -> None:
    found, done = verdict_on(laid_over(demo(tmp_path), changes), tmp_path, 30)
    assert found == verdict, done.notes


@pytest.mark.full
def test_a_flow_model_passes(tmp_path: Path) -> None:
    assert verdict_on(demo(tmp_path, "#demo flow"), tmp_path, 30)[0] == "passed"


@pytest.mark.parametrize(
    ("known", "mine", "verdict"),
    [
        (LEARNS, LEARNS, "passed"),
        (LEARNS, None, "passed"),
        (LEARNS, STAYS, "settings"),
        (LEARNS, RISES, "diverges"),
        (LEARNS, ImageTrial(0.2, math.nan), "diverges"),
        (LEARNS, ImageTrial(failure="No memory."), "settings"),
        (STAYS, None, "training"),
        (ImageTrial(0.9, 0.5), None, "weights"),
        (ImageTrial(math.nan, math.nan), None, "weights"),
        (ImageTrial(failure="No memory."), None, "failed"),
    ],
)
def test_the_verdict(known: ImageTrial, mine: ImageTrial | None, verdict: str) -> None:
    assert verdict_of(known, mine, bound=0.37, learning_rate=1e-4)[0] == verdict


def test_a_weak_model_is_named_and_the_loss_is_compared() -> None:
    [text, _] = verdict_of(LEARNS, LEARNS, bound=0.37, learning_rate=1e-4)[1]
    assert "Before training its loss is 0.2, 54% of the loss of a model that knows nothing of images." in text
    assert "usually below" not in text
    weak = verdict_of(ImageTrial(0.3, 0.2), None, bound=0.37, learning_rate=1e-4)
    assert weak[0] == "passed"
    assert "Trained models are usually below 75%" in weak[1][0]


@pytest.mark.parametrize(("prediction", "expected"), [("epsilon", 0.3725), ("v_prediction", 1.0), ("auto", 1.0)])
def test_the_loss_of_a_model_that_knows_nothing_of_images(prediction: str, expected: float) -> None:
    """The least squares of the target on the noisy latents, for every timestep alone."""
    family = {"name": "sd", "prediction_type": prediction}
    config = laid_over(Config(), {"model": {"base_model": "/nowhere", "family": family}})
    assert uninformed_loss(config) == pytest.approx(expected, abs=1e-3)
    if prediction != "auto":
        process = DDPMProcess(cumulative_alphas(), prediction)  # type: ignore[arg-type]
        assert least_squares(process) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(("family", "expected"), [("pixart", 0.275), ("stable_cascade", 0.495), ("wuerstchen", 0.495)])
def test_that_loss_follows_the_noise_schedule_of_published_models(family: str, expected: float) -> None:
    config = Config.model_validate({"model": {"family": {"name": family}}})
    scheduler = files_of(family).models[0].shipped_configs()["scheduler"]
    process = process_of(scheduler, name=family) if "beta_schedule" in scheduler else cosine_process(scheduler)
    assert uninformed_loss(config) == pytest.approx(expected, abs=1e-3)
    assert least_squares(process) == pytest.approx(expected, rel=0.02)


def test_the_loss_of_a_flow_that_knows_nothing_of_images() -> None:
    config = Config.model_validate({"model": {"family": {"name": "z_image"}}})
    assert uninformed_loss(config) == pytest.approx(math.pi / 2, rel=2e-3)
    assert least_squares(FlowProcess()) == pytest.approx(uninformed_loss(config), rel=0.02)


def least_squares(process: NoiseProcess) -> float:
    """Return the mean error of the best multiple of the noisy latents as a prediction, at ten timesteps."""
    clean, noise = torch.randn((2, 1, 4, 64, 64), generator=torch.Generator().manual_seed(1)).double()
    errors = []
    for timestep in fixed_timesteps(10, num_timesteps=process.num_timesteps):
        at = torch.tensor([timestep])
        noisy, target = process.add_noise(clean, noise, at), process.target(clean, noise, at)
        errors.append(float((target - noisy * (noisy * target).sum() / noisy.square().sum()).square().mean()))
    return sum(errors) / len(errors)


def test_it_stops(tmp_path: Path) -> None:
    desk = CommandDesk()
    desk.put(Stop())
    request = SelfTestRequest(demo(tmp_path), tmp_path / "a.png", "a", tmp_path / "out", 5)
    with pytest.raises(StopRequested):
        self_test(request, Job(lambda _event: None, desk))
    assert list((tmp_path / "out").glob("runs")) == []


def test_what_is_refused_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["self-test", "#demo", "--set", "training.trains=vae", "--steps", "5"]) != 0
    assert "trains the VAE" in capsys.readouterr().err


def test_an_image_that_cannot_be_read_is_refused_before_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, out = tmp_path / "größe.png", tmp_path / "out"
    broken.write_bytes(b"no image")
    assert main(["self-test", "#demo", "--image", str(broken), "--out", str(out), "--steps", "5"]) == 2
    assert f"{broken}: not a readable image." in capsys.readouterr().err
    assert not out.exists()
