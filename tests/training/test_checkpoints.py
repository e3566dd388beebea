"""Comparing the checkpoints of runs: the same prompts by each, sampled once, scored by what is on the computer."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from modules.config.schema import Config
from modules.formats.safetensors_io import read_safetensors
from modules.rewards.similarity import DINO_SIMILARITY, SIMILARITIES
from modules.system.errors import DarkroomError
from tests.builders.clip import write_clip_folder, write_dino_folder
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.qwen_vl_rewards import write_unified_reward
from tests.builders.runs import assert_equal_tensors, run
from trainer.__main__ import main
from trainer.commands import CommandDesk, Stop, StopRequested
from trainer.events import RunStarted, ValidationFinished
from trainer.job import Job
from trainer.job_events import ImageSampled
from trainer.jobs import checkpoint_engine
from trainer.jobs.checkpoint_files import checkpoints_of, identity_of
from trainer.jobs.checkpoint_scores import score_comparisons, scorers_here, similarity_folders
from trainer.jobs.checkpoints import CheckpointSettings
from trainer.jobs.sample_engine import SamplingEngine
from trainer.run_folder.checkpoints import Comparison, images_dir, read_comparison, write_comparison
from trainer.run_folder.result import embeddings_folder, results_of, use_as_result

pytestmark = pytest.mark.usefixtures("one_thread")
PROMPT = {"prompt": "a red disc", "width_px": 64, "height_px": 64, "steps": 1, "seed": 7, "guidance": 1.0}
EACH = {"n": 1, "unit": "step"}
_SIMILARITY_SCORES = {spec.score for spec in SIMILARITIES.values()}


@pytest.fixture(scope="module")
def config(tiny_sd: Path, images: Path, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A run of three steps with a save of the second one, the best one, and a backup of each."""
    folder = tmp_path_factory.mktemp("checkpoints")
    return small_config(
        folder,
        model=tiny_sd,
        images=images,
        concepts=[{"path": str(images)}, {"path": str(images), "kind": "validation"}],
        training={"learning_rate": 0.05, "epochs": 1},
        sampling={"prompts": [PROMPT, {**PROMPT, "prompt": "a blue square"}]},
        backup={"every": EACH, "save_every": {"n": 2, "unit": "step"}, "keep": 0},
        validation={"every": EACH, "num_timesteps": 1},
        reward={"models": [{"kind": "clip_score", "file": str(write_clip_folder(folder / "clip"))}]},
    )


@pytest.fixture(scope="module")
def ran(config: Config) -> tuple[Path, dict[int, float]]:
    """The folder of the run, and its validation losses by step."""
    done = run(config)
    losses = {v.step: v.loss for v in done.of(ValidationFinished) if v.step > 0}
    return Path(done.of(RunStarted)[0].run_dir), losses


@pytest.fixture
def run_dir(ran: tuple[Path, dict[int, float]], tmp_path: Path) -> Path:
    """A copy of the run's folder, whose result is its own, too."""
    copy = tmp_path / "workspace/runs" / ran[0].name
    shutil.copytree(ran[0], copy)
    return copy


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[SamplingEngine]:
    """The engines of comparisons, which know how often they loaded a model."""
    made: list[SamplingEngine] = []

    class Counted(SamplingEngine):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr(checkpoint_engine, "SamplingEngine", Counted)
    return made


def compare(
    *run_dirs: Path, on_event: Callable[[Any, CommandDesk], object] = lambda _event, _desk: None, **settings: Any
) -> tuple[list[Comparison], list[ImageSampled]]:
    """Compare runs; return the comparisons and the images that were sampled for them."""
    sampled: list[ImageSampled] = []
    desk = CommandDesk()

    def emit(event: Any) -> None:
        sampled.extend([event] if isinstance(event, ImageSampled) else [])
        on_event(event, desk)

    return checkpoint_engine.compare_runs(CheckpointSettings(**settings), run_dirs, Job(emit, desk)), sampled


def pixels(path: Path | None) -> Any:
    assert path is not None
    return np.asarray(Image.open(path)).astype(int)


def test_each_step_is_one_checkpoint_with_its_validation(ran: tuple[Path, dict[int, float]]) -> None:
    run_dir, losses = ran
    found = checkpoints_of(run_dir)
    assert [(c.step, c.kinds) for c in found] == [
        (1, ("backup",)),
        (2, ("save", "backup")),
        (3, ("best", "result", "backup")),
    ]
    assert {c.step: c.loss for c in found} == losses
    assert [c.step for c in checkpoints_of(run_dir, has_backups=False)] == [2, 3]


def test_a_step_without_a_validation_has_the_nearest_one(run_dir: Path) -> None:
    log = run_dir / "events.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    validations = [line for line in lines if '"ValidationFinished"' in line]
    log.write_text("".join(line for line in lines if line not in validations[-2:]))
    found = checkpoints_of(run_dir)
    assert [(c.loss_step, c.loss_place) for c in found] == [(1, ""), (1, " (step 1)"), (1, " (step 1)")]


def test_images_are_sampled_once_by_one_model_and_scored(run_dir: Path, engines: list[SamplingEngine]) -> None:
    dino = str(write_dino_folder(run_dir / "dino"))
    [first], sampled = compare(run_dir, strengths="1, 0", dino_model=dino)
    assert len(sampled) == 3 * 2 * 2
    assert [engine.num_loads for engine in engines] == [1]
    names = [c.name for c in first.checkpoints]
    untouched = [pixels(first.image_of(name, 0, 0.0)) for name in names]
    trained = [pixels(first.image_of(name, 0, 1.0)) for name in names]
    assert all(np.array_equal(image, untouched[0]) for image in untouched)
    assert not any(np.array_equal(one, other) for one, other in zip(trained, [untouched[0], *trained], strict=False))
    means = first.means("step-00000003", 1.0)
    assert means.keys() == {"clip_score", *_SIMILARITY_SCORES}
    assert all(0.2 < means[name] <= 1.0 for name in _SIMILARITY_SCORES)
    assert read_comparison(run_dir) == first
    lost = first.image_of("step-00000002", 1, 1.0)
    assert lost is not None
    lost.unlink()
    assert first.image_of("step-00000002", 1, 1.0) == lost
    missing = read_comparison(run_dir)
    assert missing is not None
    assert missing.image_of("step-00000002", 1, 1.0) is None
    [again], sampled = compare(run_dir, strengths="1, 0", dino_model=dino)
    assert [Path(event.path) for event in sampled] == [lost]
    assert set(again.cells) == set(first.cells)
    assert again.scores == first.scores


def test_what_cannot_be_scored_leaves_the_other_scores(config: Config, run_dir: Path, tmp_path: Path) -> None:
    [comparison], _ = compare(run_dir, backups=False, scores=False, prompts=("a disc",))
    damaged, whole = (cell.image for cell in comparison.cells)
    (images_dir(run_dir) / damaged).write_bytes(b"")
    elsewhere = laid_over(config, {"concepts": [{"path": str(tmp_path / "gone")}]})
    job = Job(lambda _event: None, CommandDesk())
    [scored] = score_comparisons([comparison], [elsewhere], job, similarities=["clip"])
    assert {image: list(scores) for image, scores in scored.scores.items()} == {whole: ["clip_score"]}
    of_image, of_similarity = scored.notes[-2:]
    assert of_image.startswith(f"An image has no scores: {images_dir(run_dir) / damaged}: ")
    assert of_similarity.startswith("Not everything is scored by Training images (CLIP): ")


def test_a_comparison_that_was_stopped_continues(run_dir: Path) -> None:
    def stop(event: Any, desk: CommandDesk) -> None:
        if isinstance(event, ImageSampled) and event.index == 2:
            desk.put(Stop())

    with pytest.raises(StopRequested):
        compare(run_dir, on_event=stop, scores=False)
    so_far = read_comparison(run_dir)
    assert so_far is not None
    assert len(so_far.cells) == 3
    [whole], sampled = compare(run_dir, scores=False)
    assert len(sampled) == 3
    assert len(whole.cells) == 6
    assert not whole.scores


def test_a_backup_without_a_save_is_sampled_as_the_save_was(run_dir: Path) -> None:
    [before], _ = compare(run_dir, scores=False)
    [save] = (run_dir / "save").glob("*-step-00000002.safetensors")
    saved, _ = read_safetensors(save)
    save.unlink()
    [after], sampled = compare(run_dir, scores=False, prompts=("a red disc",))
    assert [event.caption for event in sampled] == ["Step 2"]
    assert np.array_equal(*(pixels(c.image_of("step-00000002", 0, 1.0)) for c in (before, after)))
    of_backup = next(c for c in after.checkpoints if c.step == 2)
    assert of_backup.kinds == ("backup",)
    assert_equal_tensors(read_safetensors(of_backup.source)[0], saved)


def test_a_damaged_checkpoint_is_left_out_with_a_note(run_dir: Path) -> None:
    first, second, last = checkpoints_of(run_dir)
    weights = Path(first.backup) / "weights.safetensors"
    weights.write_bytes(bytes(weights.stat().st_size))
    second.source.write_bytes(second.source.read_bytes()[:-8])
    [comparison], sampled = compare(run_dir, prompts=("a disc",), scores=False)
    assert [event.caption for event in sampled] == [last.label]
    assert [c.name for c in comparison.checkpoints] == [second.name, last.name]
    assert [note.partition(" is left out: ")[0] for note in comparison.notes] == [first.label, second.label]
    assert read_comparison(run_dir) == comparison
    last.source.write_bytes(b"")
    (run_dir / "results.json").unlink()
    with pytest.raises(DarkroomError, match=r"Step 2 is left out: .*-best is left out: "):
        compare(run_dir, prompts=("another disc",), backups=False, scores=False)


def test_a_checkpoint_is_another_one_with_other_embeddings(run_dir: Path) -> None:
    save = checkpoints_of(run_dir)[1]
    before = identity_of(save)
    embedding = embeddings_folder(save.source) / "word.safetensors"
    embedding.parent.mkdir()
    embedding.write_bytes(b"1")
    with_one = identity_of(save)
    embedding.write_bytes(b"2")
    assert len({before, with_one, identity_of(save)}) == 3


def test_a_damaged_comparison_is_none(run_dir: Path) -> None:
    index = write_comparison(Comparison(run_dir, tuple(checkpoints_of(run_dir))))
    assert read_comparison(run_dir) is not None
    for damaged in (index.read_text().replace('"step": 1', '"step": Infinity'), "[]", "{}"):
        index.write_text(damaged)
        assert read_comparison(run_dir) is None


def test_several_runs_sample_the_prompts_of_the_first_with_one_model(
    run_dir: Path, tmp_path: Path, engines: list[SamplingEngine]
) -> None:
    other = tmp_path / "workspace/runs/other"
    shutil.copytree(run_dir, other)
    both, sampled = compare(run_dir, other, num_seeds=2, backups=False, scores=False)
    assert [c.run_dir for c in both] == [run_dir, other]
    assert [[(column.prompt, column.seed) for column in c.columns] for c in both] == [
        [(text, seed) for text in ("a red disc", "a blue square") for seed in (7, 8)]
    ] * 2
    assert len(sampled) == 2 * 2 * 4
    assert [engine.num_loads for engine in engines] == [1]


def test_the_winner_becomes_the_result_and_the_record_has_its_step(config: Config, run_dir: Path) -> None:
    destination = Path(config.output.destination)
    written = destination.read_bytes()
    try:
        winner = checkpoints_of(run_dir)[1]
        kept = use_as_result(winner.source, destination, run_dir=run_dir, is_kept=True, step=winner.step)
        assert kept is not None
        assert kept.read_bytes() == written
        assert destination.read_bytes() == winner.source.read_bytes()
        [result] = results_of(run_dir)
        assert (result.step, result.model_step, result.is_unchanged()) == (3, 2, True)
        assert [(c.step, c.kinds) for c in checkpoints_of(run_dir)] == [
            (1, ("backup",)),
            (2, ("save", "result", "backup")),
            (3, ("best", "backup", "earlier result")),
        ]
    finally:
        destination.write_bytes(written)


def test_checkpoints_as_it_is_typed(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoints", str(run_dir), "--prompt", "a disc", "--strengths", "0.5-1 [2]"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Not on this computer, so nothing is scored by: PickScore, ")
    heads = next(line for line in lines if line.startswith("Model "))
    assert "Training images (CLIP)" in heads
    assert "CLIP score" in heads
    assert [line.split()[2] for line in lines if line.startswith("Step ")] == ["0.5", "1"] * 3
    assert main(["checkpoints", str(run_dir), "--strengths", "much"]) == 2
    assert "'much' is not a number" in capsys.readouterr().err
    shutil.rmtree(run_dir / "save")
    shutil.rmtree(run_dir / "backup")
    (run_dir / "results.json").unlink()
    assert main(["checkpoints", str(run_dir)]) == 2
    assert "has no saves and no backups" in capsys.readouterr().err


def test_what_is_not_on_the_computer_is_named_and_never_downloaded(config: Config, tmp_path: Path) -> None:
    plain = laid_over(config, {"reward": {"models": []}, "model": {"hub_cache_dir": str(tmp_path)}})
    scorers, [note] = scorers_here(plain)
    assert scorers == []
    assert note.startswith("Not on this computer, so nothing is scored by: PickScore, CLIP score, Aesthetic (LAION)")
    folders, lacking = similarity_folders(plain, SIMILARITIES)
    assert folders == {}
    assert [note.partition(" needs ")[0] for note in lacking] == [
        "The similarity to the training images (CLIP)",
        "The similarity to the training images (DINO)",
    ]
    dino = write_dino_folder(tmp_path / "dino")
    assert similarity_folders(plain, ["dino"], str(dino)) == ({DINO_SIMILARITY: dino}, [])
    _, [wrong] = similarity_folders(plain, ["dino"], str(tmp_path))
    assert wrong.startswith("Training images (DINO) is not measured: ")
    unified = {"kind": "unified_reward", "file": str(write_unified_reward(tmp_path / "unified"))}
    named = laid_over(plain, {"reward": {"models": [unified]}})
    assert similarity_folders(named, ["clip"])[0] == {}, "a vision language model is not CLIP"
    measured = laid_over(config, {"reward": {"models": [{"kind": "sharpness"}, {"kind": "aesthetic", "file": "gone"}]}})
    assert [scorer.kind for scorer in scorers_here(measured)[0]] == ["sharpness"]


@pytest.mark.full
def test_whole_models_have_one_image_for_all_strengths(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "training": {"trains": "full", "epochs": 1},
        "sampling": {"prompts": [PROMPT]},
        "backup": {"every": EACH, "save_every": {"n": 2, "unit": "step"}, "keep": 0},
        "output": {"destination": str(tmp_path / "out/model.safetensors"), "format": "kohya"},
    }
    done = run(small_config(tmp_path, model=tiny_sd, images=images, **changes))
    [comparison], sampled = compare(Path(done.of(RunStarted)[0].run_dir), strengths="0.5, 1", scores=False)
    assert [c.is_adapter for c in comparison.checkpoints] == [False] * 3
    assert len(list(images_dir(comparison.run_dir).glob("*.png"))) == 3
    assert len(sampled) == len(comparison.cells) == 6


def test_a_run_of_embeddings_is_refused(run_dir: Path) -> None:
    config = (run_dir / "config.json").read_text()
    (run_dir / "config.json").write_text(config.replace('"trains": "adapter"', '"trains": "embedding"'))
    with pytest.raises(DarkroomError, match="trains no model that can be sampled by itself"):
        compare(run_dir)


@pytest.mark.full
def test_an_adapter_is_sampled_with_the_embeddings_of_its_step(
    tiny_sd: Path, tmp_path: Path, engines: list[SamplingEngine]
) -> None:
    changes: dict[str, Any] = {
        "training": {"learning_rate": 0.05, "epochs": 1},
        "embeddings": {"words": [{"placeholder": "<zog>", "token_count": 2}]},
        "sampling": {"prompts": [{**PROMPT, "prompt": "a <zog>", "steps": 2}]},
        "backup": {"every": EACH, "save_every": EACH, "keep": 0},
    }
    images = tmp_path / "images"
    draw_folder(images, sizes=[(64, 64)] * 3, captions=["a <zog>"])
    done = run(small_config(tmp_path, model=tiny_sd, images=images, **changes))
    run_dir = Path(done.of(RunStarted)[0].run_dir)
    [before], _ = compare(run_dir, scores=False)
    first, second = (pixels(before.image_of(f"step-0000000{step}", 0, 1.0)) for step in (1, 2))
    assert [engine.num_loads for engine in engines] == [len(before.checkpoints)]
    saves = [c.source for c in before.checkpoints[:2]]
    [word], [other] = (list(embeddings_folder(save).iterdir()) for save in saves)
    shutil.copyfile(other, word)
    [after], sampled = compare(run_dir, scores=False)
    assert [event.caption for event in sampled] == ["Step 1"]
    mixed = pixels(after.image_of("step-00000001", 0, 1.0))
    assert not any(np.array_equal(mixed, image) for image in (first, second))
    for save in saves:
        save.unlink()
    [of_backups], _ = compare(run_dir, scores=False)
    assert of_backups.checkpoints[0].kinds == ("backup",)
    for step, image in ((1, first), (2, second)):
        assert np.array_equal(pixels(of_backups.image_of(f"step-0000000{step}", 0, 1.0)), image)
