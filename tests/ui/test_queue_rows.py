"""The rows of the queue: names of copies, what is trained and for how long, and how copies differ."""

from __future__ import annotations

from modules.config.codec import encode
from modules.config.schema import Config
from modules.settings.edit import set_path
from trainer.run_queue.items import Item, RunQueue
from ui.features.queue.rows import (
    Difference,
    Differences,
    describe_length,
    describe_training,
    detail_lines,
    names_of,
)
from ui.loop.wording import plan_lines


def config(**training: object) -> Config:
    found = Config()
    for name, value in training.items():
        found, problems = set_path(found, f"training.{name}", value)
        assert not problems
    return found


def test_copies_are_numbered_and_differences_to_the_item_before_named() -> None:
    queue = RunQueue().add("zog", config(epochs=10)).add("cat", config(epochs=10))
    queue = queue.add("zog", config(epochs=30, batch_size=2)).add("zog", config(epochs=30, batch_size=2))
    items, differences = queue.items, Differences()
    assert names_of(items) == ["zog", "cat", "zog (2)", "zog (3)"]
    assert differences.known_differences(items) == [Difference(), None, None, None]
    differences.compare(items)
    first, second, third, fourth = differences.known_differences(items)
    assert first == Difference()
    assert second == Difference("the same settings", ("The same settings as zog",))
    assert third is not None
    assert third.cell == "Epochs 30, Batch size 2 images"
    assert third.sentence == "Differs from cat: Training › Epochs: 10 → 30; Training › Batch size: 1 image → 2 images"
    assert fourth == Difference("the same settings", ("The same settings as zog (2)",))


def test_differences_are_kept_until_an_item_or_the_one_before_it_changes() -> None:
    queue, differences = RunQueue().add("a", config()).add("b", config()).add("c", config()), Differences()
    differences.compare(queue.items)
    assert None not in differences.known_differences(queue.end(1, "failed", "The disk is full.").items)
    edited = queue.edit(2, config(epochs=3))
    assert [known is None for known in differences.known_differences(edited.items)] == [False, True, True]
    assert [known is None for known in differences.known_differences(queue.move(1, 1).items)] == [False, True, True]


def test_many_differences_are_cut_and_folders_come_last() -> None:
    other, _ = set_path(
        config(epochs=3, batch_size=2, learning_rate=1e-3), "output.destination", "models/b.safetensors"
    )
    items, differences = RunQueue().add("zog", config()).add("zog", other).items, Differences()
    differences.compare(items)
    [_, found] = differences.known_differences(items)
    assert found is not None
    assert found.cell == "Epochs 3, Batch size 2 images, Learning rate 0.001 and 1 more setting"
    assert found.sentence.endswith("; 1 more setting")
    assert len(found.lines) == 5


def test_the_target_and_the_length_of_an_item() -> None:
    items = RunQueue().add("a", config(epochs=1)).add("b", config(batch_size=2, accumulation_steps=4)).items
    assert describe_training(items[0]) == "Stable Diffusion 1 and 2, LoRA, Denoising"
    assert [describe_length(item) for item in items] == ["1 epoch, batch 1", "10 epochs, batch 2 x 4"]
    strange = RunQueue().add("c", config()).items[0]
    broken = type(strange)(1, "c", {"training": {"epochs": "many"}, "model": None})
    assert (describe_training(broken), describe_length(broken)) == ("", "10 epochs, batch 1")


def test_the_details_of_an_item_say_what_its_run_does_and_where_its_files_go() -> None:
    settings = {
        "concepts": [{"path": "/images/zog"}, {"path": "/images/off", "enabled": False}],
        "sampling": {"every": {"n": 2, "unit": "epoch"}, "at_start": False, "prompts": [{"prompt": "a"}] * 2},
        "validation": {"every": {"n": 1, "unit": "epoch"}},
        "backup": {"every": {"n": 1, "unit": "never"}, "at_end": False},
        "output": {"destination": "models/zog.safetensors"},
    }
    lines = detail_lines(Item(1, "zog", encode(Config.model_validate(settings))))
    assert "Concepts: zog" in lines
    assert any(line.startswith("AdamW, learning rate") for line in lines)
    assert lines[-5:] == [
        "Samples of 2 prompts: every 2 epochs and at the end",
        "Validation: every epoch",
        "Backups: never",
        "Result: models/zog.safetensors",
        "All else: a new folder in workspace/run/runs",
    ]
    assert "no prompts" in plan_lines(Config())[0]
