"""Rewards in the window: the reward models, the reward chart, approval of user code."""

from __future__ import annotations

import tkinter as tk
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from modules.config.presets import list_presets, readable_configs
from modules.config.schema import Config
from modules.config.usage import step_passes
from modules.objectives.registry import METHODS
from modules.objectives.spec import SOURCES
from modules.rewards.address import parse_address
from modules.rewards.registry import REWARDS
from modules.rewards.settings import Scorer
from modules.rewards.user_code_file import approved_hashes, hash_of
from modules.settings.edit import set_path
from modules.system.problem import Problem
from tests.ui.conftest import Window
from tests.ui.driving import main_buttons, pick, walk
from tests.ui.fake_engine import started, step
from trainer.events import PhaseChanged, RewardMeasured, RunFinished
from trainer.preflight.machine import Machine
from trainer.preflight.presets_here import estimate_run
from trainer.rollout_events import RolloutSampled, SampledImage
from trainer.wording import reading_of, reward_line
from ui.features.rewards.page import needs_of
from ui.features.rewards.which_method import (
    WhichMethod,
    describe_time,
    find_times,
    offers,
    source_of,
    with_method,
)
from ui.features.run.model import _is_of_files
from ui.features.run.reward_panel import health_curves
from ui.forms.chooser import Chooser
from ui.forms.model import Source
from ui.loop.metric_curves import with_metrics
from ui.loop.run_state import RunState
from ui.loop.wording import reward_rows
from ui.widgets.controls import Button
from ui.widgets.image_viewer import ImageViewer
from ui.widgets.plot_axes import padded_axis


def row_values(table: Any, index: int) -> list[str]:
    tree = table.tree
    return [str(tree.item(str(index), "text")).strip(), *map(str, tree.item(str(index), "values"))]


def shown_fields(page: Any) -> set[str]:
    return {row.record.path for row in page.form_view.rows() if row.is_shown}


def test_the_method_is_chosen_in_the_top_bar_and_brings_its_fields(window: Window) -> None:
    page: Any = window.open_page("rewards")
    window.settle()
    assert shown_fields(page) == set()
    pick(window.app.shell.top_bar.choices["training.method"], "alignprop")
    window.settle()
    assert "training.method" not in shown_fields(page)  # one home: the top bar
    assert shown_fields(page) >= {
        *(
            f"training.method.{n}"
            for n in ("probability", "steps", "gradient_truncation", "backprop_steps", "guidance", "loss")
        ),
        "reward.measure_every",
        "reward.early_stopping_patience",
    }
    assert "training.method.target_reward" not in shown_fields(page)
    pick(page.form_view.reveal("training.method.loss").control.frame, "hinge")
    window.settle()
    assert "training.method.target_reward" in shown_fields(page)


def test_a_measured_diversity_is_a_row_of_its_own() -> None:
    measured = RewardMeasured(3, 4, followed=0.5, by_reward_model={"brightness": 0.5}, diversity=0.25)
    assert reward_rows(measured)[-1] == ("diversity", "0.2500")


def test_reward_models_are_added_and_edited(window: Window) -> None:
    window.app.form.choose_variant("training.method", "alignprop")
    page: Any = window.open_page("rewards")
    page.list.buttons["add"].invoke()
    window.settle()
    [scorer] = window.app.form.config.reward.models
    assert scorer.kind == "brightness"
    assert row_values(page.list.table, 0) == ["Brightness", "1", REWARDS["brightness"].scale, "no files"]
    assert page.editor.show_field("reward.models.0.kind")
    window.app.form.edit("reward.models", (Scorer(kind="aesthetic", weight=0.5),))
    window.settle()
    values = row_values(page.list.table, 0)
    assert values[1] == "0.5"
    assert "1.7 GB" in values[3]
    assert page.show_field("reward.models.0.weight")
    page.editor.close()


def test_a_problem_of_the_reward_models_shows_their_list(window: Window) -> None:
    """It was below the window: the page had scrolled to where the list was before the form above was built."""
    window.app.form.choose_variant("training.method", "alignprop")
    assert "rewards" not in window.app.shell.pages
    assert window.app.context.navigation.go_to("reward.models")
    window.settle()
    page: Any = window.app.shell.pages["rewards"]
    card, view, add = page.list.card, page.scroll.canvas, page.list.buttons["add"]
    assert view.winfo_rooty() <= card.winfo_rooty()
    assert card.winfo_rooty() + card.winfo_height() <= view.winfo_rooty() + view.winfo_height()
    assert str(window.app.root.focus_lastfor()) == str(add._canvas), "what is to be pressed"


def test_the_held_out_reward_model_is_marked(window: Window) -> None:
    form = window.app.form
    form.edit("reward.models", (Scorer(kind="brightness"), Scorer(kind="contrast")))
    page: Any = window.open_page("rewards")
    form.choose_variant("training.method", "alignprop")
    form.edit("training.method.held_out_reward", "contrast")
    window.settle()
    assert [row_values(page.list.table, i)[0] for i in (0, 1)] == ["Brightness", "Contrast (held out)"]
    form.choose_variant("training.method", "denoise")
    window.settle()
    assert page.form_view.empty_note.winfo_ismapped()
    assert page.form_view.winfo_reqheight() < 120, "the cards that are gone leave no gap"
    button = next(w for w in walk(page.frame) if isinstance(w, Button) and w.cget("text") == "Another method…")
    button.invoke()
    window.settle()
    chooser = next(w for w in window.app.root.winfo_children() if isinstance(w, Chooser))
    tree = chooser.table.tree
    line = str(chooser.names.index("grpo"))
    assert "makes the better ones more likely" in tree.item(line, "text"), "the sentence comes before the name"
    assert tree.item(line, "values")[0] == "GRPO"
    window.wait_until(lambda: tree.winfo_viewable() and tree.bbox(line), "the list")
    _, y, _, height = (int(edge) for edge in tree.bbox(line))
    for sequence in ("<Button-1>", "<ButtonRelease-1>"):
        tree.event_generate(sequence, x=tree.winfo_width() - 20, y=y + height // 2)  # anywhere in the row
    window.settle()
    assert form.config.training.method.name == "grpo"


@pytest.mark.parametrize(
    ("scorer", "needs"),
    [
        (Scorer(kind="sharpness"), "no files"),
        (Scorer(kind="reward_server"), "a server's address"),
        (Scorer(kind="reward_server", address="http://127.0.0.1:1/"), "http://127.0.0.1:1/"),
        (Scorer(kind="user_code"), "a file and a function"),
        (Scorer(kind="user_code", file="mine.py:score"), "mine.py:score"),
        (Scorer(kind="hps", file="models/hps.pt"), "models/hps.pt"),
        (Scorer(kind="hps"), "xswu/HPSv2 (2.0 GB)"),
        (Scorer(kind="unified_reward"), "a folder of weights"),
    ],
)
def test_the_files_of_a_reward_model_as_text(scorer: Scorer, needs: str) -> None:
    assert needs_of(scorer) == needs


# ---- the run


@pytest.fixture
def ready(window: Window, tmp_path: Path) -> Window:
    """A window with a run on a reward from user code, without other preflight problems."""
    images = tmp_path / "images"
    images.mkdir()
    for n in range(2):
        Image.new("RGB", (64, 64), (60 * n, 0, 0)).save(images / f"{n}.png")
        (images / f"{n}.txt").write_text(f"number {n}", encoding="utf-8")
    code = tmp_path / "mine.py"
    code.write_text("def score(images, prompts):\n    return images.mean(dim=(1, 2, 3))\n")
    config = Config.model_validate(
        {
            "general": {"workspace_dir": str(tmp_path / "workspace"), "cache_dir": str(tmp_path / "cache")},
            "concepts": [{"path": str(images)}],
            "data": {"resolution_px": [64]},
            "output": {"destination": str(tmp_path / "lora.safetensors")},
            "training": {"method": {"name": "alignprop"}},
            "reward": {"models": [{"kind": "user_code", "file": f"{code}:score"}]},
        }
    )
    window.app.form.load(config, Source("ready"))
    window.settle()
    return window


def press_start(window: Window) -> None:
    """Press Start once it is enabled: the button follows the session with the next redraw."""
    start = window.app.shell.bottom_bar.start
    window.wait_until(lambda: start.cget("state") == "normal" and start.cget("text") == "Start", "Start")
    start.invoke()


def test_user_code_runs_once_approved(ready: Window, tmp_path: Path) -> None:
    digest = hash_of(tmp_path / "mine.py")
    press_start(ready)
    ready.wait_until(lambda: ready.asked.asked("choose"), "the question")
    ready.wait_until(lambda: ready.app.context.session.stage == "idle", "the check")
    [(_title, message, answers)] = ready.asked.asked("choose")
    assert digest in message
    assert str(tmp_path / "mine.py") in message
    assert answers == ["no", "approve"]
    assert not ready.engine.requests
    assert approved_hashes() == frozenset()

    ready.asked.answers.update(choose="approve", confirm_start=True)
    press_start(ready)
    ready.wait_until(lambda: ready.engine.requests, "a run")
    assert approved_hashes() == {digest}
    assert ready.engine.run is not None
    ready.engine.run.end(RunFinished("finished", 1, "Done."))
    ready.wait_until(lambda: ready.app.context.session.stage == "idle", "the end")
    ready.asked.calls.clear()
    press_start(ready)
    ready.wait_until(lambda: len(ready.engine.requests) == 2, "a second run")
    assert not ready.asked.asked("choose")
    ready.engine.run.end(RunFinished("finished", 1, "Done."))
    ready.wait_until(lambda: ready.app.context.session.stage == "idle", "the end")


def test_another_computer_gets_images_once_approved(ready: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modules.rewards.transport.RewardServer.ask", lambda self, message: {"scores": [1.0]})
    form = ready.app.form
    served = Scorer(kind="reward_server", address="http://192.0.2.7:9000/score")
    assert form.edit("training.method", {"name": "grpo"}) is None
    assert form.edit("reward.models", (served,)) is None
    press_start(ready)
    ready.wait_until(lambda: ready.asked.asked("choose"), "the question")
    ready.wait_until(lambda: ready.app.context.session.stage == "idle", "the check")
    [(_title, message, answers)] = ready.asked.asked("choose")
    assert served.address in message
    assert "not encrypted" in message
    assert answers == ["no", "approve"]
    assert not ready.engine.requests
    assert approved_hashes() == frozenset()

    ready.asked.answers.update(choose="approve", confirm_start=True)
    press_start(ready)
    ready.wait_until(lambda: ready.engine.requests, "a run")
    assert approved_hashes() == {parse_address(served.address).digest}
    assert ready.engine.run is not None
    ready.engine.run.end(RunFinished("finished", 1, "Done."))
    ready.wait_until(lambda: ready.app.context.session.stage == "idle", "the end")


def test_another_machine_checks_its_own_servers() -> None:
    assert not _is_of_files(Problem("reward.models.0.address", "The reward server is not running."))
    assert not _is_of_files(Problem("reward.models.0.kind", "OCR needs a package.", remedy="packages"))
    assert not _is_of_files(Problem("training.attention", "It does not train on this device (cpu)."))
    assert _is_of_files(Problem("reward.models.0.file", "The file is missing."))


MEASURED = [
    RewardMeasured(0, 8, 0.5, 0.30, "contrast", {"brightness": 0.5, "contrast": 0.30}),
    RewardMeasured(20, 8, 0.6, 0.32, "contrast", {"brightness": 0.6, "contrast": 0.32}, best_step=20),
    RewardMeasured(40, 8, 0.7, 0.28, "contrast", {"brightness": 0.7, "contrast": 0.28}, best_step=20),
]


def games(**changes: Any) -> RunState:
    held_out = (0.30, 0.32, 0.29, 0.26, 0.22)
    rewards = tuple(
        RewardMeasured(20 * n, 8, 0.5 + 0.1 * n, score, "contrast", diversity=0.2, saturation=0.1)
        for n, score in enumerate(held_out)
    )
    return RunState(rewards=rewards, metrics=with_metrics({}, 80, {"kl": 0.25}), **changes)


def test_the_measured_rewards_have_a_verdict() -> None:
    rewards = games().rewards
    reading = reading_of(rewards, 0.25)
    assert reading is not None
    assert (reading.finding, reading.title) == ("gaming", "Gaming the reward")
    assert reading.reason.startswith("It rose, 0.5 to 0.9, but the held-out reward fell since ")
    assert "The KL to the reference is 0.25." in reading.reason
    assert reward_rows(rewards[0])[-2:] == [("diversity", "0.2000"), ("saturation", "0.1000")]
    assert reading_of([RewardMeasured(n, 8, None, 0.3, "contrast") for n in range(5)]) is None


def test_the_curves_besides_the_rewards() -> None:
    state = games()
    assert list(health_curves(state)) == ["kl", "diversity", "saturation"]
    assert health_curves(state)["diversity"].points[-1] == (80, 0.2)
    sampled = with_metrics({}, 3, {"approx_kl": 0.1, "diversity": 0.4})
    state = RunState(rewards=(RewardMeasured(0, 8, 0.5),), metrics=sampled)
    assert {name: curve.points for name, curve in health_curves(state).items()} == {
        "approx_kl": ((3, 0.1),),
        "diversity": ((3, 0.4),),
    }
    assert health_curves(RunState(rewards=(RewardMeasured(0, 8, 0.5),))) == {}


def test_the_rewards_have_one_place(ready: Window) -> None:
    ready.asked.answers.update(choose="approve", confirm_start=True)
    ready.app.shell.bottom_bar.start.invoke()
    ready.wait_until(lambda: ready.engine.requests, "a run")
    run, page = ready.engine.run, ready.open_page("run")
    assert run is not None
    view: Any = page
    panel = view.rewards
    assert not view.curves_card.is_offered("Rewards")
    run.emit(started(method="alignprop"), PhaseChanged("training"), MEASURED[0])
    ready.wait_until(lambda: panel.title.cget("text"), "the first measurement")
    assert not panel.note.winfo_manager(), "no step has reported a distance yet"
    run.emit(step(1), *MEASURED[1:])
    ready.wait_until(lambda: panel.chart.find_withtag("held_out"), "the curves")
    ready.settle()
    assert view.curves_card.shown == "Rewards"
    assert len(panel.chart.find_withtag("followed")) == 1
    assert panel.title.cget("text") == "Too early to say"
    assert panel.reason.cget("text") == "3 of 4 measurements of the reward."
    assert "does not measure its distance" in panel.note.cget("text")
    assert "Reward 0.7000, held-out reward 0.2800 (Contrast) at step 40; best at step 20" in view.facts.cget("text")
    chart = panel.chart
    chart.event_generate("<Motion>", x=chart.winfo_width() // 2, y=40)
    ready.settle()
    shown = [chart.itemcget(i, "text") for i in chart.find_withtag("pointer") if chart.type(i) == "text"]
    assert "Reward 0.6000, held-out reward 0.3200 (Contrast) at step 20, best so far" in shown
    assert {"Brightness", "Contrast", "0.6000", "0.3200"} <= set(shown)
    run.emit(*games().rewards[3:])
    ready.wait_until(lambda: panel.title.cget("text") != "Too early to say", "a verdict")
    ready.settle()
    assert list(panel.cells) == ["diversity", "saturation"]
    assert all(cell.winfo_ismapped() for cell in panel.cells.values())
    panel.show(RunState(rewards=(RewardMeasured(0, 8, None, 0.3, "contrast"),)))
    assert (panel.title.cget("text"), panel.reason.cget("text")) == ("", ""), "the verdict of an earlier run stays"
    run.end(RunFinished("finished", 40, "Done."))
    ready.wait_until(lambda: ready.app.context.session.stage == "idle", "the end")


def test_metrics_and_the_newest_rollout_share_the_places_of_loss_and_samples(ready: Window, tmp_path: Path) -> None:
    ready.asked.answers.update(choose="approve", confirm_start=True)
    ready.app.shell.bottom_bar.start.invoke()
    ready.wait_until(lambda: ready.engine.requests, "a run")
    run, page = ready.engine.run, ready.open_page("run")
    assert run is not None
    view: Any = page
    assert (view.curves_card.shown, view.images_card.shown) == ("Curves", "Samples")
    files = sorted((tmp_path / "images").glob("*.png"))
    images = tuple(
        SampledImage(str(file), "a disc", 0.5 + n, {"brightness": 0.5 + n}, "best" if n else "worst")
        for n, file in enumerate(files)
    )
    run.emit(
        started(), PhaseChanged("training"), *(step(n, metrics={"reward": n / 60, "kl": 0.1}) for n in range(1, 61))
    )
    run.emit(RolloutSampled(59, images))
    ready.wait_until(lambda: len(view.rollout.photos.loaded) == 2, "the images")
    ready.settle()
    assert (view.curves_card.shown, view.images_card.shown) == ("Metrics", "Rollout")
    assert list(view.metrics.cells) == ["reward", "kl", "gradient_norm"]
    cell = view.metrics.cells["reward"]
    assert "1" in [cell.itemcget(i, "text") for i in cell.find_all() if cell.type(i) == "text"]
    assert len(cell.find_withtag("course")) == 2  # the values, and their moving average
    cell.event_generate("<Motion>", x=2, y=20)
    assert "Reward · step 1" in [cell.itemcget(i, "text") for i in cell.find_all() if cell.type(i) == "text"]
    items = cell.find_all()
    cell.event_generate("<Motion>", x=2, y=30)
    assert cell.find_all() == items  # not drawn again for the same value
    cell.event_generate("<Leave>")
    assert "Reward" in [cell.itemcget(i, "text") for i in cell.find_all() if cell.type(i) == "text"]
    assert view.rollout_line.cget("text") == "Step 60: 2 images of 1 prompt, mean reward 1"
    canvas = view.rollout.canvas
    assert [canvas.itemcget(i, "text") for i in canvas.find_withtag("badge")] == ["worst 0.5", "best 1.5"]
    assert len(canvas.find_withtag("ring")) == 2
    canvas.event_generate("<Button-1>", x=20, y=20)
    viewer = next(w for w in ready.app.root.winfo_children() if isinstance(w, ImageViewer))
    assert viewer.caption.cget("text") == "a disc\nReward 0.5000, worst of its prompt\nBrightness 0.5000"
    viewer.close()
    view.curves_card.tabs["Curves"].event_generate("<Button-1>")
    run.emit(step(61, metrics={"reward": 1.0, "diversity": 0.5}))
    ready.wait_until(lambda: "diversity" in view.metrics.cells, "a new metric")
    assert view.curves_card.shown == "Curves"  # as the user chose
    run.end(RunFinished("finished", 61, "Done."))
    ready.wait_until(lambda: ready.app.context.session.stage == "idle", "the end")


def test_a_measurement_as_text() -> None:
    assert reward_line(RewardMeasured(3, 1, None)) == "Reward – at step 3"
    both = RewardMeasured(3, 1, 1.5, by_reward_model={"brightness": 0.5, "colour_target_2": -0.25})
    assert reward_rows(both) == [
        ("training reward", "1.5000"),
        ("Brightness", "0.5000"),
        ("Target colour", "-0.2500"),
    ]


def test_an_axis_range_has_a_margin() -> None:
    for values in ([0.5], [0.0, 0.0], [-1.0, 3.0]):
        axis = padded_axis(values)
        assert axis.low < min(values)
        assert axis.high > max(values)


def test_each_source_leads_to_methods_that_learn_from_it(window: Window) -> None:
    """Every method is reached, and none is offered for what it cannot learn from."""
    form, reached = window.app.form, set[str]()
    for source in SOURCES:
        found = offers(form.config, source)
        assert sum(offer.is_usual for offer in found) == 1
        assert found[0].is_usual
        for offer in found:
            config = with_method(form.config, offer.spec, source)
            assert source_of(config) == source
            reached.add(offer.spec.name)
    assert reached == set(METHODS)


def test_every_family_with_presets_of_methods_has_one_for_the_own_eye() -> None:
    learned = [p for p in list_presets() if p.is_built_in and not p.is_demo and "LoRA" in p.name]
    of_methods = {p.group for p, c in readable_configs(learned).items() if c.training.method.name != "denoise"}
    by_eye = {p.group for p, c in readable_configs(learned).items() if source_of(c) == "person"}
    assert of_methods == by_eye == {"sd", "sdxl", "z_image", "flux2_klein"}


def test_the_time_of_a_step_counts_the_passes_of_the_method() -> None:
    config = set_path(Config(), "general.train_device", "cpu")[0]
    configs = {name: with_method(config, METHODS[name], "rewards") for name in ("nft", "online_dpo")}
    machine = Machine(None, 32 << 30, None, 2)
    plain, *others = (estimate_run(c, machine) for c in (config, *configs.values()))
    assert plain is not None
    for other, changed in zip(others, configs.values(), strict=True):
        assert other is not None
        times = step_passes(changed).times_denoising(changed.training.batch_size)
        assert times > 10
        assert other.step_seconds == pytest.approx(times * plain.step_seconds, rel=1e-6)
    found = find_times(configs, lambda what, number, total: None)
    assert set(found) == set(configs)
    assert all("without scoring" in time for time in found.values())
    by_eye = with_method(config, METHODS["online_dpo"], "person")
    unscored = find_times({"denoise": config, "by eye": by_eye}, lambda what, number, total: None)
    assert not any("scoring" in time for time in unscored.values()), "nothing is scored"
    assert describe_time(3.2, machine, is_scored=False) == (
        "Time: about 3 seconds per step on this computer's processor (2 cores), give or take a factor of two."
    )


def texts_below(widget: tk.Misc) -> list[str]:
    texts = [str(widget.cget("text"))] if isinstance(widget, tk.Label) else []
    return texts + [text for child in widget.winfo_children() for text in texts_below(child)]


def test_the_methods_follow_the_config_while_they_are_shown(window: Window) -> None:
    form, context = window.app.form, window.app.context
    context.actions.run("which_method")
    window.settle()
    asked = next(w for w in window.app.root.winfo_children() if isinstance(w, WhichMethod))
    asked.buttons["rewards"].invoke()
    window.settle()
    assert len(main_buttons(asked)) == 1, "the chosen answer is marked, and not one more orange button"
    first = dict(asked.cards)
    assert str(first["alignprop"].choice.cget("state")) == "normal"
    window.wait_until(lambda: "per step" in first["alignprop"].time.cget("text"), "the time of a step")
    costs = texts_below(first["alignprop"])
    form.edit("training.batch_size", 3)
    window.settle()
    assert asked.source == "rewards"
    assert asked.cards == first, "nothing flickers"
    assert texts_below(first["alignprop"]) != costs, "its costs are those of the batch"
    assert "per step" in first["alignprop"].time.cget("text"), "until it is estimated again"
    form.choose_variant("model.family", "z_image")
    window.settle()
    assert "#z-image DGPO LoRA 24 GB" in asked.cards["dgpo"].presets
    form.undo()
    window.settle()
    assert "#z-image DGPO LoRA 24 GB" not in asked.cards["dgpo"].presets
    context.documents.open_preset(next(p for p in list_presets() if p.name == "#z-image online DPO by eye LoRA 16 GB"))
    window.settle()
    assert (asked.source, list(asked.cards)) == ("person", ["online_dpo"])
    asked.close_button.invoke()
    assert not asked.winfo_exists()
    form.undo()
    window.settle()


def test_a_person_is_led_to_a_method_and_its_next_page(window: Window) -> None:
    form, context = window.app.form, window.app.context
    context.actions.run("which_method")
    window.settle()
    asked = next(w for w in window.app.root.winfo_children() if isinstance(w, WhichMethod))
    assert asked.source == "images"
    asked.buttons["person"].invoke()
    window.settle()
    assert list(asked.cards) == ["online_dpo"]
    assert list(asked.cards["online_dpo"].presets) == ["#sd 1.5 online DPO by eye LoRA"]
    window.wait_until(lambda: "per step" in asked.cards["online_dpo"].time.cget("text"), "the time of a step")
    asked.cards["online_dpo"].choice.invoke()
    window.settle()
    assert (form.config.training.method.name, form.value("training.method.chosen_by")) == ("online_dpo", "person")
    assert context.navigation.page == "concepts"
    assert source_of(form.config) == "person"
    form.choose_variant("model.family", "z_image")
    assert [p.name for p in offers(form.config, "person")[0].presets] == ["#z-image online DPO by eye LoRA 16 GB"]
    scored = {p.name for offer in offers(form.config, "rewards") for p in offer.presets}
    assert scored == {"#z-image DiffusionNFT LoRA 24 GB", "#z-image DGPO LoRA 24 GB"}
    context.actions.run("which_method")
    window.settle()
    asked = next(w for w in window.app.root.winfo_children() if isinstance(w, WhichMethod))
    asked.cards["online_dpo"].presets["#z-image online DPO by eye LoRA 16 GB"].invoke()
    window.settle()
    assert form.source.name == "#z-image online DPO by eye LoRA 16 GB"
    assert source_of(form.config) == "person"
    refused = [offer for offer in offers(form.config, "rewards") if offer.refusal]
    assert all("has no form for" in offer.refusal for offer in refused)
    form.choose_variant("model.family", "sd")
    form.edit("training.trains", "vae")
    assert not context.actions["which_method"].is_enabled(), "a VAE has a method of its own"
