"""DDPO and GRPO: the first ratio is 1, every adapter parameter moves, rewards rise, rollouts resume bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

from modules.config.schema import Config
from modules.rewards import measures
from modules.sampling import rollout as rollout_module
from modules.system.devices import CPU, Device
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.matrix import matrix
from tests.builders.runs import Ran, assert_equal_tensors, assert_resumed, run, stop_at, weights_of
from trainer.commands import Stop
from trainer.events import Event, PhaseChanged, RunFailed, StepFinished, WarningRaised
from trainer.methods import rollouts
from trainer.methods.policy_batches import PolicyBatch, RatioCheck
from trainer.methods.policy_gradient import PolicyGradient
from trainer.methods.protocol import StepContext, StepLoss
from trainer.rollout_events import RolloutSampled
from trainer.step.pauses import Pauses

DDPO: dict[str, Any] = {"name": "ddpo", "steps": 3, "samples_per_prompt": 2, "guidance": 2.0}
GRPO: dict[str, Any] = {"name": "grpo", "steps": 4, "group_size": 3, "best_of": 2, "guidance": 1.0, "kl_weight": 0.1}
WINDOW: dict[str, Any] = {
    **GRPO,
    "timesteps": "window",
    "window_size": 2,
    "window_every": 1,
    "inner_epochs": 2,
    "first_noise": "shared",
    "clip_range": 0.5,
}
SHORT = {"ddpo": DDPO, "grpo": GRPO, "window": WINDOW}
REWARD: dict[str, Any] = {"models": [{"kind": "brightness"}], "measure_every": {"unit": "never"}}


@pytest.fixture(scope="module")
def two_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_folder(tmp_path_factory.mktemp("two"), sizes=[(64, 64)] * 2, captions=["a disc", "a square, red"])


def config_of(folder: Path, model: Path, images: Path, method: dict[str, Any], **changes: Any) -> Config:
    config = small_config(
        folder,
        model=model,
        images=images,
        training={"method": method, "epochs": 2, "batch_size": 2},
        reward=REWARD,
        parts={name: {"train": False} for name in ("text_encoder", "text_encoder_2")},
        output={"dtype": "float32", "model_format": "single_file"},
    )
    return laid_over(config, changes)


@pytest.fixture
def families(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The models of the runs of a test, with their weights as they were before the first step."""
    seen: list[Any] = []
    plain = PolicyGradient.prepare

    def prepare(method: PolicyGradient, context: StepContext) -> None:
        plain(method, context)
        seen.append((context.family, weights_of(context.family)))

    monkeypatch.setattr(PolicyGradient, "prepare", prepare)
    return seen


# ---- on policy before the first update; what moves


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("model", "trains", "checkpointing", "method", "precision"),
    matrix(
        ["tiny_sd", "tiny_sdxl", "tiny_sdxl_v"],
        ["adapter", "full"],
        ["off", "block", "whole"],
        list(SHORT),
        ["float32", "bfloat16"],
    ),
)
def test_the_first_ratio_is_exactly_1_and_every_trained_weight_moves(
    request: pytest.FixtureRequest,
    two_images: Path,
    tmp_path: Path,
    families: list[Any],
    model: str,
    trains: str,
    checkpointing: str,
    method: str,
    precision: str,
) -> None:
    parts = {"unet": {"checkpointing": checkpointing}}
    training = {"trains": trains, "precision": precision}
    folder = request.getfixturevalue(model)
    ran = run(config_of(tmp_path, folder, two_images, SHORT[method], parts=parts, training=training))
    inner_epochs = SHORT[method].get("inner_epochs", 1)
    steps = ran.of(StepFinished)
    assert len(steps) == 2 * inner_epochs, ran.ending
    for step in steps[::inner_epochs]:
        assert [step.metrics[n] for n in ("ratio", "approx_kl", "clip_fraction")] == [1.0, 0.0, 0.0]
    if "kl_weight" in SHORT[method]:
        assert steps[0].metrics["kl"] == 0.0
        assert steps[-1].metrics["kl"] > 0.0, "the reference moves with the model"
    assert all(step.gradient_norm for step in steps[::inner_epochs])
    assert not ran.of(WarningRaised)
    [(family, before)] = families
    moved = {name for name, value in weights_of(family).items() if not torch.equal(value, before[name])}
    expected = {n for n in before if n.startswith("unet.")}
    if trains == "adapter":
        expected = {n for n in expected if "lora_" in n}
    assert moved == expected


@pytest.mark.full
def test_a_trained_text_encoder_is_on_policy_too(tiny_sd: Path, two_images: Path, tmp_path: Path) -> None:
    """It encodes while sampling, in training with a graph, and for the reference without its adapter."""
    config = config_of(tmp_path, tiny_sd, two_images, GRPO, parts={"text_encoder": {"train": True}})
    first, second = run(config).of(StepFinished)
    assert (first.metrics["ratio"], first.metrics["kl"]) == (1.0, 0.0)
    assert second.metrics["kl"] > 0.0
    assert set(first.learning_rates) == {"unet", "text_encoder"}


def test_it_is_on_policy_with_ema_and_a_scaled_adapter(tiny_sd: Path, two_images: Path, tmp_path: Path) -> None:
    """It samples with the weights in training, not with their average, and never without the adapter."""
    changes: dict[str, Any] = {
        "training": {"ema": {"mode": "train_device", "decay": 0.9}, "epochs": 3, "learning_rate": 3e-3},
        "adapter": {"rank": 2, "alpha": 16.0},
    }
    steps = run(config_of(tmp_path, tiny_sd, two_images, DDPO, **changes)).of(StepFinished)
    assert [(s.metrics["ratio"], s.metrics["approx_kl"], s.metrics["clip_fraction"]) for s in steps] == [(1, 0, 0)] * 3


# ---- rewards


@pytest.mark.full
@pytest.mark.parametrize(
    "method",
    [
        pytest.param({"name": "ddpo", "samples_per_prompt": 4}, marks=pytest.mark.full),
        {"name": "grpo", "group_size": 4},
    ],
    ids=lambda m: m["name"],
)
def test_the_reward_rises(tiny_sd: Path, tmp_path: Path, method: dict[str, Any]) -> None:
    """Brightness, on a random model: from 0.517 to 0.53, with a spread of 0.005 between images."""
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 4)
    chosen = {**method, "steps": 4, "guidance": 1.0, "kl_weight": 0.0, "timestep_share": 1.0}
    training = {"trains": "full", "learning_rate": 1e-3, "epochs": 10, "batch_size": 4}
    config = config_of(tmp_path, tiny_sd, images, chosen, training=training)
    rewards = [step.metrics["reward"] for step in run(config).of(StepFinished)]
    assert sum(rewards[-3:]) / 3 > rewards[0] + 0.008


def test_equal_rewards_train_nothing_and_are_reported_once(
    tiny_sd: Path, two_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, families: list[Any]
) -> None:
    monkeypatch.setattr(measures, "brightness", lambda images: torch.full((len(images),), 0.1 + 0.2))
    ran = run(config_of(tmp_path, tiny_sd, two_images, {**GRPO, "kl_weight": 0.0}))
    for step in ran.of(StepFinished):
        assert step.metrics["equal_rewards"] == 1.0
        assert step.gradient_norm == 0.0
    [warning] = ran.of(WarningRaised)
    assert "nothing is learned" in warning.message
    assert ran.finished.step == 2


def test_images_without_a_score_are_left_out(
    tiny_sd: Path, two_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = measures.brightness

    def unsure(images_B3PP: torch.Tensor) -> torch.Tensor:
        scores_B = plain(images_B3PP)
        scores_B[0] = torch.nan
        return scores_B

    monkeypatch.setattr(measures, "brightness", unsure)
    ran = run(config_of(tmp_path, tiny_sd, two_images, {**GRPO, "best_of": 0}))
    for step in ran.of(StepFinished):
        assert step.metrics["equal_rewards"] == 0.5  # the first prompt has no scores
        assert 0.0 < step.metrics["reward"] < 1.0
        assert step.gradient_norm


def test_what_is_reported(tiny_sd: Path, two_images: Path, tmp_path: Path) -> None:
    models = [{"kind": "brightness"}, {"kind": "contrast", "weight": 0.5}]
    config = config_of(tmp_path, tiny_sd, two_images, GRPO, reward={"models": models})
    ran = run(config)
    [first, *_] = ran.of(StepFinished)
    names = {"reward", "reward/brightness", "reward/contrast", "reward_std", "equal_rewards", "diversity"}
    assert set(first.metrics) == names | {"ratio", "approx_kl", "clip_fraction", "kl"}
    scores = first.metrics["reward/brightness"], first.metrics["reward/contrast"]
    assert first.metrics["reward"] == pytest.approx(scores[0] + 0.5 * scores[1], rel=1e-5)
    assert 0.5 < first.metrics["diversity"] < 1.6
    phases = [e.detail for e in ran.of(PhaseChanged) if e.phase == "sampling"]
    assert phases == ["6 images to train on"] * 2, "the dry run's rollout is reported, or another number"


@pytest.mark.full
def test_the_newest_images_are_reported_with_their_scores(tiny_sd: Path, two_images: Path, tmp_path: Path) -> None:
    ran = run(config_of(tmp_path, tiny_sd, two_images, GRPO, training={"epochs": 3}))
    found = ran.of(RolloutSampled)
    assert [event.step for event in found] == [0, 1, 2], "the dry run's images are reported"
    steps = ran.of(StepFinished)
    for event, step in zip(found, steps, strict=True):
        assert [i.prompt for i in event.images] == [event.images[0].prompt] * 3 + [event.images[3].prompt] * 3
        for group in (event.images[:3], event.images[3:]):
            rewards = [i.reward for i in group if i.reward is not None]
            assert [i.reward for i in group if i.mark == "best"] == [max(rewards)]
            assert [i.reward for i in group if i.mark == "worst"] == [min(rewards)]
        mean = sum(i.by_reward_model["brightness"] for i in event.images) / 6
        assert mean == pytest.approx(step.metrics["reward"])
    newest = found[-1].images[0]
    with Image.open(newest.path) as image:
        brightness = sum(image.convert("RGB").resize((1, 1), Image.Resampling.BOX).getpixel((0, 0))) / 3 / 255
        assert image.size == (64, 64)
    assert brightness == pytest.approx(newest.reward, abs=0.01)


# ---- what would make the ratio another one


def test_states_stored_in_16_bits_are_found(
    tiny_sd: Path, two_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: rounding alone moves the ratio by more than the clip range."""
    plain = rollout_module._States.add

    def rounded(self: Any, number: int, latents_BCHW: torch.Tensor) -> None:
        plain(self, number, latents_BCHW.bfloat16().float())

    monkeypatch.setattr(rollout_module._States, "add", rounded)
    ending = run(config_of(tmp_path, tiny_sd, two_images, DDPO)).ending
    assert isinstance(ending, RunFailed)
    assert "the probability ratio differs from 1" in ending.message


def test_in_16_bits_another_ratio_is_a_warning(
    tiny_sd: Path, two_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = rollout_module._States.add

    def rounded(self: Any, number: int, latents_BCHW: torch.Tensor) -> None:
        plain(self, number, latents_BCHW.bfloat16().float() * 1.01)

    monkeypatch.setattr(rollout_module._States, "add", rounded)
    ran = run(config_of(tmp_path, tiny_sd, two_images, DDPO, training={"precision": "bfloat16"}))
    assert ran.finished.step == 2
    [warning] = ran.of(WarningRaised)
    assert "the probability ratio differs from 1" in warning.message


@pytest.mark.parametrize(("dtype", "device"), [(torch.float16, CPU), (torch.float32, Device("cuda:0"))], ids=str)
def test_in_16_bits_or_on_a_gpu_a_ratio_outside_of_the_clip_range_is_a_warning(
    dtype: torch.dtype, device: Device
) -> None:
    unet = SimpleNamespace(spec=SimpleNamespace(role="denoiser"), module=torch.nn.Linear(2, 2, dtype=dtype))
    context: Any = SimpleNamespace(family=SimpleNamespace(parts={"unet": unet}), device=device)
    for clip_range, is_outside in ((1e-4, True), (1e-3, False), (1e-2, False)):
        found = RatioCheck()
        found.add(torch.tensor([0.0, -5e-4]), is_first=True)
        assert (found.finish(context, clip_range=clip_range) is not None) == is_outside


@pytest.mark.full
@pytest.mark.parametrize(("method", "clip_range"), [("ddpo", 1e-6), ("grpo", 1e-6), ("ddpo", 0.5)])
def test_a_step_whose_ratios_are_all_clipped_is_a_warning(
    tiny_sd: Path, two_images: Path, tmp_path: Path, method: str, clip_range: float
) -> None:
    rate = 0.3 if clip_range < 0.1 else 1e-4
    settings = {**SHORT[method], "inner_epochs": 4, "clip_range": clip_range, "kl_weight": 0.0}
    ran = run(config_of(tmp_path, tiny_sd, two_images, settings, training={"learning_rate": rate, "epochs": 2}))
    fractions = [step.metrics["clip_fraction"] for step in ran.of(StepFinished)]
    found = [w for w in ran.of(WarningRaised) if "outside of the clip range" in w.message]
    assert (len(found), 1.0 in fractions) == ((1, True) if clip_range < 0.1 else (0, False))


@pytest.mark.full  # every day: test_preference_faults
@pytest.mark.parametrize(
    ("method", "fault"),
    # without a KL to it, as here in DDPO, no reference is kept
    [("grpo", "reference left active"), ("grpo", "frozen adapter"), ("ddpo", "frozen adapter")],
)
def test_planted_faults_end_the_dry_run(
    tiny_sd: Path, two_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, fault: str
) -> None:
    plain, held = PolicyGradient.loss, []

    def loss(self: PolicyGradient, batch: PolicyBatch, context: StepContext) -> StepLoss:
        if fault == "reference left active":
            held.append(context.prior())
            held[-1].__enter__()
            return plain(self, batch, context)
        for parameter in context.family.parts["unet"].module.parameters():
            parameter.requires_grad_(False)
        return plain(self, batch, context)

    monkeypatch.setattr(PolicyGradient, "loss", loss)
    ran = run(config_of(tmp_path, tiny_sd, two_images, SHORT[method]))
    assert isinstance(ran.ending, RunFailed)
    assert "dry run" in ran.ending.message
    assert not ran.of(StepFinished)
    expected = "left the reference model active" if fault == "reference left active" else "no gradient reaches it"
    details = Path(ran.ending.details_path)
    assert expected in ran.ending.message + (details.read_text() if details.is_file() else "")
    assert torch.is_grad_enabled()


# ---- resuming, stopping, the dry run

# Two sizes, three micro-batches, two groups in an epoch: four steps.
HARD: dict[str, Any] = {
    "epochs": 1,
    "batch_size": 2,
    "accumulation_steps": 2,
    "learning_rate": 3e-3,
    "schedule": {"name": "cosine", "warmup_steps": 2},
    "ema": {"mode": "train_device", "decay": 0.9},
}
METHODS = {
    "ddpo": {**DDPO, "inner_epochs": 2, "tracker_min_count": 2, "tracker_size": 3, "samples_per_prompt": 1},
    "grpo": {**WINDOW, "steps": 3, "group_size": 2, "best_of": 0},
}


@pytest.fixture(scope="module")
def hard_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = [(64, 64)] * 3 + [(96, 64)] * 2
    # Two captions only, so that the tracker compares with earlier rollouts.
    return draw_folder(tmp_path_factory.mktemp("hard"), sizes=sizes, captions=["a disc", "a red disc, small"])


@pytest.fixture(scope="module", params=METHODS)
def hard(request: pytest.FixtureRequest, hard_images: Path, tiny_sd: Path) -> Callable[[Path], Config]:
    training = {**HARD, "method": METHODS[request.param]}
    return lambda folder: config_of(folder, tiny_sd, hard_images, METHODS[request.param], training=training)


@pytest.fixture(scope="module")
def straight(hard: Callable[[Path], Config], tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The uninterrupted run."""
    return run(hard(tmp_path_factory.mktemp("straight")))


@pytest.mark.full
@pytest.mark.parametrize("stop_after", [1, 2])
def test_a_run_stopped_within_a_rollout_resumes_bit_equal(
    hard: Callable[[Path], Config], straight: Ran, tmp_path: Path, stop_after: int
) -> None:
    killed = hard(tmp_path)

    first = run(killed, on_event=stop_at(stop_after))
    assert (first.finished.outcome, first.finished.step) == ("stopped", stop_after)
    backup = Path(first.finished.backup_path)
    assert (backup / "method.safetensors").exists() == (stop_after % 2 == 1), "only a rollout in use is kept"
    assert_resumed(straight, first, run(killed, resume_from=backup))


@pytest.mark.daily(1)
@pytest.mark.parametrize("where", ["in the rollout", "after the rollout"])
def test_a_run_stopped_before_the_first_step_on_a_rollout_resumes_bit_equal(
    hard: Callable[[Path], Config], straight: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The rollout is repeated; its rewards must not count twice among those of earlier rollouts."""
    killed = hard(tmp_path)
    state = {"step": -1, "checks": 0, "losses": 0}
    plain_check, plain_sample, plain_loss = Pauses.check, rollouts.roll_out, PolicyGradient.loss

    def roll_out(*arguments: Any, **options: Any) -> Any:
        state["checks"] = 0
        return plain_sample(*arguments, **options)

    def loss(method: PolicyGradient, batch: PolicyBatch, context: StepContext) -> StepLoss:
        state["losses"] += batch.step == 2
        return plain_loss(method, batch, context)

    def check(pauses: Pauses) -> None:
        state["checks"] += 1
        is_within = where == "in the rollout" and state["step"] == 2 and state["checks"] == 2
        if is_within or (where == "after the rollout" and state["losses"] == 1):
            pauses._desk.put(Stop())
        plain_check(pauses)

    def note(event: Event, send: Any) -> None:
        if isinstance(event, StepFinished):
            state["step"] = event.step

    monkeypatch.setattr(rollouts, "roll_out", roll_out)
    monkeypatch.setattr(PolicyGradient, "loss", loss)
    monkeypatch.setattr(Pauses, "check", check)
    first = run(killed, on_event=note)
    monkeypatch.undo()
    assert (first.finished.outcome, first.finished.step) == ("stopped", 2)
    assert_resumed(straight, first, run(killed, resume_from=Path(first.finished.backup_path)))


@pytest.mark.full
def test_the_dry_run_tries_the_largest_rollout_and_leaves_nothing(
    tiny_sd: Path, hard_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Any, ...]] = []
    plain = rollouts.roll_out

    def watched(family: Any, conditioning: Any, *rest: Any, **options: Any) -> Any:
        loop = options["settings"]
        seen.append((str(options["size"]), len(conditioning), loop.num_steps, loop.guidance, torch.is_grad_enabled()))
        return plain(family, conditioning, *rest, **options)

    monkeypatch.setattr(rollouts, "roll_out", watched)
    method = {**DDPO, "samples_per_prompt": 3, "size": "96x96", "tracker_min_count": 2}
    states: list[Any] = []
    plain_sampled = PolicyGradient._sample

    def sampled(self: PolicyGradient, *arguments: Any) -> Any:
        if not self.is_trial:
            states.append(self._comparison.state_dict())
        return plain_sampled(self, *arguments)

    monkeypatch.setattr(PolicyGradient, "_sample", sampled)
    run(config_of(tmp_path, tiny_sd, hard_images, method, training={"epochs": 1}))
    assert seen[:2] == [("96x96", 2, 2, 2.0, False)] * 2, "two denoising steps, two images, as large as the others"
    assert set(seen[2:]) == {("96x96", n, 3, 2.0, False) for n in (1, 2)}
    assert states[0] == {}, "the dry run's rewards are remembered"


def test_nothing_is_on_another_device(tiny_sd: Path, two_images: Path, tmp_path: Path) -> None:
    """Under the device guard, with states that wait on the offload device; the result is the same to the bit."""
    plain = run(config_of(tmp_path / "plain", tiny_sd, two_images, GRPO))
    watched = {"temp_device": Device("cpu:1").name, "debug_checks": True}
    guarded = run(config_of(tmp_path / "guarded", tiny_sd, two_images, GRPO, general=watched))
    assert guarded.finished.outcome == "finished"
    assert_equal_tensors(plain.weights, guarded.weights)
