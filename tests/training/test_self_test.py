"""The self-test finds what is wrong, of faults that are planted in the demo's models, which are trained."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from modules.config.codec import export_file
from modules.config.presets import list_presets
from modules.config.schema import Config
from modules.diffusion.flow import FlowProcess
from modules.diffusion.noise import fixed_timesteps
from modules.diffusion.process import DDPMProcess, NoiseProcess
from modules.diffusion.schedule import cumulative_alphas, rescale_to_zero_snr
from modules.families.parts.effnet_model import cosine_process
from modules.families.registry import files_of
from modules.settings.edit import replace_value
from tests.builders.configs import general_in, laid_over
from trainer.__main__ import main
from trainer.commands import CommandDesk, Stop, StopRequested
from trainer.job import Job
from trainer.job_events import JobEvent, JobFinished, JobProgress
from trainer.probe.model_measures import excess_of_random, uninformed_loss
from trainer.probe.self_test import SelfTestRequest, self_test
from trainer.probe.self_test_settings import groups, on_one_image
from trainer.probe.self_test_verdict import (
    ImageTrial,
    Measures,
    of_known_settings,
    of_levels,
    of_measures,
    of_predictions,
    of_prompts,
    of_scale,
    of_settings,
    passed,
)

ROOT = Path(__file__).parents[2]
FOLDERS = {"#demo": ROOT / "demo" / "model", "#demo flow": ROOT / "demo" / "flow" / "model"}
DENOISERS = {"#demo": "unet", "#demo flow": "transformer"}
Weight = Callable[[str, torch.Tensor, torch.Generator], torch.Tensor]


@dataclass(frozen=True)
class Demo:
    """A copy of a demo model, in which faults are planted, with its preset."""

    name: str
    folder: Path

    @property
    def denoiser(self) -> str:
        return DENOISERS[self.name]

    def config(self) -> Config:
        (preset,) = [p for p in list_presets() if p.name == self.name]
        output = {"destination": str(self.folder.parent / "lora.safetensors")}
        model = {"base_model": str(self.folder)}
        return laid_over(
            preset.load().config, {"general": general_in(self.folder.parent), "output": output, "model": model}
        )

    def change_weights(self, part: str, weight: Weight) -> None:
        (file,) = (self.folder / part).glob("*.safetensors")
        weights, generator = load_file(file), torch.Generator().manual_seed(0)
        changed = {name: weight(name, weights[name], generator).contiguous() for name in sorted(weights)}
        save_file(changed, file, metadata={"format": "pt"})

    def change_config(self, file: str, **values: Any) -> None:
        path = self.folder / file
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    def scale(self) -> float:
        return float(json.loads((self.folder / "vae" / "config.json").read_text())["scaling_factor"])


Plant = Callable[[Demo], None]


@pytest.fixture
def demo(request: pytest.FixtureRequest, tmp_path: Path) -> Demo:
    name = getattr(request, "param", "#demo")
    return Demo(name, Path(shutil.copytree(FOLDERS[name], tmp_path / "model")))


def verdict_on(config: Config, tmp_path: Path, steps: int = 12, image: str = "zog_01") -> tuple[str, JobFinished]:
    """Return what is wrong, and the whole verdict."""
    file = ROOT / "demo" / "zog" / f"{image}.png"
    done = self_test(SelfTestRequest(config, file, "a zog", tmp_path / "out", steps), Job(lambda _event: None))
    return json.loads((tmp_path / "out" / "self_test.json").read_text())["cause"], done


def measures(tmp_path: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads((tmp_path / "out" / "self_test.json").read_text())["measures"]
    return found


def random_weight(name: str, weight: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A weight as before any training: random numbers, norms of 1, biases of 0."""
    if weight.ndim < 2:
        return torch.ones_like(weight) if "norm" in name and name.endswith("weight") else torch.zeros_like(weight)
    return noise_of(weight, 1.0, generator).to(weight.dtype)


def noise_of(weight: torch.Tensor, share: float, generator: torch.Generator) -> torch.Tensor:
    return share * weight.float().square().mean().sqrt() * torch.randn(weight.shape, generator=generator)


def with_noise(share: float) -> Weight:
    def weight_of(name: str, weight: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return weight if weight.ndim < 2 else (weight.float() + noise_of(weight, share, generator)).to(weight.dtype)

    return weight_of


def with_nan(name: str, weight: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    broken = weight.clone()
    broken.view(-1)[0] = math.nan
    return broken


def other_tokens(name: str, weight: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The rows of tokens in another order: the embeddings that another tokenizer's numbers get."""
    is_rows = "token_embedding" in name or "embed_tokens" in name
    return weight[torch.randperm(len(weight), generator=generator)] if is_rows else weight


def without_prompts(name: str, weight: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A denoiser whose prompts have no effect."""
    is_of_text = "attn2.to_out" in name or "cap_embedder" in name
    return torch.zeros_like(weight) if is_of_text else weight


def without_output(name: str, weight: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A denoiser before training, whose last layer is 0: nearly as good as a guess for v-prediction."""
    is_last = name.startswith("conv_out.") or "final_layer" in name
    return torch.zeros_like(weight) if is_last else weight


def scaled(factor: float) -> Plant:
    """A VAE whose scaling factor is another one."""

    def plant(demo: Demo) -> None:
        demo.change_config("vae/config.json", scaling_factor=factor * demo.scale())

    return plant


def weights(part: str, weight: Weight) -> Plant:
    return lambda demo: demo.change_weights(demo.denoiser if part == "denoiser" else part, weight)


# What is surely wrong before any training, with the sentence that names it.
MEASURED: dict[str, tuple[Plant, str]] = {
    "NaN in the text encoder": (weights("text_encoder", with_nan), "values of the Text encoder"),
    "NaN in the denoiser": (weights("denoiser", with_nan), "are not finite (NaN or infinite)"),
    "NaN in the VAE": (weights("vae", with_nan), "values of the VAE are not finite"),
    "a random text encoder": (weights("text_encoder", random_weight), "are random numbers, without any training"),
}
HALF_A_SCALE = "a scale that is half of the right one"
# What only may be wrong, and is weighed against what the model learns; and prompts that are ignored.
WEIGHED: dict[str, tuple[Plant, str]] = {
    HALF_A_SCALE: (scaled(0.5), "the scaling factor of the VAE is wrong"),  # blamed on the learning rate, or passed
    "a random VAE": (weights("vae", random_weight), "is no longer the same after it has been encoded and decoded"),
    "a scale that is too small": (scaled(0.2), "the latents of the image are much too small"),
    "a scale that is too large": (scaled(5.0), "the latents of the image are much too large"),
    "a scale that is twice too large": (scaled(2.0), "the scaling factor of the VAE is wrong"),
    "a third of noise in the denoiser": (weights("denoiser", with_noise(0.3)), "predicts the noise worse than a guess"),
    "a random denoiser": (weights("denoiser", random_weight), "predicts the noise worse than a guess"),
    "a denoiser that predicts 0": (weights("denoiser", without_output), "predicts the noise worse than a guess"),
    "another tokenizer": (weights("text_encoder", other_tokens), "the model does not understand prompts"),
    "prompts that are ignored": (weights("denoiser", without_prompts), "the model ignores prompts"),
}


@pytest.mark.parametrize("fault", [*MEASURED, *(pytest.param(fault, marks=pytest.mark.full) for fault in WEIGHED)])
@pytest.mark.parametrize("demo", FOLDERS, indirect=True)
def test_damaged_weights(demo: Demo, fault: str, tmp_path: Path) -> None:
    plant, sentence = (MEASURED | WEIGHED)[fault]
    plant(demo)
    found, done = verdict_on(demo.config(), tmp_path)
    assert (found, done.code) == ("weights", 1)
    assert sentence in done.message
    assert "Model page" in done.notes[-1], "what to do"


@pytest.mark.full
@pytest.mark.parametrize(
    ("changes", "fault", "sentence"),
    [
        ({"data": {"resolution_px": ["96x64", 64]}}, "none", "Passed"),  # the first alone
        ({"training": {"learning_rate": 1e-9}}, "settings", "the learning rate is too low. It is 1e-09"),
        ({"training": {"learning_rate": 3.0}}, "settings", "the learning rate is too high. It is 3"),
        ({"training": {"learning_rate": 0.3, "clip_grad_norm": None}}, "settings", "the learning rate is too high"),
        (
            {"training": {"optimizer": {"name": "sgd"}, "learning_rate": 5e-4}},
            "settings",
            "the optimizer or its settings. It is SGD",
        ),
        (
            {"training": {"clip_grad_norm": 1e-9}},
            "settings",
            "gradients are clipped at 1e-09. With the default of 1 the",
        ),
        (
            {"parts": {"unet": {"learning_rate": 1e-9}, "text_encoder": {"train": False}}},
            "settings",
            "the learning rate is too low. It is 1e-09",
        ),
        (
            {"parts": {"unet": {"train": False}, "text_encoder": {"train": True}}},
            "none",
            "Your settings train the Text encoder alone, and were not tried",
        ),
        (
            {"model": {"family": {"name": "sd", "prediction_type": "v_prediction"}}},
            "settings",
            "the prediction type is epsilon, and v-prediction is set",
        ),
        ({"parts": {"unet": {"dtype": "float8"}, "text_encoder": {"dtype": "float8"}}}, "none", "Passed"),
        ({"model": {"base_model": "/nowhere"}}, "unknown", "the run does not start"),
    ],
)
def test_settings(changes: dict[str, Any], fault: str, sentence: str, demo: Demo, tmp_path: Path) -> None:
    found, done = verdict_on(laid_over(demo.config(), changes, replaced={"optimizer"}), tmp_path)
    assert (found, done.code) == (fault, 0 if fault == "none" else 1), done.notes
    assert sentence in done.message


@pytest.mark.full
@pytest.mark.parametrize("demo", FOLDERS, indirect=True)
def test_an_optimizer_that_does_nothing(demo: Demo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda *_arguments, **_options: None)
    found, done = verdict_on(demo.config(), tmp_path, 4)
    assert found == "program", done.notes
    assert "no weight changes in training" in done.message
    assert "The gradient is not zero" in done.notes[0]
    (tmp_path / "out" / "self_test.json").unlink()
    found, done = verdict_on(demo.config(), tmp_path, 12)
    assert found == "program", "the run itself sees it after ten steps"
    assert "training fails even with settings that are known to work" in done.message
    assert "its weights did not change in 10 steps" in done.notes[0]


@pytest.mark.full
@pytest.mark.parametrize("demo", FOLDERS, indirect=True)
@pytest.mark.parametrize(("seed", "image"), [(1, "zog_02"), (2, "zog_05"), (3, "zog_09")])
def test_a_model_that_works_passes(demo: Demo, seed: int, image: str, tmp_path: Path) -> None:
    found, done = verdict_on(replace_value(demo.config(), "general.seed", seed), tmp_path, image=image)
    assert (found, done.code) == ("none", 0), done.notes
    samples = {"image.png", "known_before.png", "known_after.png", "config_before.png", "config_after.png"}
    assert {p.name for p in (tmp_path / "out").iterdir()} == samples | {"self_test.json"}
    assert not (tmp_path / "workspace").exists()
    assert not (tmp_path / "lora.safetensors").exists()
    assert measures(tmp_path)["colour_fit"] > 0.85, "far from the limit of 0.6"


# The loss of a model that knows the noise level and nothing of images.


@pytest.mark.parametrize("variance", [1.0, 0.3])
@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction", "flow", "zero SNR", "cosine"])
def test_the_loss_of_the_best_linear_guess(prediction: str, variance: float) -> None:
    """The least squares of the target on the noisy latents, at every timestep."""
    process = process_named(prediction)
    clean, noise = torch.randn((2, 1, 4, 64, 64), generator=torch.Generator().manual_seed(1)).double()
    clean *= math.sqrt(variance)
    for timestep in fixed_timesteps(10, num_timesteps=process.num_timesteps):
        at = torch.tensor([timestep])
        noisy, target = process.add_noise(clean, noise, at), process.target(clean, noise, at)
        error = float((target - noisy * (noisy * target).sum() / noisy.square().sum()).square().mean())
        assert uninformed_loss(process, timestep, variance=variance) == pytest.approx(error, rel=0.05)


def process_named(prediction: str) -> NoiseProcess:
    match prediction:
        case "flow":
            return FlowProcess()
        case "zero SNR":
            return DDPMProcess(rescale_to_zero_snr(cumulative_alphas()), "v_prediction")
        case "cosine":
            return cosine_process(files_of("wuerstchen").models[0].shipped_configs()["scheduler"])
        case _:
            return DDPMProcess(cumulative_alphas(), prediction)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(64, 64), (512, 48), (32, 400)])
@pytest.mark.parametrize("seed", range(3))
def test_random_matrices_are_told_from_those_that_have_learned(shape: tuple[int, int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(shape, generator=generator) * 2 - 1
    assert 0.9 < excess_of_random(uniform) < 1.06
    direction = 0.5 * torch.outer(*(torch.randn(n, generator=generator) for n in shape))
    assert excess_of_random(uniform + direction) > 1.3
    assert math.isnan(excess_of_random(torch.zeros(shape)))


# The verdicts.


GOOD = Measures(bounds={"500": 0.4, "900": 0.02}, prediction_type="epsilon")
KNOWN = ImageTrial(0.1, 0.05, by_timestep={"500": 0.2, "900": 0.01}, gradient_norm=0.3)


def test_a_level_of_noise_at_which_a_model_predicts_badly_is_enough() -> None:
    """On average the loss is that of a working model."""
    at_one_level = replace(KNOWN, by_timestep={"500": 0.16, "900": 0.05})
    verdict = of_levels(at_one_level, GOOD, denoiser="UNet")
    assert verdict is not None
    assert verdict.message.startswith("Probably")
    assert "at timestep 900 2.5 times that of a guess" in verdict.notes[0]
    assert of_levels(KNOWN, GOOD, denoiser="UNet") is None
    assert of_predictions(at_one_level, GOOD, denoiser="UNet", is_distilled=False) is None


HALVED = replace(GOOD, latents_rms=0.5)
AT_ONE_LEVEL = replace(KNOWN, by_timestep={"500": 0.1, "900": 0.03})


@pytest.mark.parametrize(
    ("known", "measures", "is_wrong"),
    [
        (AT_ONE_LEVEL, HALVED, True),
        (AT_ONE_LEVEL, replace(GOOD, latents_rms=2.0), True),
        (AT_ONE_LEVEL, GOOD, False),
        (KNOWN, HALVED, False),  # the model predicts them well, so they are as it knows them
        (AT_ONE_LEVEL, replace(HALVED, contrast=0.1), False),  # a pale image
    ],
)
def test_a_wrong_scale_of_the_vae_has_two_signs(known: ImageTrial, measures: Measures, is_wrong: bool) -> None:
    verdict = of_scale(known, measures)
    assert (verdict is not None) == is_wrong
    assert verdict is None or "at timestep 900 the model's loss is 1.5 times that of a guess" in verdict.notes[0]


@pytest.mark.parametrize(
    ("share", "is_distilled", "fault"),
    [
        (0.9, False, ""),
        (1.1, False, "Probably the UNet does not fit the VAE or the settings"),
        (1.9, True, ""),  # one of the images that are possible, not their mean
        (2.1, True, "Probably the UNet does not fit the VAE or the settings"),
        (math.nan, False, "Probably the precision is too low: the UNet"),
    ],
)
def test_the_loss_before_training(share: float, is_distilled: bool, fault: str) -> None:
    verdict = of_predictions(ImageTrial(share * 0.21, 0.1), GOOD, denoiser="UNet", is_distilled=is_distilled)
    assert verdict is None if not fault else verdict is not None and verdict.message.startswith(fault)


@pytest.mark.parametrize(
    ("measures", "cause", "message"),
    [
        (replace(GOOD, decoding_error=math.nan), "settings", "Probably the precision is too low: the VAE"),
        (replace(GOOD, decoding_error=0.2), "weights", "Probably the VAE is wrong"),
        (replace(GOOD, latents_rms=3.0), "weights", "Probably the VAE is wrong"),
        (replace(GOOD, colour_fit=0.3), "weights", "Probably the text encoder is wrong"),
        (replace(GOOD, colour_spread=1e-4), "weights", "The text encoder is wrong: the model ignores prompts"),
        (replace(GOOD, broken_parts=("VAE",)), "weights", "The weights are wrong"),
    ],
)
def test_a_verdict_that_could_be_false_begins_with_probably(measures: Measures, cause: str, message: str) -> None:
    verdict = of_measures(measures) or of_prompts(measures)
    assert verdict is not None
    assert (verdict.cause, verdict.message[: len(message)]) == (cause, message)


def test_reference_images_of_the_concept_are_found(demo: Demo, tmp_path: Path) -> None:
    """For the image in a subfolder, too; an image from elsewhere has none."""
    concept = {"path": str(tmp_path / "after"), "image": {"conditioning_folder": str(tmp_path / "before")}}
    config = laid_over(demo.config(), {"concepts": [concept]})
    for image, folder in (("after/a/1.png", str(tmp_path / "before" / "a")), ("other/1.png", "")):
        run = on_one_image(config, tmp_path / image, "a", workspace=tmp_path, num_steps=5, num_timesteps=2)
        assert [c.image.conditioning_folder for c in run.concepts] == [folder, folder]


@pytest.mark.parametrize(
    ("trial", "fault", "sentence"),
    [
        (KNOWN, None, ""),
        (replace(KNOWN, after=0.1), "program", "no weight changes"),
        (replace(KNOWN, after=0.099), "program", "probably this is a bug"),
        (replace(KNOWN, after=0.3), "program", "the loss rises by 200.0%"),
    ],
)
def test_the_verdict_on_known_settings(trial: ImageTrial, fault: str | None, sentence: str) -> None:
    verdict = of_known_settings(trial)
    assert (verdict and verdict.cause) == fault
    assert verdict is None or sentence in verdict.message


@pytest.mark.parametrize(
    ("trial", "seen"),
    [
        (replace(KNOWN, after=0.0999), "which is hardly anything"),
        (replace(KNOWN, after=0.108), "the loss rises by 8.0%, from 0.1 to 0.108, where it should fall"),
        (replace(KNOWN, after=0.1), "no weight changes. The gradient is not zero"),
        (replace(KNOWN, after=0.1, gradient_norm=0.0), "does not depend on what is trained"),
        (replace(KNOWN, after=0.5), "it diverges"),
        (replace(KNOWN, after=math.nan), "the loss is not a number in the end"),
        (ImageTrial(failure="No memory."), "the run failed: No memory."),
    ],
)
def test_the_verdict_on_settings(trial: ImageTrial, seen: str) -> None:
    verdict = of_settings(trial, culprit="the rate is too low", known=KNOWN)
    assert verdict is not None
    assert (verdict.cause, verdict.message) == ("settings", "Your settings are wrong: the rate is too low.")
    assert seen in verdict.notes[0]
    unknown = of_settings(trial, culprit="", known=KNOWN)
    assert unknown is not None
    assert "Begin with a preset" in unknown.notes[-1]


def test_settings_that_learn_slowly_pass() -> None:
    slow = replace(KNOWN, after=0.097)
    assert of_settings(slow, culprit="", known=KNOWN) is None
    assert passed(KNOWN, slow, GOOD).message == "Passed, but your settings learn slowly."
    assert passed(KNOWN, None, GOOD).cause == passed(KNOWN, KNOWN, GOOD).cause == "none"


FAILS, LEARNS = replace(KNOWN, after=0.0999), KNOWN
DOUBTED = replace(GOOD, latents_rms=3.0, colour_fit=0.3)
OVERFLOWS = ImageTrial(failure="The loss is not a number.", by_timestep={"500": math.nan})


@pytest.mark.parametrize(
    ("measures", "known", "mine", "message", "notes"),
    [
        (DOUBTED, LEARNS, FAILS, "Your settings are wrong", ["The model learns: ", "about the model, too. Probably"]),
        (
            DOUBTED,
            LEARNS,
            LEARNS,
            "Probably the VAE",
            ["It learns nevertheless: ", ", with yours the loss falls by 50"],
        ),
        (DOUBTED, FAILS, FAILS, "Probably the VAE", ["Probably the text encoder", "It does not learn: with settings"]),
        (DOUBTED, FAILS, LEARNS, "Probably the VAE", ["It learns nevertheless: ", "falls by 0.1%", "falls by 50.0%"]),
        (DOUBTED, replace(KNOWN, after=0.1), None, "Probably the VAE", ["It does not learn: "]),
        (DOUBTED, replace(KNOWN, failure="No memory."), None, "Probably the VAE", ["run failed. No memory."]),
        (DOUBTED, ImageTrial(failure="No file."), None, "The self-test cannot", ["No file.", "about the model, too"]),
        (
            replace(GOOD, prediction_type="flow"),
            OVERFLOWS,
            None,
            "Probably the precision is too low: the UNet",
            ["run failed. The loss", "bfloat16"],
        ),
        (
            HALVED,
            replace(AT_ONE_LEVEL, after=0.05),
            FAILS,
            "Probably the scaling factor of the VAE is wrong",  # not the settings, which may fail because of it
            ["It learns nevertheless: ", "with yours the loss falls by 0.1%", "correct the scaling factor"],
        ),
        (replace(GOOD, colour_fit=0.3), LEARNS, LEARNS, "Probably the text encoder", ["It learns nevertheless: "]),
        (
            replace(GOOD, bounds={"500": 0.09}),
            LEARNS,
            LEARNS,
            "Probably the UNet does not fit the VAE or the settings",
            ["It learns never"],
        ),
        (replace(GOOD, decoding_error=math.nan), LEARNS, LEARNS, "Probably the precision", ["It learns nevertheless"]),
        (replace(GOOD, colour_spread=0.0), LEARNS, None, "The text encoder is wrong", ["the same image"]),
        (replace(GOOD, broken_parts=("VAE",)), None, None, "The weights are wrong", ["Download the file again"]),
        (GOOD, replace(KNOWN, after=0.1), None, "This is a bug", ["The gradient is not zero"]),
        (GOOD, LEARNS, LEARNS, "Passed: the model, the program and your settings work", ["With your settings"]),
    ],
)
def test_doubts_about_the_model_are_weighed_against_what_it_learns(
    measures: Measures,
    known: ImageTrial | None,
    mine: ImageTrial | None,
    message: str,
    notes: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A healthy but unusual model is not called wrong before its settings are tried. What is certain ends the test."""
    trials = [trial for trial in (known, mine) if trial is not None]

    def next_trial(_changed: Config, _steps: int, _code: frozenset[str], _job: Job, what: str) -> ImageTrial:
        return FAILS if what.startswith(("Which", "Trying")) else trials.pop(0)

    monkeypatch.setattr("trainer.probe.self_test.measure_model", lambda *_arguments, **_options: measures)
    monkeypatch.setattr("trainer.probe.self_test._trial", next_trial)
    _found, done = verdict_on(Demo("#demo", FOLDERS["#demo"]).config(), tmp_path)
    assert done.message.startswith(message)
    assert [part for part in notes if part not in " ".join(done.notes)] == []
    assert trials == [], "all were tried"


@pytest.mark.parametrize("rms", [0.5, 1.0, 2.0])
def test_latents_of_unusual_images_pass(rms: float) -> None:
    assert of_measures(replace(GOOD, latents_rms=rms)) is None


def test_it_stops_at_once_and_while_it_learns(demo: Demo, tmp_path: Path) -> None:
    for reports in (0, 1, 20):
        desk = CommandDesk()
        seen: list[str] = []

        def emit(event: JobEvent, desk: CommandDesk = desk, seen: list[str] = seen, most: int = reports) -> None:
            seen.append(event.what if isinstance(event, JobProgress) else "")
            if len(seen) == most:
                desk.put(Stop())

        if not reports:
            desk.put(Stop())
        image = ROOT / "demo" / "zog" / "zog_01.png"
        every = Job(emit, desk, clock=itertools.count().__next__)  # reports, however fast they follow each other
        with pytest.raises(StopRequested):
            self_test(SelfTestRequest(demo.config(), image, "a", tmp_path / "out", 5), every)
        assert len(seen) in (reports, reports + 1)
        assert reports < 20 or seen[-1].startswith("2 of 3")
        assert list((tmp_path / "out").glob("*")) == []


def test_what_is_refused_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["self-test", "#demo", "--set", "training.trains=vae", "--steps", "5"]) != 0
    assert "trains the VAE" in capsys.readouterr().err


def test_the_command_line_states_the_verdict_then_what_to_do(
    demo: Demo, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo.change_weights("unet", with_nan)
    file = tmp_path / "config.json"
    export_file(demo.config(), file)
    assert main(["self-test", str(file), "--out", str(tmp_path / "out"), "--steps", "5"]) == 1
    printed = capsys.readouterr()
    message, advice = printed.err.splitlines()[-2:]
    assert message == "The weights are wrong: values of the UNet are not finite (NaN or infinite)."
    assert advice == "Download the file again, or choose another one on the Model page."
    assert str(tmp_path / "out" / "self_test.json") in printed.out


def test_an_image_that_cannot_be_read_is_refused_before_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, out = tmp_path / "größe.png", tmp_path / "out"
    broken.write_bytes(b"no image")
    assert main(["self-test", "#demo", "--image", str(broken), "--out", str(out), "--steps", "5"]) == 2
    assert f"{broken}: not a readable image." in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"parts": {"text_encoder": {"train": True, "learning_rate": 3.0}}}, "the learning rate is too high. It is 3,"),
        ({"parts": {"text_encoder": {"train": False, "learning_rate": 3.0}}}, "the learning rate scaler. Without it"),
        ({"parts": {"unet": {"learning_rate": 0.0}}}, "the learning rate is too low. It is 0,"),
    ],
)
def test_the_wrong_learning_rate_is_the_one_that_is_named(changes: dict[str, Any], sentence: str) -> None:
    """It was always that of the denoiser."""
    usual = {"training": {"trains": "adapter", "learning_rate": 5e-4, "learning_rate_scaler": "batch"}}
    _, _, named = next(groups(laid_over(Config(), {**usual, **changes})))
    assert named.startswith(sentence)
