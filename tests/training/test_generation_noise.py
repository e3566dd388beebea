"""Flow-DPO with the noise that each image was sampled from, the target margin, and the masks of pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from modules.config.rules import problems_of
from modules.config.schema import Config
from modules.diffusion.flow import FlowProcess
from modules.diffusion.timesteps.drawing import BatchPosition
from modules.objectives.preference import beta_for_margin, mean_gap, negative_share
from modules.sampling.rollout import Rollout
from modules.system.devices import CPU
from tests.builders.configs import laid_over
from tests.builders.images import draw_folder
from tests.builders.pairs import draw_pairs
from tests.builders.preference import draw_both, preference_config
from tests.builders.runs import Ran, assert_equal_tensors, assert_resumed, run, steps_of, stop_at
from tests.training.test_choosing import Chooser, brighter
from trainer.commands import Stop
from trainer.events import Event, RunStarted, StepFinished
from trainer.methods import rollouts
from trainer.methods.automatic_beta import AutomaticBeta
from trainer.methods.dpo import Dpo, LatentPairs, PairLoss, pair_losses
from trainer.methods.noising import Noising
from trainer.methods.online_dpo import OnlineDpo, PairBatch
from trainer.methods.pair_rollout import Candidates, pairs_of
from trainer.methods.protocol import StepContext, StepLoss
from trainer.ranks import ALONE
from trainer.run_folder.choices import pairs_dir

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_both(tmp_path_factory.mktemp("drawn"))


# ---- the formulas, by hand and in float64


def linear_context(weight: torch.Tensor) -> Any:
    """A flow model whose velocity is `w x`, as the context of a step."""
    spec = SimpleNamespace(latents=SimpleNamespace(px=lambda side: 8 * side), default_resolution_px=32)
    family = SimpleNamespace(process=FlowProcess(), spec=spec, predict=lambda noisy, timesteps, given: weight * noisy)
    return SimpleNamespace(family=family, device=CPU, run_seed=3, ranks=ALONE)


class _Selected:
    def select(self, indices: list[int]) -> None:
        return None


def losses_of(context: Any, pairs: list[torch.Tensor], **given: Any) -> Any:
    """The losses of two pairs; the reference is the model with the weight 1."""
    chosen_BCHW, rejected_BCHW, *noises = pairs
    position = BatchPosition(0, 0, len(chosen_BCHW))
    plain = context.family.predict

    @contextmanager
    def reference() -> Iterator[None]:
        context.family.predict = linear_context(torch.ones(())).family.predict
        yield
        context.family.predict = plain

    latents = LatentPairs(
        chosen_BCHW,
        rejected_BCHW,
        _Selected,  # type: ignore[arg-type]
        position,
        torch.cat(noises) if noises else None,
        **given,
    )
    loss = PairLoss("sigmoid", beta=7.0)
    return pair_losses(latents, context, pair_loss=loss, noising=Noising(), reference=reference)


def by_hand(weight: float, pairs: list[torch.Tensor], timesteps_B: torch.Tensor, areas: Any = 1.0) -> torch.Tensor:
    """Flow-DPO in float64: `-log sigmoid(-b/2 (d_w - d_w,ref - d_l + d_l,ref))`, d weighted by `(1 - sigma)^2`."""
    sigma = (timesteps_B.double() / 1000)[:, None, None, None]

    def error(clean: torch.Tensor, noise: torch.Tensor, w: float) -> torch.Tensor:
        x = (1 - sigma) * clean.double() + sigma * noise.double()
        squares = (w * x - (noise.double() - clean.double())) ** 2 * areas
        return (squares.mean(dim=(1, 2, 3)) * (1 - sigma.flatten()) ** 2).double()

    chosen, rejected, noise_w, noise_l = pairs
    gap = error(chosen, noise_w, weight) - error(chosen, noise_w, 1.0)
    gap = gap - error(rejected, noise_l, weight) + error(rejected, noise_l, 1.0)
    return -torch.log(torch.sigmoid(-0.5 * 7.0 * gap))


@pytest.fixture
def pairs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn((2, 4, 3, 3), generator=generator) for _ in range(4)]


def test_the_loss_with_the_own_noise_of_each_image_is_flow_dpo(pairs: list[torch.Tensor]) -> None:
    context = linear_context(torch.tensor(0.9))
    found = losses_of(context, pairs)
    timesteps_B, noise = Noising().draw(pairs[0], BatchPosition(0, 0, 2), context)
    expected = by_hand(0.9, pairs, timesteps_B)
    assert found.losses_B.tolist() == pytest.approx(expected.tolist(), rel=1e-5)
    swapped = by_hand(0.9, [pairs[0], pairs[1], pairs[3], pairs[2]], timesteps_B)
    assert found.losses_B.tolist() != pytest.approx(swapped.tolist(), rel=1e-3), "a swap of the noises is seen"
    fresh = losses_of(context, pairs[:2])
    shared = by_hand(0.9, [*pairs[:2], noise.input_BCHW, noise.input_BCHW], timesteps_B)
    assert fresh.losses_B.tolist() == pytest.approx(shared.tolist(), rel=1e-5), "both images share new noise"


def test_the_mask_of_a_pair_weighs_the_errors_of_both_images(pairs: list[torch.Tensor]) -> None:
    context = linear_context(torch.tensor(0.9))
    areas_B1HW = torch.rand((2, 1, 3, 3), generator=torch.Generator().manual_seed(1))
    found = losses_of(context, pairs, area_weights_B1HW=areas_B1HW)
    timesteps_B, _ = Noising().draw(pairs[0], BatchPosition(0, 0, 2), context)
    expected = by_hand(0.9, pairs, timesteps_B, areas_B1HW.double())
    assert found.losses_B.tolist() == pytest.approx(expected.tolist(), rel=1e-5)


def test_beta_for_a_margin_is_its_inverse() -> None:
    margins_B = torch.tensor([0.5, -1.5, 1.0])
    assert mean_gap(margins_B, beta=4.0).item() == pytest.approx(0.5)
    beta = beta_for_margin(0.5, target=0.2, highest=2000.0)
    assert 0.5 * beta * 0.5 == pytest.approx(0.2)
    assert beta_for_margin(0.0, target=0.2, highest=2000.0) == 2000.0
    assert beta_for_margin(1e-9, target=0.2, highest=2000.0) == 2000.0
    assert negative_share(margins_B).item() == pytest.approx(1 / 3)


class _Two:
    """The communication of one of two processes, which adds the other's numbers."""

    def __init__(self, *others: list[float]) -> None:
        self.others = list(others)

    def sums(self, values: list[float]) -> list[float]:
        return [a + b for a, b in zip(values, self.others.pop(0), strict=True)]


def test_the_average_of_all_processes_leads_to_the_next_beta() -> None:
    beta = AutomaticBeta(0.2, 100.0)
    context: Any = SimpleNamespace(ranks=_Two([0.0, 1.0], [3.0, 1.0], [3.0, 1.0]))

    def add(margins: list[float], step: int, *, is_last: bool = True, counts: bool = True) -> None:
        beta.add(torch.tensor(margins), step=step, is_last=is_last, counts=counts, context=context)

    add([0.0], 0)
    assert beta.value == 100.0, "the model has not moved"
    add([50.0], 1, is_last=False)
    add([50.0], 1, is_last=False, counts=False)
    add([50.0], 1)
    gap = (1.0 + 1.0 + 3.0) / 3
    assert beta.value == pytest.approx(0.4 / gap)
    restored = AutomaticBeta(0.2, 100.0)
    restored.load_state_dict(beta.state_dict())
    assert restored.value == beta.value
    add([9.0], 2, is_last=False)  # discarded
    add([beta.value / 2], 3)
    assert beta.value == pytest.approx(0.4 / (0.9 * gap + 0.1 * 2.0)), "only the step that was finished counts"


# ---- in a run


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[PairBatch]:
    seen: list[PairBatch] = []
    plain = OnlineDpo.loss

    def loss(method: OnlineDpo, batch: PairBatch, context: StepContext) -> StepLoss:
        if not method.pairing.is_trial:
            seen.append(batch)
        return plain(method, batch, context)

    monkeypatch.setattr(OnlineDpo, "loss", loss)
    return seen


@pytest.mark.daily(1)
@pytest.mark.parametrize("model", ["tiny_z_image", "tiny_sd"])
def test_each_image_of_a_pair_has_the_noise_that_it_was_sampled_from(
    request: pytest.FixtureRequest,
    drawn: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    batches: list[PairBatch],
    model: str,
) -> None:
    sampled: list[Rollout] = []
    plain = rollouts.sample_with

    def sample(*arguments: Any, **options: Any) -> Rollout:
        sampled.append(plain(*arguments, **options))
        return sampled[-1]

    monkeypatch.setattr(rollouts, "sample_with", sample)
    config = preference_config(tmp_path, model=request.getfixturevalue(model), drawn=drawn, method="pnapo")
    ran = run(laid_over(config, {"training": {"method": {"target_margin": 0.001}}}))
    first, *rest = ran.of(StepFinished)
    assert first.loss == pytest.approx(math.log(2), abs=1e-5)
    assert (first.metrics["margin"], first.metrics["negative_margins"], first.metrics["beta"]) == (0.0, 0.0, 100.0)
    assert all(step.metrics["margin"] for step in rest)
    ends = [(one.states_BCHW[max(one.states_BCHW)], one.states_BCHW[0]) for one in sampled]
    noises = {key(row): key(noise) for both in ends for row, noise in zip(*both, strict=True)}
    for batch in batches:
        for chosen, rejected, noise_w, noise_l in batch.latents_BNCHW:
            assert (noises[key(chosen)], noises[key(rejected)]) == (key(noise_w), key(noise_l))
            assert key(noise_w) != key(noise_l)


def key(latents: torch.Tensor) -> tuple[float, ...]:
    return tuple(latents.flatten().tolist())


def test_noises_follow_the_choice_of_a_person() -> None:
    latents = (torch.arange(3.0)[:, None, None, None].expand(3, 1, 1, 1),)
    candidates = Candidates(4, latents, {}, ("step",), "print", tuple(10 + t for t in latents))
    rollout = pairs_of(Candidates.from_state(candidates.to_state()), [(2, 0)], [1])
    assert rollout.latents_NCHW[0, 0, 0].flatten().tolist() == [2.0, 0.0, 12.0, 10.0]
    kept_before = Candidates.from_state({n: v for n, v in candidates.to_state().items() if ".noise." not in n})
    assert len(pairs_of(kept_before, [(2, 0)], [1]).latents_NCHW[0, 0, 0]) == 2, "a backup without noises"


HARD: dict[str, Any] = {
    "training": {
        "epochs": 2,
        "batch_size": 1,
        "accumulation_steps": 2,
        "learning_rate": 3e-3,
        "ema": {"mode": "train_device", "decay": 0.9},
        "method": {"updates_per_rollout": 3, "target_margin": 0.001},
    },
    "output": {"dtype": "float32"},
}


def hard(folder: Path, model: Path, drawn: Path) -> Config:
    config = preference_config(folder, model=model, drawn=drawn, method="pnapo")
    parts = {part.name: {"train": part.role == "denoiser"} for part in config.family.trainable_parts}
    return laid_over(config, {**HARD, "parts": parts})


@pytest.fixture(scope="module")
def straight(tiny_z_image: Path, drawn: Path, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The uninterrupted run."""
    return run(hard(tmp_path_factory.mktemp("straight"), tiny_z_image, drawn))


@pytest.mark.daily(1)
@pytest.mark.parametrize("stop_after", [2, 1, 3])
def test_a_stopped_run_resumes_bit_equal_with_its_noises_and_its_beta(
    straight: Ran, tiny_z_image: Path, drawn: Path, tmp_path: Path, stop_after: int
) -> None:
    assert straight.of(StepFinished)[-1].metrics["beta"] < 100.0
    config = hard(tmp_path, tiny_z_image, drawn)
    first = run(config, on_event=stop_at(stop_after))
    backup = Path(first.finished.backup_path)
    kept = [t for n, t in load_file(backup / "method.safetensors").items()] if stop_after % 3 else []
    assert {len(pair) for pair in kept} == ({4} if stop_after % 3 else set())
    assert_resumed(straight, first, run(config, resume_from=backup))


@pytest.mark.full
def test_the_noises_wait_with_their_images_for_a_person(
    tiny_z_image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped with a choice open: the resumed run samples nothing, and ends as one that was not stopped."""
    images = draw_folder(tmp_path / "two", sizes=[(64, 64)] * 2, captions=["a disc", "a square, red"])
    drawn = draw_both(tmp_path / "both")

    def config_in(folder: Path) -> Config:
        config = preference_config(folder, model=tiny_z_image, drawn=drawn, method="pnapo")
        method = {"chosen_by": "person", "shown_candidates": 2, "target_margin": 0.001}
        return laid_over(config, {"training": {"method": method}, "concepts": [{"path": str(images)}]})

    straight = Chooser(brighter).run(config_in(tmp_path / "straight"), monkeypatch)
    sent: list[Any] = []

    def before(num_answered: int) -> bool:
        if num_answered == 3:  # one of the second rollout's two
            sent[0](Stop())
        return num_answered < 3

    def note(event: Event, send: Any) -> None:
        sent[:] = [send]

    config = config_in(tmp_path / "stopped")
    first = Chooser(brighter, before).run(config, monkeypatch, on_event=note)
    backup = Path(first.finished.backup_path)
    assert {"candidates.0", "candidates.noise.0", "candidates.noise.1"} <= load_file(
        backup / "method.safetensors"
    ).keys()
    monkeypatch.setattr(rollouts, "sample_with", only_in_dry_runs(rollouts.sample_with))
    second = Chooser(brighter).run(config, monkeypatch, resume_from=backup)
    assert steps_of(first) + steps_of(second) == steps_of(straight)
    assert_equal_tensors(straight.weights, second.weights)


def only_in_dry_runs(plain: Callable[..., Rollout]) -> Callable[..., Rollout]:
    """The images were sampled before the stop; those of a dry run have two steps."""

    def sample(*arguments: Any, **options: Any) -> Rollout:
        assert options["num_steps"] == 2
        return plain(*arguments, **options)

    return sample


def test_pairs_that_were_chosen_carry_their_noises_to_diffusion_dpo(
    tiny_z_image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit. A mirrored pair, and one whose noise is not known, get new noise."""
    images = draw_folder(tmp_path / "two", sizes=[(64, 64)] * 2, captions=["a disc", "a square, red"])
    drawn = draw_both(tmp_path / "both")
    config = preference_config(tmp_path / "online", model=tiny_z_image, drawn=drawn, method="pnapo")
    method = {"chosen_by": "person", "shown_candidates": 2, "loss_noise": "generated"}
    config = laid_over(config, {"training": {"method": method, "epochs": 1}, "concepts": [{"path": str(images)}]})
    kept: list[torch.Tensor] = []
    plain = Candidates.pair_of

    def pair_of(self: Candidates, prompt: int, extremes: tuple[int, int]) -> torch.Tensor:
        kept.append(plain(self, prompt, extremes))
        return kept[-1]

    monkeypatch.setattr(Candidates, "pair_of", pair_of)
    ran = Chooser(brighter).run(config, monkeypatch)
    pairs = pairs_dir(Path(ran.of(RunStarted)[0].run_dir))
    noises = {tuple(pair[2].flatten()[:4].tolist()): pair[3] for pair in kept}
    seen: list[torch.Tensor | None] = []
    of_pairs = Dpo._own_noises

    def own_noises(self: Dpo, batch: Any, context: StepContext) -> torch.Tensor | None:
        seen.append(of_pairs(self, batch, context))
        return seen[-1]

    monkeypatch.setattr(Dpo, "_own_noises", own_noises)

    def train(folder: str, **image: Any) -> list[torch.Tensor | None]:
        seen.clear()
        offline = preference_config(tmp_path / folder, model=tiny_z_image, drawn=drawn, method="dpo")
        concept = {"path": str(pairs), "kind": "pairs", "image": image}
        changes = {"training": {"method": {"loss_noise": "generated"}, "epochs": 1}, "concepts": [concept]}
        assert run(laid_over(offline, changes)).finished.outcome == "finished"
        return list(seen)

    chosen, rejected = next(n for n in train("plain") if n is not None).chunk(2)
    assert len(chosen) == 2
    for one, other in zip(chosen, rejected, strict=True):
        assert torch.equal(noises[tuple(one.flatten()[:4].tolist())], other)
    assert train("mirrored", flip="always") == [None] * len(seen)
    next(iter((pairs / "noise").glob("*.json"))).write_text("{")
    [*_, half] = train("half")
    assert half is not None
    assert half.isnan().flatten(1).all(1).sum() == 2


def test_a_sampler_that_adds_noise_is_warned_of(tiny_sd: Path, drawn: Path, tmp_path: Path) -> None:
    config = preference_config(tmp_path, model=tiny_sd, drawn=drawn, method="pnapo")

    def warnings_of(sampler: str) -> list[str]:
        changed = laid_over(config, {"training": {"method": {"sampler": sampler}}})
        return [p.message for p in problems_of(changed) if p.path == "training.method.loss_noise"]

    assert warnings_of("ddim") == []
    assert "Euler a adds new noise" in warnings_of("euler_a")[0]


def test_the_masks_of_chosen_images_weigh_the_loss_of_pairs(
    tiny_sd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = draw_pairs(tmp_path / "pairs", sizes=[(64, 64)] * 2)
    for file in (folder / "chosen").glob("*.png"):
        mask = Image.new("L", (64, 64))
        mask.paste(255, (0, 0, 32, 32))
        mask.save(file.with_name(f"{file.stem}-masklabel.png"))
    errors: list[float] = []
    plain = Dpo.loss

    def loss(self: Dpo, batch: Any, context: StepContext) -> StepLoss:
        found = plain(self, batch, context)
        errors.append(found.loss.item())
        return found

    monkeypatch.setattr(Dpo, "loss", loss)
    drawn = draw_both(tmp_path / "drawn")

    def first_losses(*, masks: bool) -> list[float]:
        errors.clear()
        config = preference_config(tmp_path / str(masks), model=tiny_sd, drawn=drawn, method="dpo")
        method = {"sft_weight": 1.0}
        concepts = [{"path": str(folder), "kind": "pairs"}]
        changes = {"concepts": concepts, "masks": {"enabled": masks, "unmasked_weight": 0.0}}
        assert run(laid_over(config, {**changes, "training": {"method": method}})).finished.outcome == "finished"
        return list(errors)

    whole, masked = first_losses(masks=False)[0], first_losses(masks=True)[0]
    share = (masked - math.log(2)) / (whole - math.log(2))
    assert 0.1 < share < 0.4, "a quarter of the chosen image is left, here of the SFT term alone"


def test_given_pairs_have_a_target_margin_too(tiny_sd: Path, drawn: Path, tmp_path: Path) -> None:
    config = preference_config(tmp_path, model=tiny_sd, drawn=drawn, method="dpo")
    changes = {"training": {"epochs": 5, "learning_rate": 3e-3, "method": {"target_margin": 0.001}}}
    betas = [step.metrics["beta"] for step in run(laid_over(config, changes)).of(StepFinished)]
    assert betas[:2] == [100.0, 100.0], "nothing is known before the model has moved"
    assert all(beta < 100.0 for beta in betas[2:])
