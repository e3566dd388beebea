"""Samples without a run: any model, adapters with strengths, embeddings, grids, and a worker that keeps the model."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from modules.config.schema import Config
from modules.config.sections.evaluation import SamplePrompt
from modules.system.errors import DarkroomError
from tests.builders.configs import laid_over, small_config
from tests.builders.pipelines import load_tiny
from tests.builders.runs import run
from tests.training.test_lora_tools import write_lora
from trainer import commands
from trainer.__main__ import main
from trainer.events import RunStarted
from trainer.job import Job
from trainer.job_events import ImageSampled, JobFailed, JobFinished, JobProgress, JobStopped
from trainer.jobs.sample import SampleChoices, SampleRequest, sample_in, sample_line
from trainer.jobs.sample_engine import Inbox, SamplingEngine, serve
from trainer.jobs.sample_grid import plan_of
from trainer.jobs.sample_images import compose_grid, read_settings
from trainer.jobs.sample_sources import with_model
from trainer.jobs.spec import AdapterChoice

pytestmark = pytest.mark.usefixtures("one_thread")
PROMPT = SamplePrompt(prompt="a red disc", width_px=64, height_px=64, steps=1, seed=7, guidance=2.0, sampler="ddim")


def request_of(config: Config, folder: str, adapters: tuple[AdapterChoice, ...] = (), *, number: int = 0,
               **choices: Any) -> SampleRequest:  # fmt: skip
    return SampleRequest(config, SampleChoices(folder=folder, adapters=adapters, **choices), number)


def with_choices(request: SampleRequest, **choices: Any) -> SampleRequest:
    return replace(request, choices=request.choices.model_copy(update=choices))


@pytest.fixture(scope="module")
def base(tiny_sd: Path, images: Path, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A config of a tiny model with one prompt."""
    return small_config(
        tmp_path_factory.mktemp("idle"), model=tiny_sd, images=images, sampling={"prompts": [PROMPT.model_dump()]}
    )


@pytest.fixture(scope="module")
def lora(tiny_sd: Path, tmp_path_factory: pytest.TempPathFactory) -> AdapterChoice:
    return AdapterChoice(str(write_lora(tmp_path_factory.mktemp("lora") / "one.safetensors", tiny_sd, seed=1)), 1.0)


def pixels(path: str) -> Any:
    return np.asarray(Image.open(path)).astype(int)


def test_a_strength_grid_with_the_model_loaded_once(base: Config, lora: AdapterChoice, tmp_path: Path) -> None:
    engine, events = SamplingEngine(), list[Any]()
    request = request_of(base, str(tmp_path / "out"), (lora,), x="strength=0-1 [3]",
                            y="guidance=1.5, 3", num_images=2)  # fmt: skip
    finished = engine.sample(request, Job(events.append))
    assert engine.num_loads == 1
    assert len(finished.paths) == 14
    singles, grids = finished.paths[:12], finished.paths[12:]
    settings = [read_settings(Path(path)) for path in singles]
    places = {
        (s["adapters"][0]["strength"], s["guidance"], s["seed"]): p for s, p in zip(settings, singles, strict=True)
    }
    assert places.keys() == {(s, g, seed) for s in (0.0, 0.5, 1.0) for g in (1.5, 3.0) for seed in (7, 8)}
    plain = request_of(laid_over(base, {"sampling": {"prompts": [{**PROMPT.model_dump(), "guidance": 3.0}]}}),
                          str(tmp_path / "plain"))  # fmt: skip
    [path] = engine.sample(plain, Job(events.append)).paths
    assert np.array_equal(pixels(path), pixels(places[0.0, 3.0, 7]))  # taken off without a trace
    assert not np.array_equal(pixels(path), pixels(places[1.0, 3.0, 7]))
    assert engine.num_loads == 1
    sheet = Image.open(grids[0])
    assert sheet.width > 3 * 64
    assert sheet.height > 2 * 64
    assert read_settings(Path(grids[0]))["grid"]["x"] == ["Strength 0", "Strength 0.5", "Strength 1"]
    with Image.open(singles[0]) as image:
        assert "Steps: 1, Sampler: DDIM, CFG scale: 1.5, Seed: 7, Size: 64x64" in image.info["parameters"]
        assert "<lora:one:0>" in image.info["parameters"]
    sampled = [event for event in events if isinstance(event, ImageSampled)]
    assert [event.caption for event in sampled[:2]] == ["Strength 0, CFG 1.5", "Strength 0, CFG 3"]
    assert [event.is_grid for event in sampled[:14]] == [False] * 12 + [True] * 2
    done = [event.done for event in events if isinstance(event, JobProgress) and event.what == "sampling"]
    assert max(done) == 12


def test_a_lora_of_an_unknown_alpha_is_noted(base: Config, tmp_path: Path) -> None:
    """PEFT stores alpha in a file of its own, which is easily lost."""
    layer = "base_model.model.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"
    width = load_tiny(Path(base.model.base_model)).parts["unet"].module.conv_in.out_channels
    tensors = {f"{layer}.lora_A.weight": torch.ones(2, width), f"{layer}.lora_B.weight": torch.zeros(width, 2)}
    save_file(tensors, tmp_path / "raw.safetensors")
    request = request_of(base, str(tmp_path / "out"), (AdapterChoice(str(tmp_path / "raw.safetensors"), 1.0),))
    [note] = SamplingEngine().sample(request, Job(lambda _event: None)).notes
    assert note.startswith("raw.safetensors: ")
    assert "Its alpha is unknown" in note


def test_two_loras_add_up_and_replace_each_other(base: Config, lora: AdapterChoice, tmp_path: Path) -> None:
    engine = SamplingEngine()

    def image(*adapters: AdapterChoice) -> Any:
        return pixels(engine.sample(request_of(base, str(tmp_path), adapters), Job(lambda _event: None)).paths[0])

    twice = image(lora, replace(lora, strength=0.5))
    assert np.abs(twice - image(replace(lora, strength=1.5))).max() <= 1
    assert not np.array_equal(twice, image(lora))
    assert engine.num_loads == 1


def test_an_embedding_is_the_name_of_its_file(base: Config, tmp_path: Path) -> None:
    vectors = torch.randn(2, 24, generator=torch.Generator().manual_seed(1))
    save_file({"emb_params": vectors}, tmp_path / "zog.safetensors")
    engine = SamplingEngine()
    config = laid_over(base, {"sampling": {"prompts": [{**PROMPT.model_dump(), "prompt": "a zog disc"}]}})
    request = request_of(config, str(tmp_path / "out"))
    without = engine.sample(request, Job(lambda _event: None)).paths[0]
    embeddings = (str(tmp_path / "zog.safetensors"),)
    with_it = engine.sample(with_choices(request, embeddings=embeddings), Job(lambda _event: None)).paths[0]
    assert not np.array_equal(pixels(without), pixels(with_it))


def test_saves_and_backups_of_a_run(base: Config, tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "general": {"workspace_dir": str(tmp_path / "w")},
        "output": {"destination": str(tmp_path / "l.safetensors")},
        "backup": {"at_end": True, "save_every": {"n": 1, "unit": "step"}},
        "training": {"learning_rate": 0.05, "epochs": 1},
    }
    done = run(laid_over(base, changes))
    run_dir = Path(done.of(RunStarted)[0].run_dir)
    engine = SamplingEngine()
    request = request_of(base, str(tmp_path / "out"), x="save=all", run=str(run_dir))
    plan = plan_of(request)
    assert len(plan.columns) >= 2
    paths = engine.sample(request, Job(lambda _event: None)).paths
    first, last = pixels(paths[0]), pixels(paths[len(plan.columns) - 1])
    assert not np.array_equal(first, last)
    backup = next(path for path in (run_dir / "backup").iterdir() if path.is_dir())
    of_backup = engine.sample(with_choices(request, x="", backup=str(backup)), Job(lambda _event: None)).paths[0]
    assert np.abs(pixels(of_backup) - last).max() <= 1
    both = with_choices(request, y="strength=0, 1")
    assert plan_of(both).cells[0].weights.adapters[0].strength == 0.0  # that of the save
    one = AdapterChoice(plan.cells[0].weights.adapters[0].path, 0.5)  # as the window takes the last save of a run
    alone = plan_of(with_choices(request, adapters=(one,)))
    assert [[a.strength for a in cell.weights.adapters] for cell in alone.cells] == [[0.5]] * len(plan.columns)
    with pytest.raises(DarkroomError, match="has no save '77'"):
        plan_of(with_choices(request, x="save=77"))


AXES: dict[str, tuple[str, list[str]]] = {
    "steps": ("2-6 (+2)", ["Steps 2", "Steps 4", "Steps 6"]),
    "guidance": ("1, 2.5", ["CFG 1", "CFG 2.5"]),
    "seed": ("1-3", ["Seed 1", "Seed 2", "Seed 3"]),
    "sampler": ("Euler a, dpmpp", ["Euler a", "DPM++ 2M"]),
    "prompt": ('red, blue, "green, dark"', ["red", "blue", "green, dark"]),
}


@pytest.mark.parametrize("name", AXES)
def test_the_values_of_each_axis(name: str, base: Config) -> None:
    values, labels = AXES[name]
    plan = plan_of(request_of(base, "out", x=f"{name}={values}"))
    assert list(plan.columns) == labels
    assert len({cell.prompt.model_dump_json() for cell in plan.cells}) == len(labels)
    if name == "prompt":
        assert [c.prompt.prompt for c in plan.cells] == ["a red disc", "a blue disc", "a green, dark disc"]


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("steps", "many", "'many' is not a number"),
        ("steps", "0", "Steps 0"),
        ("steps", "", "has no values"),
        ("sampler", "nobody", "no sampler 'nobody'"),
        ("prompt", "boat, ship", "does not contain 'boat'"),
        ("strength", "1", "needs a LoRA"),
        ("save", "1", "needs a run"),
        ("seed", "1-5000", "too many"),
        ("colour", "1", "There is no axis 'colour'"),
    ],
)
def test_bad_axes_are_refused_by_name(name: str, values: str, reason: str, base: Config) -> None:
    with pytest.raises(DarkroomError, match=reason):
        plan_of(request_of(base, "out", x=f"{name}={values}"))


def test_wildcards_follow_from_the_seed_of_each_image(base: Config, tmp_path: Path) -> None:
    (tmp_path / "colour.txt").write_text("red\ngreen\nblue\n")
    prompt = {**PROMPT.model_dump(), "prompt": "a __colour__ {disc|square}, __lost__"}
    config = laid_over(base, {"sampling": {"prompts": [prompt]}})
    request = request_of(config, "out", num_images=30, wildcards=str(tmp_path))
    plan = plan_of(request)
    assert len({cell.prompt.prompt for cell in plan.cells}) == 6
    assert plan_of(request) == plan
    assert plan.cells[0].missing == ("lost",)


def test_a_request_survives_the_pipe(base: Config) -> None:
    choices = {"embeddings": ("e",), "num_images": 3, "x": "steps=1", "wildcards": "w", "backup": "b", "run": "r"}
    request = request_of(base, "out", (AdapterChoice("a", 0.5),), number=5, **choices)
    assert sample_in(sample_line(request)) == request
    assert sample_in('{"command": "Stop"}') is None


def test_the_worker_answers_every_request_and_stops_between_denoising_steps(base: Config, tmp_path: Path) -> None:
    long = laid_over(base, {"sampling": {"prompts": [{**PROMPT.model_dump(), "steps": 500}]}})
    requests = [
        request_of(base, str(tmp_path / "a"), number=1),
        request_of(base, str(tmp_path / "b"), (AdapterChoice("/nowhere.safetensors"),), number=2),
        request_of(long, str(tmp_path / "c"), number=3),
    ]
    events: list[Any] = []
    inbox, samples_long = Inbox(), threading.Event()

    def window() -> Iterator[str]:
        """Send three requests, and a stop once the long one is being sampled; then end."""
        yield from (sample_line(request) + "\n" for request in requests)
        assert samples_long.wait(timeout=60)
        yield commands.to_line(commands.Stop()) + "\n"
        assert stopped.wait(timeout=60)

    stopped = threading.Event()

    def emit(event: Any) -> None:
        events.append(event)
        if isinstance(event, JobProgress) and event.total == 500:
            samples_long.set()
        if isinstance(event, JobStopped):
            stopped.set()

    reader = threading.Thread(target=inbox.read, args=(window(),))
    reader.start()
    assert serve(inbox, emit) == 3
    reader.join()
    answers = [event for event in events if isinstance(event, JobFinished | JobFailed | JobStopped)]
    assert [(type(a), a.request) for a in answers] == [(JobFinished, 1), (JobFailed, 2), (JobStopped, 3)]
    assert not list((tmp_path / "c").glob("*"))
    assert serve(Inbox(), emit, idle_seconds=0.0) == 0


def test_sample_as_it_is_typed(tiny_sd: Path, lora: AdapterChoice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                               capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.setenv("DARKROOM_CALLER_DIR", str(tmp_path))
    fields = [
        "--prompt",
        "a {red|blue} disc",
        "--steps",
        "1",
        "--width-px",
        "64",
        "--height-px",
        "64",
        "--guidance",
        "1",
    ]
    fields += ["--set", "general.train_device=cpu", "--out", "out"]
    grid = ["--x", "strength=0,1", "--y", "seed=1,2"]
    assert main(["sample", "--model", str(tiny_sd), "--lora", f"{lora.path}:0.5", *grid, *fields]) == 0
    paths = capsys.readouterr().out.splitlines()
    assert len(paths) == 5
    assert read_settings(Path(paths[0]))["prompt"] in ("a red disc", "a blue disc")
    assert main(["sample", "--model", str(tiny_sd), *fields, "--x", "steps"]) == 2
    assert "has no values" in capsys.readouterr().err
    assert main(["sample", *fields]) == 2
    assert "No model is given" in capsys.readouterr().err
    with pytest.raises(DarkroomError, match="is not a whole model"):
        with_model(Config(), lora.path)


def test_a_grid_has_its_labels_and_images_in_place() -> None:
    cells = {(x, y): Image.new("RGB", (60, 40), (x * 100, y * 100, 200)) for x in range(3) for y in range(2)}
    sheet = compose_grid(cells, ["one", "two", "three"], ["a long label of a row", "short"], title="the prompt")
    left, top = sheet.width - 3 * 64, sheet.height - 2 * 44
    assert left > 20
    assert top > 20
    for (x, y), cell in cells.items():
        assert sheet.getpixel((left + x * 64 + 30, top + y * 44 + 20)) == cell.getpixel((0, 0))
    assert np.asarray(sheet.crop((left, 0, sheet.width, top)).convert("L")).min() < 100  # something is written
    assert json.loads(json.dumps(read_settings(Path("/nowhere.png")))) == {}
