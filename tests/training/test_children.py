"""Every child process of the window but a run, as the window starts it, and one piece of work for each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from safetensors import safe_open

from modules.annotators.registry import CAPTIONERS, MASKERS
from modules.config.codec import save_file
from modules.config.schema import Config
from tests.builders.annotators import write_blip_folder, write_clipseg_folder
from tests.builders.configs import small_config
from tests.builders.images import draw_folder
from tests.builders.runs import run
from trainer.child.job import ChildJob, JobEnded, send_job, start_job
from trainer.events import RunFinished
from trainer.job_events import JobEvent, JobFailed, JobFinished
from trainer.jobs.registry import JOBS
from trainer.jobs.sample import SampleChoices, SampleRequest, sample_line
from trainer.jobs.spec import AdapterChoice, request_line, validate_settings
from ui.features.tensorboard import TensorBoardServer

_SECONDS = 120
FILE_JOBS = ("convert", "lora-merge", "lora-combine", "lora-resize", "lora-extract", "lora-blocks")
PROMPT = {"prompt": "a disc", "width_px": 64, "height_px": 64, "steps": 1, "sampler": "ddim"}


@dataclass(frozen=True)
class Trained:
    """A config, and what a run of it wrote."""

    config: Config
    lora: Path
    backup: Path


@pytest.fixture(scope="module")
def trained(tiny_sd: Path, images: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    config = small_config(
        tmp_path_factory.mktemp("children"),
        model=tiny_sd,
        images=images,
        training={"epochs": 1},
        backup={"at_end": True},
        sampling={"prompts": [PROMPT]},
    )
    ending = run(config).events[-1]
    assert isinstance(ending, RunFinished), ending
    return Trained(config, Path(ending.model_path), Path(ending.backup_path))


def end_of(child: ChildJob) -> JobFinished:
    """Wait for the end of a child, and return the result that it reported."""
    child.thread.join(_SECONDS)
    events: list[JobEvent | JobEnded] = list(child.waiting())
    ends = [event for event in events if isinstance(event, JobFinished | JobFailed)]
    assert len(ends) == 1, events
    assert isinstance(ends[0], JobFinished), ends[0]
    assert isinstance(events[-1], JobEnded)
    assert events[-1].code == 0, events[-1]
    return ends[0]


def done_by(name: str, **values: Any) -> JobFinished:
    """Do a job as the window does, and return its result."""
    return end_of(send_job(request_line(JOBS[name], validate_settings(JOBS[name].settings, values))))


@pytest.mark.full
def test_an_image_is_generated_with_the_lora_of_a_run(trained: Trained, tmp_path: Path) -> None:
    """Generate on the Sample page: the worker hid a package from libraries that had found it before."""
    request = SampleRequest(
        trained.config, SampleChoices(folder=str(tmp_path), adapters=(AdapterChoice(str(trained.lora)),)), number=1
    )
    child = start_job(("sample", "--serve"))
    child.send_line(sample_line(request))
    child.thread.join(1)
    finished = next(event for event in iter(lambda: child.events.get(timeout=_SECONDS), None) if _is_end(event))
    child.close()
    child.thread.join(_SECONDS)
    assert isinstance(finished, JobFinished), finished
    assert Path(finished.paths[0]).is_file()


def _is_end(event: JobEvent | JobEnded) -> bool:
    return isinstance(event, JobFinished | JobFailed | JobEnded)


@pytest.mark.full
def test_a_probe_measures(trained: Trained, tmp_path: Path) -> None:
    save_file(trained.config, tmp_path / "config.json")
    out = str(tmp_path / "probe")
    done_by("probe", config=str(tmp_path / "config.json"), what="rate", steps=12, out=out)
    assert (tmp_path / "probe" / "points.json").is_file()


@pytest.mark.full
def test_a_backup_is_exported(trained: Trained, tmp_path: Path) -> None:
    """Save the model of a step, on the Run page."""
    out = tmp_path / "step.safetensors"
    done_by("export", run_path=str(trained.backup), out=str(out), overwrite=True)
    assert _keys(out) == _keys(trained.lora)


@pytest.mark.daily(1)  # all start in the same way, and what each does is tested in this process
@pytest.mark.parametrize("name", FILE_JOBS)
def test_a_tool_writes_its_result(name: str, trained: Trained, tiny_sd: Path, tmp_path: Path) -> None:
    out = tmp_path / ("model" if name == "lora-merge" else "out.safetensors")
    lora, model = str(trained.lora), str(tiny_sd)
    values: dict[str, Any] = {
        "source": lora, "files": [{"path": lora, "strength": 0.5}], "model": model, "base": model, "tuned": model,
        "rank": 1, "strengths": "down=1, up=0.5", "out": str(out),
    }  # fmt: skip
    if name == "lora-extract":
        merged = tmp_path / "tuned"
        done_by("lora-merge", model=model, out=str(merged), files=[{"path": lora}])
        values = {**values, "tuned": str(merged)}
    own = {key: value for key, value in values.items() if key in JOBS[name].settings.model_fields}
    assert out in [Path(path) for path in done_by(name, **own).paths]
    assert out.exists()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one image, and no captions and masks."""
    folder = draw_folder(tmp_path / "images", sizes=[(32, 32)])
    for file in folder.glob("*.txt"):
        file.unlink()
    return folder


def _as_downloaded(cache: Path, repo: str) -> Path:
    """Return the folder of a model's files in a cache of the hub."""
    place = cache / f"models--{repo.replace('/', '--')}"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("0" * 40, encoding="utf-8")
    return place / "snapshots" / ("0" * 40)


@pytest.mark.full
def test_a_caption_is_written(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = CAPTIONERS["blip_base"].files
    assert files is not None
    write_blip_folder(_as_downloaded(tmp_path / "hub", files.repo))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    done_by("caption", folder=str(folder), model="blip_base", device="cpu")
    assert len(list(folder.glob("*.txt"))) == 1


@pytest.mark.full
def test_a_mask_is_written(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = MASKERS["clipseg"].files
    assert files is not None
    write_clipseg_folder(_as_downloaded(tmp_path / "hub", files.repo))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    done_by("mask", folder=str(folder), model="clipseg", device="cpu", prompts="a disc")
    assert len(list(folder.glob("*-masklabel.png"))) == 1


def test_tensorboard_answers(tmp_path: Path) -> None:
    server = TensorBoardServer()
    try:
        with urlopen(server.start(tmp_path), timeout=_SECONDS) as answer:
            assert b"TensorBoard" in answer.read()
    finally:
        server.close()


def _keys(file: Path) -> set[str]:
    with safe_open(file, "pt") as tensors:
        return set(tensors.keys())
