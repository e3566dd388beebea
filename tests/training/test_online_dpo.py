"""Online DPO: the first loss, what moves, equal gradients, the refreshed reference, resuming, rollouts as files."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from modules.config.rules import problems_of
from modules.config.schema import Config
from modules.memory import checkpointing
from modules.memory.placement import Placement
from modules.rewards import measures
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.matrix import matrix
from tests.builders.runs import Ran, assert_equal_tensors, assert_resumed, run, steps_of, stop_at, weights_of
from trainer.events import PhaseChanged, RunFailed, RunFinished, StepFinished, WarningRaised
from trainer.methods import rollout_images
from trainer.methods.image_pairs import ImagePairs
from trainer.methods.online_dpo import OnlineDpo, PairBatch
from trainer.methods.pair_rollout import Candidates, PairRollout, extremes_of, pairs_of
from trainer.methods.protocol import StepContext, StepLoss
from trainer.rollout_events import RolloutSampled

ONLINE: dict[str, Any] = {
    "name": "online_dpo",
    "steps": 3,
    "candidates": 3,
    "guidance": 2.0,
    "updates_per_rollout": 2,
}
REWARD: dict[str, Any] = {"models": [{"kind": "brightness"}], "measure_every": {"unit": "never"}}
OF_THE_PAIRS = {
    "implicit_accuracy": 0.5,
    "margin": 0.0,
    "negative_margins": 0.0,
    "chosen_error": 0.0,
    "rejected_error": 0.0,
}


@pytest.fixture(scope="module")
def two_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_folder(tmp_path_factory.mktemp("two"), sizes=[(64, 64)] * 2, captions=["a disc", "a square, red"])


@pytest.fixture(scope="module")
def hard_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sizes: three micro-batches, two groups in an epoch."""
    sizes = [(64, 64)] * 3 + [(96, 64)] * 2
    return draw_folder(tmp_path_factory.mktemp("hard"), sizes=sizes, captions=["a disc", "a red disc, small"])


def config_of(folder: Path, model: Path, images: Path, changes: dict[str, Any] | None = None, **method: Any) -> Config:
    config = small_config(
        folder,
        model=model,
        images=images,
        training={"method": {**ONLINE, **method}, "epochs": 2, "batch_size": 2},
        reward=REWARD,
        parts={name: {"train": False} for name in ("text_encoder", "text_encoder_2")},
        output={"dtype": "float32", "model_format": "single_file"},
    )
    return laid_over(config, changes or {})


@pytest.fixture
def families(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The models of the runs of a test, with their weights as they were before the first step."""
    seen: list[Any] = []
    plain = OnlineDpo.prepare

    def prepare(method: OnlineDpo, context: StepContext) -> None:
        plain(method, context)
        seen.append((context.family, weights_of(context.family)))

    monkeypatch.setattr(OnlineDpo, "prepare", prepare)
    return seen


# ---- the first loss, and what moves


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("model", "trains", "reference", "precision"),
    matrix(
        ["tiny_sd", "tiny_sd2", "tiny_sdxl", "tiny_sdxl_v"],
        ["adapter", "full"],
        ["original", "refreshed"],
        ["float32", "bfloat16"],
    ),
)
def test_the_first_loss_is_ln_2_and_exactly_the_trained_weights_move(
    request: pytest.FixtureRequest,
    two_images: Path,
    tmp_path: Path,
    families: list[Any],
    model: str,
    trains: str,
    reference: str,
    precision: str,
) -> None:
    training = {"trains": trains, "precision": precision}
    folder = request.getfixturevalue(model)
    ran = run(config_of(tmp_path, folder, two_images, {"training": training}, reference=reference))
    steps = ran.of(StepFinished)
    assert len(steps) == 4, ran.ending
    assert steps[0].loss == pytest.approx(math.log(2), abs=1e-6)
    assert {n: v for n, v in steps[0].metrics.items() if n in OF_THE_PAIRS} == OF_THE_PAIRS
    assert all(step.metrics["margin"] != 0 for step in steps[1:])
    assert all(step.gradient_norm for step in steps)
    assert not ran.of(WarningRaised)
    [(family, before)] = families
    moved = {name for name, value in weights_of(family).items() if not torch.equal(value, before[name])}
    expected = {n for n in before if n.startswith("unet.")}
    assert moved == ({n for n in expected if "lora_" in n} if trains == "adapter" else expected)


@pytest.mark.full  # every day: test_preference_matrix
@pytest.mark.parametrize(("model", "trains"), matrix(["tiny_sd", "tiny_sdxl"], ["adapter", "full"]))
def test_gradients_are_equal_to_the_bit_whatever_is_checkpointed(
    request: pytest.FixtureRequest, two_images: Path, tmp_path: Path, model: str, trains: str
) -> None:
    ran: list[Ran] = []
    for mode, offloads in (("off", False), ("block", False), ("whole", False), ("block", True)):
        parts = {"unet": {"checkpointing": mode, "offload_activations": offloads}}
        changes = {"parts": parts, "training": {"trains": trains, "epochs": 1, "learning_rate": 3e-3}}
        config = config_of(tmp_path / f"{mode}{offloads}", request.getfixturevalue(model), two_images, changes)
        ran.append(run(config))
    assert len({str(steps_of(r)) for r in ran}) == 1
    for other in ran[1:]:
        assert_equal_tensors(ran[0].weights, other.weights)


@pytest.mark.full
def test_a_trained_text_encoder_has_a_reference_of_its_own(tiny_sd: Path, two_images: Path, tmp_path: Path) -> None:
    changes = {"parts": {"text_encoder": {"train": True}}}
    for reference in ("original", "refreshed"):
        first, *rest = run(config_of(tmp_path, tiny_sd, two_images, changes, reference=reference)).of(StepFinished)
        assert (first.metrics["margin"], first.metrics["implicit_accuracy"]) == (0.0, 0.5)
        assert all(step.metrics["margin"] != 0 for step in rest)
        assert set(first.learning_rates) == {"unet", "text_encoder"}


# ---- pairs


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[PairBatch]:
    """The micro-batches of a test's runs, without those of the dry run."""
    seen: list[PairBatch] = []
    plain = OnlineDpo.loss

    def loss(method: OnlineDpo, batch: PairBatch, context: StepContext) -> StepLoss:
        if not method.pairing.is_trial:
            seen.append(batch)
        return plain(method, batch, context)

    monkeypatch.setattr(OnlineDpo, "loss", loss)
    return seen


def test_the_best_and_the_worst_image_of_each_prompt_are_the_pairs(
    tiny_sd: Path, hard_images: Path, tmp_path: Path, batches: list[PairBatch]
) -> None:
    changes = {"training": {"epochs": 1, "accumulation_steps": 2}}
    ran = run(config_of(tmp_path, tiny_sd, hard_images, changes))
    assert [b.group_samples for b in batches if b.is_last_micro_batch] == [4, 4, 1, 1]
    assert [len(b.latents_BNCHW) for b in batches[:2]] == [2, 2]
    for event in ran.of(RolloutSampled):
        by_prompt = [event.images[i : i + 3] for i in range(0, len(event.images), 3)]
        for images in by_prompt:
            assert len({image.prompt for image in images}) == 1
            rewards = [image.reward or 0.0 for image in images]
            assert [i.mark for i in images] == [
                "best" if r == max(rewards) else "worst" if r == min(rewards) else "" for r in rewards
            ]
    first = ran.of(StepFinished)[0].metrics
    assert set(first) == {"reward", "reward/brightness", "reward_std", "equal_rewards", "diversity", *OF_THE_PAIRS}
    assert first["equal_rewards"] == 0.0
    phases = [e.detail for e in ran.of(PhaseChanged) if e.phase == "sampling"]
    assert phases == ["12 images to compare", "3 images to compare"]


def test_pairs_hold_the_latents_of_the_chosen_images() -> None:
    """Three prompts in batches of two and one; the second has no best image."""
    latents = tuple(torch.full((3, 4, 2, 2), 10.0 * n) + torch.arange(3.0)[:, None, None, None] for n in range(3))
    rollout = pairs_of(Candidates(6, latents, {"reward": 0.5}), [(2, 0), None, (0, 1)], [2, 1])
    values = {place: pair[:, 0, 0, 0].tolist() for place, pair in rollout.latents_NCHW.items()}
    assert values == {(0, 0, 0): [2.0, 0.0], (1, 0, 0): [20.0, 21.0]}
    assert rollout.metrics == {"reward": 0.5, "equal_rewards": pytest.approx(1 / 3)}
    assert not rollout.is_silent
    restored = PairRollout.from_state(rollout.to_state())
    assert restored.to_state().keys() == rollout.to_state().keys()
    assert all(torch.equal(pair, restored.latents_NCHW[place]) for place, pair in rollout.latents_NCHW.items())
    assert rollout.places_of(0, 0, seed=1) == [[(0, 0, 0)], [(1, 0, 0)]]
    one, two, three = (rollout.places_of(update, 1, seed=1)[0] for update in range(3))
    assert one == three
    assert sorted([*one, *two]) == [(0, 0, 0), (1, 0, 0)]
    assert pairs_of(Candidates(6, latents, {}), [None] * 3, [2, 1]).is_silent


@pytest.mark.parametrize(
    ("values", "expected"), [([1.0, 3.0, 2.0], (1, 0)), ([0.0, 0.0], None), ([1.0, 1.0, 1.0 - 1e-9], None)]
)
def test_the_best_and_the_worst_value(values: list[float], expected: tuple[int, int] | None) -> None:
    assert extremes_of(values) == expected


def test_equal_rewards_train_nothing_and_are_reported_once(
    tiny_sd: Path, two_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measures, "brightness", lambda images: torch.full((len(images),), 0.3))
    ran = run(config_of(tmp_path, tiny_sd, two_images))
    for step in ran.of(StepFinished):
        assert step.metrics["equal_rewards"] == 1.0
        assert (step.loss, step.gradient_norm) == (0.0, 0.0)
        assert "margin" not in step.metrics
    [warning] = ran.of(WarningRaised)
    assert "nothing is learned" in warning.message
    assert {image.mark for event in ran.of(RolloutSampled) for image in event.images} == {""}


def test_a_prompt_without_a_best_image_is_left_out(
    tiny_sd: Path, two_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: list[PairBatch]
) -> None:
    """The first prompt's images have no scores."""
    plain = measures.brightness

    def unsure(images_B3PP: torch.Tensor) -> torch.Tensor:
        scores_B = plain(images_B3PP)
        scores_B[0] = torch.nan
        return scores_B

    monkeypatch.setattr(measures, "brightness", unsure)
    steps = run(config_of(tmp_path, tiny_sd, two_images)).of(StepFinished)
    assert all(step.metrics["equal_rewards"] == 0.5 and step.gradient_norm for step in steps)
    assert {len(b.latents_BNCHW) for b in batches} == {1}


def test_steps_take_their_pairs_in_turn(
    tiny_sd: Path, hard_images: Path, tmp_path: Path, batches: list[PairBatch]
) -> None:
    changes = {"training": {"epochs": 1, "accumulation_steps": 3}}
    run(config_of(tmp_path, tiny_sd, hard_images, changes, pairs_per_update=2, updates_per_rollout=3))
    by_step: dict[int, list[PairBatch]] = {}
    for batch in batches:
        by_step.setdefault(batch.step, []).append(batch)
    assert [sum(len(b.latents_BNCHW) for b in of_step) for of_step in by_step.values()] == [2, 2, 2]
    assert all(b.group_samples == 2 for b in batches)
    assert [of_step[-1].is_last_micro_batch for of_step in by_step.values()] == [True] * 3
    seen = {tuple(pair.flatten().tolist()) for b in batches for pair in b.latents_BNCHW}
    assert len(seen) == 5, "a pair was never trained"


def test_the_order_of_pairs_follows_from_the_seed_of_the_run(
    tiny_sd: Path, two_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []
    plain = PairRollout.places_of

    def places_of(rollout: PairRollout, update: int, pairs_per_update: int, *, seed: int) -> Any:
        seeds.append(seed)
        return plain(rollout, update, pairs_per_update, seed=seed)

    monkeypatch.setattr(PairRollout, "places_of", places_of)
    for run_seed in (1, 2):
        run(config_of(tmp_path, tiny_sd, two_images, {"training": {"epochs": 1}, "general": {"seed": run_seed}}))
    assert len(set(seeds)) == 2


def test_the_loss_has_no_guidance(
    tiny_sd: Path, two_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two pairs are predicted by the reference and by the model, in the dry run and in each of two steps."""
    sizes: list[int] = []
    plain = OnlineDpo.loss

    def loss(method: OnlineDpo, batch: PairBatch, context: StepContext) -> StepLoss:
        family = type(context.family)
        predict = family.predict

        def counted(model: Any, noisy_BCHW: torch.Tensor, *rest: Any) -> torch.Tensor:
            sizes.append(len(noisy_BCHW))
            return predict(model, noisy_BCHW, *rest)

        with monkeypatch.context() as patched:
            patched.setattr(family, "predict", counted)
            return plain(method, batch, context)

    monkeypatch.setattr(OnlineDpo, "loss", loss)
    run(config_of(tmp_path, tiny_sd, two_images, {"training": {"epochs": 1}}, guidance=5.0))
    assert sizes == [4] * 6


@pytest.mark.daily(1)
@pytest.mark.parametrize("sampler", ["euler_a", "dpmpp_sde_karras"])
def test_any_sampler(tiny_sd: Path, two_images: Path, tmp_path: Path, sampler: str) -> None:
    ran = run(config_of(tmp_path, tiny_sd, two_images, {"training": {"epochs": 1}}, sampler=sampler))
    assert ran.of(StepFinished)[0].loss == pytest.approx(math.log(2), abs=1e-6)


@pytest.mark.full
@pytest.mark.parametrize(
    ("method", "first"),
    [({"label_smoothing": 0.2}, math.log(2)), ({"loss": "ipo"}, 0.25), ({"beta": 10.0}, math.log(2))],
    ids=str,
)
def test_every_loss_begins_as_published(
    tiny_sd: Path, two_images: Path, tmp_path: Path, method: dict[str, Any], first: float
) -> None:
    ran = run(config_of(tmp_path, tiny_sd, two_images, {"training": {"epochs": 1}}, **method))
    assert ran.of(StepFinished)[0].loss == pytest.approx(first, abs=1e-6)
    with_sft = run(config_of(tmp_path, tiny_sd, two_images, {"training": {"epochs": 1}}, sft_weight=1.0, **method))
    assert (with_sft.of(StepFinished)[0].loss or 0.0) > first + 0.1


# ---- the reference


@pytest.mark.full
def test_a_refresh_changes_the_loss_from_its_step_on(tiny_sd: Path, two_images: Path, tmp_path: Path) -> None:
    """After three updates the model is its own reference: the margin is 0 again. Until then nothing differs."""
    changes = {"training": {"epochs": 4, "learning_rate": 3e-3}}
    original, refreshed = (
        run(config_of(tmp_path / reference, tiny_sd, two_images, changes, reference=reference, refresh_every=3))
        for reference in ("original", "refreshed")
    )
    assert steps_of(original)[:3] == steps_of(refreshed)[:3]
    margins = [step.metrics["margin"] for step in refreshed.of(StepFinished)]
    assert [n for n, margin in enumerate(margins) if margin == 0.0] == [0, 3, 6]
    assert [n for n, s in enumerate(original.of(StepFinished)) if s.metrics["margin"] == 0.0] == [0]
    assert refreshed.of(StepFinished)[3].loss == pytest.approx(math.log(2), abs=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("fraction", [0.0, 0.5])
def test_a_refreshed_reference_is_offloaded_except_in_training(
    tiny_sd: Path, two_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fraction: float
) -> None:
    """While the reward is measured its memory is free for the images. Under the device guard; no bit changes."""
    seen: dict[str, set[str]] = {}
    plain = Placement.enter

    def enter(placement: Placement, phase: str) -> None:
        plain(placement, phase)
        if "reference" in placement._modules:
            weights = placement._modules["reference"].parameters()
            seen.setdefault(phase, set()).update(str(placement._guard and placement._guard.tag_of(w)) for w in weights)

    monkeypatch.setattr(Placement, "enter", enter)
    changes = {"training": {"trains": "full"}, "reward": {"measure_every": {"n": 1, "unit": "epoch"}, "num_images": 1}}
    method = {"reference": "refreshed", "refresh_every": 3}
    alone = run(config_of(tmp_path / "alone", tiny_sd, two_images, changes, **method))
    unet = {"checkpointing": "block", "offload_fraction": fraction}
    watched = {**changes, "general": {"temp_device": "cpu:1", "debug_checks": True}, "parts": {"unet": unet}}
    seen.clear()
    guarded = run(config_of(tmp_path / "guarded", tiny_sd, two_images, watched, **method))
    assert seen["train"] == {"cpu"}
    assert {device for phase, devices in seen.items() if phase != "train" for device in devices} == {"cpu:1"}
    assert steps_of(alone) == steps_of(guarded)
    assert_equal_tensors(alone.weights, guarded.weights)


# ---- resuming, stopping, the dry run

HARD: dict[str, Any] = {
    "training": {
        "epochs": 1,
        "accumulation_steps": 2,
        "learning_rate": 3e-3,
        "schedule": {"name": "cosine", "warmup_steps": 2},
        "ema": {"mode": "train_device", "decay": 0.9},
    }
}


@pytest.fixture(scope="module", params=["adapter", "full"])
def hard(request: pytest.FixtureRequest, hard_images: Path, tiny_sd: Path) -> Callable[[Path], Config]:
    """Two rollouts of three steps each; the reference is refreshed within them, at steps 2 and 4."""
    changes = laid_over_training(HARD, trains=request.param)
    method = {"updates_per_rollout": 3, "reference": "refreshed", "refresh_every": 2}
    return lambda folder: config_of(folder, tiny_sd, hard_images, changes, **method)


def laid_over_training(changes: dict[str, Any], **training: Any) -> dict[str, Any]:
    return {**changes, "training": {**changes["training"], **training}}


@pytest.fixture(scope="module")
def straight(hard: Callable[[Path], Config], tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The uninterrupted run."""
    return run(hard(tmp_path_factory.mktemp("straight")))


@pytest.mark.daily(1)
@pytest.mark.parametrize("stop_after", [1, 2, 3, 5])
def test_a_stopped_run_resumes_bit_equal_with_its_reference(
    hard: Callable[[Path], Config], straight: Ran, tmp_path: Path, stop_after: int
) -> None:
    """Within a rollout, between two, and at the steps of a refresh."""
    killed = hard(tmp_path)

    first = run(killed, on_event=stop_at(stop_after))
    assert (first.finished.outcome, first.finished.step) == ("stopped", stop_after)
    backup = Path(first.finished.backup_path)
    kept = load_file(backup / "method.safetensors")
    assert any(name.startswith("reference.") for name in kept)
    assert any(name.startswith("pair.") for name in kept) == (stop_after % 3 != 0), "only a rollout in use is kept"
    assert_resumed(straight, first, run(killed, resume_from=backup))


def test_the_dry_run_tries_two_images_and_leaves_nothing(
    tiny_sd: Path, hard_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[bool, int, int]] = []
    plain = ImagePairs._sample

    def sample(method: ImagePairs, group: Any, context: StepContext, *rest: Any) -> Any:
        seen.append((method.is_trial, method.sampling.samples_per_prompt, method.sampling.loop.num_steps))
        return plain(method, group, context, *rest)

    monkeypatch.setattr(ImagePairs, "_sample", sample)
    ran = run(config_of(tmp_path, tiny_sd, hard_images, HARD))
    assert seen[0] == (True, 2, 2)
    assert set(seen[1:]) == {(False, 3, 3)}
    assert [event.step for event in ran.of(RolloutSampled)] == [0, 2]


@pytest.mark.full  # every day: test_preference_faults
@pytest.mark.parametrize("fault", ["reference left active", "frozen adapter", "reentrant checkpointing"])
@pytest.mark.parametrize("pairs", ["images", "steps"])
def test_planted_faults_end_the_dry_run(
    tiny_sd: Path, two_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pairs: str, fault: str
) -> None:
    plain, held = OnlineDpo.loss, []

    def loss(self: OnlineDpo, batch: PairBatch, context: StepContext) -> StepLoss:
        if fault == "reference left active":
            held.append(context.prior())
            held[-1].__enter__()
        if fault == "frozen adapter":
            context.family.parts["unet"].module.requires_grad_(False)
        return plain(self, batch, context)

    monkeypatch.setattr(OnlineDpo, "loss", loss)
    if fault == "reentrant checkpointing":
        reentrant = functools.partial(torch.utils.checkpoint.checkpoint, **{"use_reentrant": True})
        monkeypatch.setattr(
            checkpointing,
            "checkpoint",
            lambda run, *args, use_reentrant, preserve_rng_state, determinism_check="default", **options: reentrant(
                functools.partial(run, **options), *args
            ),
        )
    changes = {"parts": {"unet": {"checkpointing": "whole"}}}
    ran = run(config_of(tmp_path, tiny_sd, two_images, changes, steps=5, pairs=pairs))
    assert isinstance(ran.ending, RunFailed)
    assert "dry run" in ran.ending.message
    assert not ran.of(StepFinished)
    expected = "left the reference model active" if fault == "reference left active" else "no gradient reaches it"
    details = Path(ran.ending.details_path)
    assert expected in ran.ending.message + (details.read_text() if details.is_file() else "")
    assert torch.is_grad_enabled()


# ---- the newest rollouts as files


@pytest.mark.full
@pytest.mark.parametrize(
    "method",
    [
        {},
        {"name": "grpo", "steps": 3, "group_size": 2, "kl_weight": 0.0},
        {"name": "ddpo", "steps": 3, "samples_per_prompt": 2, "kl_weight": 0.0},
    ],
    ids=str,
)
def test_the_newest_rollouts_are_written_and_reported(
    tiny_sd: Path, two_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: dict[str, Any]
) -> None:
    monkeypatch.setattr(rollout_images, "_SIDE_PX", 32)
    config = small_config(
        tmp_path,
        model=tiny_sd,
        images=two_images,
        training={"method": method or {**ONLINE, "updates_per_rollout": 1}, "epochs": 5, "batch_size": 2},
        reward=REWARD,
        parts={"text_encoder": {"train": False}},
    )
    ran = run(config)
    events = ran.of(RolloutSampled)
    assert [event.step for event in events] == [0, 1, 2, 3, 4]
    newest = events[-1]
    num = 2 * (method.get("group_size") or method.get("samples_per_prompt") or 3)
    assert len(newest.images) == num
    assert sum(i.mark == "best" for i in newest.images) == sum(i.mark == "worst" for i in newest.images) == 2
    for image in newest.images:
        assert image.by_reward_model == {"brightness": image.reward}
        with Image.open(image.path) as opened:
            assert opened.size == (32, 32)
    kept = sorted(p.name for p in Path(newest.images[0].path).parent.parent.iterdir())
    assert kept == ["step-00000002", "step-00000003", "step-00000004"]


def test_a_rollout_that_cannot_be_written_is_a_warning(
    tiny_sd: Path, two_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rollout_images, "atomic_folder", full)
    ran = run(config_of(tmp_path, tiny_sd, two_images, {"training": {"epochs": 1}}))
    [warning] = ran.of(WarningRaised)
    assert "images of the rollout could not be written" in warning.message
    assert isinstance(ran.ending, RunFinished)
    assert not ran.of(RolloutSampled)


# ---- settings


def test_what_is_refused(tiny_sd: Path, two_images: Path, tmp_path: Path) -> None:
    config = config_of(tmp_path, tiny_sd, two_images)
    assert not problems_of(config)

    def messages(**method: Any) -> list[str]:
        found = problems_of(config_of(tmp_path, tiny_sd, two_images, **method))
        return [p.message for p in found if p.severity == "error"]

    assert messages(chosen_by="person", pairs="steps") == [
        "A person chooses among finished images, not among denoising steps."
    ]
    assert len(messages(size="abc")) == 1
    without = laid_over(config, {"reward": {"models": []}})
    assert [p.message for p in problems_of(without)] == ["Online DPO needs a reward model to train on."]
    assert not isinstance(run(config).ending, RunFailed)
