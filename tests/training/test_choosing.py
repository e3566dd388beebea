"""A person as the reward: the run asks through a folder, waits, and keeps every choice as a pair."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from safetensors.torch import load_file

from modules.config.rules import problems_of
from modules.config.schema import Config
from modules.data.datasets import build_datasets
from modules.settings.edit import set_path
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.runs import Ran, assert_equal_tensors, run, steps_of
from tests.training.test_online_dpo import HARD, ONLINE
from trainer.commands import Pause, Resume, Stop
from trainer.data.datasets import dataset_settings
from trainer.events import BackupSaved, Event, PhaseChanged, RewardMeasured, RunStarted, StepFinished, WarningRaised
from trainer.methods import choosing
from trainer.methods.rollouts import NOTHING_CHOSEN
from trainer.preflight import check
from trainer.rollout_events import ChoicesWanted, RolloutSampled
from trainer.run_folder.choices import SKIP, TIE, Answer, Request, answer, ask, choices_dir, open_requests, pairs_dir

ONLINE_WITHOUT_CANDIDATES = {name: value for name, value in ONLINE.items() if name != "candidates"}
PERSON: dict[str, Any] = {**ONLINE_WITHOUT_CANDIDATES, "chosen_by": "person", "shown_candidates": 2}


@pytest.fixture(scope="module")
def folder_of_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sizes: three micro-batches, two groups in an epoch."""
    sizes = [(64, 64)] * 3 + [(96, 64)] * 2
    return draw_folder(tmp_path_factory.mktemp("images"), sizes=sizes, captions=["a disc", "a red disc, small"])


@pytest.fixture
def config(tiny_sd: Path, folder_of_images: Path, tmp_path: Path) -> Config:
    return config_in(tmp_path, tiny_sd, folder_of_images)


def config_in(folder: Path, model: Path, images: Path, **changes: Any) -> Config:
    training = {**HARD["training"], "method": PERSON, "batch_size": 2}
    parts = {"text_encoder": {"train": False}}
    return laid_over(small_config(folder, model=model, images=images, training=training, parts=parts), changes)


class Chooser:
    """A person at the keyboard: instead of waiting, the run calls them, and they answer one open request."""

    def __init__(self, give: Callable[[Request], Answer], before: Callable[[int], bool] | None = None) -> None:
        self.run_dir = Path()
        self.give, self.before = give, before or (lambda num_answered: True)
        self.asked: list[Request] = []

    def __call__(self) -> None:
        waiting = open_requests(self.run_dir)
        assert waiting, "the run waits for nothing"
        if self.before(len(self.asked)):
            self.asked.append(waiting[0])
            answer(waiting[0], self.give(waiting[0]))

    def run(self, config: Config, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Ran:
        """Run with this person at the keyboard."""
        noted = options.pop("on_event", None)

        def on_event(event: Event, send: Any) -> None:
            if isinstance(event, RunStarted):
                self.run_dir = Path(event.run_dir)
            if noted is not None:
                noted(event, send)

        monkeypatch.setattr(choosing, "wait_a_moment", self)
        return run(config, on_event=on_event, **options)


def brighter(request: Request) -> Answer:
    means = [sum(Image.open(path).convert("L").resize((8, 8)).tobytes()) for path in request.images]
    return Answer("chosen", means.index(max(means)), means.index(min(means)))


def test_choices_become_pairs_that_are_trained_and_kept(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    person = Chooser(brighter)
    ran = person.run(config, monkeypatch)
    assert ran.finished.step == 4, ran.ending
    assert [r.prompt for r in person.asked] == [i.prompt for e in ran.of(RolloutSampled) for i in e.images[::2]]
    assert [e.num_open for e in ran.of(ChoicesWanted)] == [4, 3, 2, 1, 0, 1, 0]
    assert {e.path for e in ran.of(ChoicesWanted)} == {str(choices_dir(person.run_dir))}
    assert [s.metrics["equal_rewards"] for s in ran.of(StepFinished)] == [0.0] * 4
    assert all("reward" not in s.metrics and s.gradient_norm for s in ran.of(StepFinished))
    assert {i.reward for e in ran.of(RolloutSampled) for i in e.images} == {None}
    marks = [i.mark for i in ran.of(RolloutSampled)[0].images]
    assert sorted(marks) == ["best"] * 4 + ["worst"] * 4
    assert not ran.of(RewardMeasured)
    assert open_requests(person.run_dir) == []
    assert not any((choices_dir(person.run_dir) / "open").iterdir())
    pairs = pairs_dir(person.run_dir)
    names = sorted(request.name for request in person.asked)
    assert sorted(p.name for p in (pairs / "chosen").iterdir()) == sorted(
        f"{name}{suffix}" for name in names for suffix in (".png", ".txt")
    )
    assert sorted(p.name for p in (pairs / "rejected").iterdir()) == [f"{name}.png" for name in names]
    first = person.asked[0]
    assert (pairs / "chosen" / f"{first.name}.txt").read_text() == f"{first.prompt}\n"
    chosen, rejected = (
        sum(Image.open(pairs / side / f"{first.name}.png").convert("L").tobytes()) for side in ("chosen", "rejected")
    )
    assert chosen > rejected


@pytest.mark.full
def test_the_kept_pairs_train_offline(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    person = Chooser(lambda request: Answer("chosen", 1, 0))
    person.run(config, monkeypatch)
    pairs = pairs_dir(person.run_dir)
    concept = {"path": str(pairs), "kind": "pairs"}
    offline = set_path(config, "training.method", "dpo")[0]
    offline = laid_over(offline, {"concepts": [concept], "general": {"workspace_dir": str(tmp_path / "offline")}})
    assert not check(offline).errors
    assert len(build_datasets(dataset_settings(offline)).training.examples) == 5
    assert run(offline).finished.step > 0


@pytest.mark.full
def test_a_run_that_is_stopped_while_it_waits_asks_only_for_what_is_left(
    config: Config, tiny_sd: Path, folder_of_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after two of four choices of the second rollout of an epoch; the first two choices are not asked again.

    The resumed run samples nothing again, and ends as if it had not been stopped.
    """
    changes = {"training": {"epochs": 2}}
    straight = Chooser(brighter).run(
        config_in(tmp_path / "straight", tiny_sd, folder_of_images, **changes), monkeypatch
    )
    config = laid_over(config, changes)
    sent: list[Any] = []

    def note(event: Event, send: Any) -> None:
        sent[:] = [send]

    def before(num_answered: int) -> bool:
        if num_answered == 7:  # two of the third rollout's four
            sent[0](Stop())
        return num_answered < 7

    first_person = Chooser(brighter, before)
    first = first_person.run(config, monkeypatch, on_event=note)
    assert (first.finished.outcome, first.finished.step) == ("stopped", 4), first.ending
    assert len(open_requests(first_person.run_dir)) == 2
    sampled: list[int] = []
    plain = choosing.Candidates.add
    monkeypatch.setattr(choosing.Candidates, "add", lambda *args: (sampled.append(1), plain(*args))[1])
    second_person = Chooser(brighter)
    second = second_person.run(config, monkeypatch, resume_from=Path(first.finished.backup_path))
    assert [e.num_open for e in second.of(ChoicesWanted)] == [2, 1, 0, 1, 0]
    assert [len(first_person.asked), len(second_person.asked)] == [7, 3]
    assert len(sampled) == 2, "only the last rollout: two images of one prompt"
    assert steps_of(first) + steps_of(second) == steps_of(straight)
    assert_equal_tensors(straight.weights, second.weights)


@pytest.mark.full
def test_images_that_wait_are_sampled_again_where_the_captions_have_changed(
    tiny_sd: Path, folder_of_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the images of one caption would be chosen among, kept and trained with another."""
    images = Path(shutil.copytree(folder_of_images, tmp_path / "images"))
    config = config_in(tmp_path, tiny_sd, images)
    sent: list[Any] = []

    def before(num_answered: int) -> bool:
        if num_answered == 4:
            sent[0](Stop())
        return num_answered < 4

    first = Chooser(brighter, before).run(
        config, monkeypatch, on_event=lambda event, send: sent.__setitem__(slice(0), [send])
    )
    for caption in images.glob("*.txt"):
        caption.write_text("a blue square")
    person = Chooser(brighter)
    resumed = person.run(config, monkeypatch, resume_from=Path(first.finished.backup_path))
    assert resumed.finished.step == 4, resumed.ending
    assert [request.prompt for request in person.asked] == ["a blue square"]


def test_a_backup_of_the_same_step_is_replaced_by_one_with_the_images_that_wait(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in the second rollout, right after a backup: the resumed run samples nothing again."""
    config = laid_over(config, {"backup": {"every": {"n": 2, "unit": "step"}}})
    sent: list[Any] = []

    def before(num_answered: int) -> bool:
        if num_answered == 4:
            sent[0](Stop())
        return num_answered < 4

    ran = Chooser(brighter, before).run(
        config, monkeypatch, on_event=lambda event, send: sent.__setitem__(slice(0), [send])
    )
    assert [b.step for b in ran.of(BackupSaved)] == [2, 2]
    assert "candidates.0" in load_file(Path(ran.finished.backup_path) / "method.safetensors")


@pytest.mark.full
def test_what_was_chosen_since_an_older_backup_is_not_asked_again(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same images are sampled, and their choices are among the pairs. A tie is no pair: it is asked again."""

    def give(request: Request) -> Answer:
        return TIE if request.name.startswith("step-00000002") else brighter(request)

    changes = {"backup": {"every": {"n": 2, "unit": "step"}, "keep": 10}, "training": {"epochs": 2}}
    config = laid_over(config, changes)
    person = Chooser(give)
    straight = person.run(config, monkeypatch)
    assert straight.finished.step == 8
    [oldest, *_] = straight.of(BackupSaved)
    again = Chooser(give)
    resumed = again.run(config, monkeypatch, resume_from=Path(oldest.path))
    assert (oldest.step, resumed.finished.step) == (2, 8)
    assert [request.name[:13] for request in again.asked] == ["step-00000002"]
    assert steps_of(straight)[2:] == steps_of(resumed)


def test_ties_and_skips_give_no_pair(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    given = iter([TIE, SKIP, Answer("chosen", 1, 0), TIE, SKIP])
    person = Chooser(lambda request: next(given))
    ran = person.run(config, monkeypatch)
    steps = ran.of(StepFinished)
    assert [s.metrics["equal_rewards"] for s in steps] == [0.75, 0.75, 1.0, 1.0]
    assert [bool(s.gradient_norm) for s in steps] == [True, True, False, False]
    assert [w.message for w in ran.of(WarningRaised) if "nothing is learned" in w.message] == [NOTHING_CHOSEN.message]
    assert len(list((pairs_dir(person.run_dir) / "rejected").iterdir())) == 1


def test_a_choice_may_be_changed_until_the_last_one_of_its_rollout(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first choice is undone after the second one, and becomes a tie: no pair of it is kept or trained."""
    person = Chooser(brighter)

    def undo_once(num_answered: int) -> bool:
        if num_answered == 2 and open_requests(person.run_dir)[0] != person.asked[0]:
            answer(person.asked[0], TIE)
        return True

    person.before = undo_once
    ran = person.run(config, monkeypatch)
    assert [s.metrics["equal_rewards"] for s in ran.of(StepFinished)] == [0.25, 0.25, 0.0, 0.0]
    kept = {path.stem for path in (pairs_dir(person.run_dir) / "chosen").glob("*.png")}
    assert kept == {request.name for request in person.asked[1:]}


def test_a_removed_request_counts_as_skipped(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    person = Chooser(brighter)

    def before(num_answered: int) -> bool:
        for request in open_requests(person.run_dir)[1:]:
            shutil.rmtree(request.folder)
        return True

    person.before = before
    ran = person.run(config, monkeypatch)
    assert [s.metrics["equal_rewards"] for s in ran.of(StepFinished)] == [0.75, 0.75, 0.0, 0.0]


def test_requests_of_another_rollout_are_withdrawn(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a run leaves them that is resumed where its images differ in their last bits; what was chosen is kept."""
    left: list[Request] = []
    pngs = [b"\x89PNG first", b"\x89PNG second"]

    def before(num_answered: int) -> bool:
        if not left:
            left.extend(ask(person.run_dir, f"step-00000000-00{n}-0", "a disc", pngs) for n in (8, 9))
            answer(left[0], Answer("chosen", 1, 0))
        return True

    person = Chooser(brighter, before)
    ran = person.run(config, monkeypatch)
    assert ran.finished.step == 4
    assert len(person.asked) == 5, "a person was asked for an answer that nothing waits for"
    assert open_requests(person.run_dir) == []
    assert (pairs_dir(person.run_dir) / "chosen" / f"{left[0].name}.png").read_bytes() == pngs[1]


def test_an_answer_that_is_not_valid_is_said_once(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run would otherwise wait for ever, and nobody would know why."""
    looks: list[str] = []

    def before(num_answered: int) -> bool:
        [first, *_] = open_requests(person.run_dir)
        if len(looks) < 4:
            (first.folder / "answer.json").write_text('{"best": 0, "worst": 2}')
            looks.append(first.name)
            return False
        return True

    person = Chooser(brighter, before)
    ran = person.run(config, monkeypatch)
    assert ran.finished.step == 4
    warned = [w for w in ran.of(WarningRaised) if "answer" in w.message]
    assert [(looks[0] in w.message, '{"best": 0, "worst": 2}' in w.message) for w in warned] == [(True, True)]
    assert "from 0 to 1" in warned[0].advice


def test_a_run_is_paused_while_it_waits(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    phases: list[str] = []
    sent: list[Any] = []

    def note(event: Event, send: Any) -> None:
        sent[:] = [send]
        if isinstance(event, PhaseChanged):
            phases.append(event.phase)
            if event.phase == "paused":
                send(Resume())

    def before(num_answered: int) -> bool:
        if num_answered == 2 and "paused" not in phases:
            sent[0](Pause())
        return True

    assert Chooser(brighter, before).run(config, monkeypatch, on_event=note).finished.step == 4
    at = phases.index("paused")
    assert phases[at - 1 : at + 3] == ["choosing", "paused", "choosing", "training"]


def test_a_stop_before_the_first_step_leaves_the_choices_as_pairs(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no backup to resume from, and they were lost."""

    def stop(event: Event, send: Any) -> None:
        if isinstance(event, ChoicesWanted) and person.asked:
            send(Stop())

    person = Chooser(brighter, lambda num_answered: num_answered < 1)
    ran = person.run(config, monkeypatch, on_event=stop)
    assert (ran.finished.outcome, ran.finished.step) == ("stopped", 0)
    [request] = person.asked
    assert [path.stem for path in (pairs_dir(person.run_dir) / "chosen").glob("*.png")] == [request.name]


@pytest.mark.full
def test_no_reward_model_is_needed_and_a_held_out_reward_is_measured(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not problems_of(config)
    measured = laid_over(
        config,
        {
            "reward": {"measure_every": {"n": 2, "unit": "step"}, "num_images": 1},
            "training": {"method": {**PERSON, "held_out_reward": "brightness"}},
        },
    )
    ran = Chooser(brighter).run(measured, monkeypatch)
    assert [(e.step, e.followed, e.held_out_by) for e in ran.of(RewardMeasured)] == [
        (0, None, "brightness"),
        (2, None, "brightness"),
        (4, None, "brightness"),
    ]
    assert all(e.held_out is not None for e in ran.of(RewardMeasured))
    assert all("reward" not in s.metrics for s in ran.of(StepFinished))
    models = {"models": [{"kind": "contrast"}], "measure_every": {"unit": "never"}}
    logged = Chooser(brighter).run(laid_over(config, {"reward": models}), monkeypatch)
    assert all(s.metrics["reward"] == s.metrics["reward/contrast"] for s in logged.of(StepFinished))


def test_early_stopping_without_any_reward_model_is_warned_of(config: Config) -> None:
    """Nothing is measured: the run would never stop early, and there is nothing to measure more often."""
    never = laid_over(config, {"reward": {"measure_every": {"n": 1000, "unit": "step"}}})
    assert not [p for p in check(never).problems if p.path.startswith("reward.")]
    [found] = problems_of(laid_over(never, {"reward": {"early_stopping_patience": 5}}))
    assert (found.path, found.severity) == ("reward.early_stopping_patience", "warning")
    assert "no reward model" in found.message


def test_four_images_are_shown_in_full_size(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, ...]] = []

    def give(request: Request) -> Answer:
        sizes.extend(Image.open(path).size for path in request.images)
        return Answer("chosen", 3, 1)

    method = {"training": {"method": {**PERSON, "shown_candidates": 4}}}
    ran = Chooser(give).run(laid_over(config, method), monkeypatch)
    assert len(sizes) == 20
    assert set(sizes) == {(64, 64), (80, 48)}, "the sizes of their buckets"
    assert [i.mark for i in ran.of(RolloutSampled)[0].images[:4]] == ["", "worst", "", "best"]


def test_waiting_keeps_nothing_but_candidates(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backup of a run that waits has the latents of the images, and no reference where that is the original."""
    sent: list[Any] = []

    def before(num_answered: int) -> bool:
        if num_answered == 4:
            sent[0](Stop())
        return num_answered < 4

    ran = Chooser(brighter, before).run(
        config, monkeypatch, on_event=lambda event, send: sent.__setitem__(slice(0), [send])
    )
    kept = load_file(Path(ran.finished.backup_path) / "method.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in kept.items()} == {"candidates.0": (2, 4, 8, 8)}


def test_check_counts_the_choices(config: Config) -> None:
    for epochs, words in ((1, "each prompt."), (3, "each prompt of the first of 3 epochs.")):
        preview = check(laid_over(config, {"training": {"epochs": epochs}})).preview
        assert preview is not None
        assert f"You make 5 choices, one for {words}" in preview.passes
