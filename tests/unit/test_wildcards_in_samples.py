"""Wildcards in the sample prompts of a run: the seed decides, and files keep the prompt's own name."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from PIL import Image

from modules.config.sections.evaluation import SamplePrompt, Sampling
from trainer.callbacks.sample_files import SampleFiles
from trainer.callbacks.sampling import SamplingCallback
from trainer.callbacks.side_output import SideOutput
from trainer.commands import CommandDesk
from trainer.events import SampleReady, WarningRaised


class _Sampler:
    """Keeps the prompts that it gets."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def sample(self, prompts: list[SamplePrompt], *, on_step: object) -> list[Image.Image]:
        self.texts += [p.prompt for p in prompts]
        return [Image.new("RGB", (8, 8)) for _ in prompts]


class _Evaluation:
    """The model as it is."""

    def variants(self, *, also_without_ema: bool) -> tuple[_Evaluation, ...]:
        return (self,)

    def active(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def test_the_same_seed_gives_the_same_text_at_every_step(tmp_path: Path) -> None:
    (tmp_path / "colour.txt").write_text("red\ngreen\nblue\n")
    text = "a __colour__ {disc|square}"
    prompts = tuple(SamplePrompt(prompt=text, seed=seed) for seed in range(6))
    prompts += (SamplePrompt(prompt=text, random_seed=True),)
    settings = Sampling(prompts=prompts, wildcards_dir=str(tmp_path))
    sampler, events = _Sampler(), list[Any]()
    callback = SamplingCallback(
        settings,
        image_sampler=sampler,  # type: ignore[arg-type]
        evaluation=_Evaluation(),  # type: ignore[arg-type]
        files=SampleFiles(tmp_path, settings, events.append, None, SideOutput("The samples", tmp_path, events.append)),
        desk=CommandDesk(),
        emit=events.append,
    )
    for step in range(8):
        callback.sample_all(step)
    rounds = [sampler.texts[n : n + 7] for n in range(0, len(sampler.texts), 7)]
    assert len({tuple(texts[:6]) for texts in rounds}) == 1
    assert len(set(rounds[0][:6])) > 2
    assert len({texts[6] for texts in rounds}) > 1  # another seed each time
    assert not any("__" in text or "{" in text for text in sampler.texts)
    assert {event.prompt for event in events if isinstance(event, SampleReady)} == {text}
    (tmp_path / "colour.txt").write_text("__colour__\n")
    callback.sample_all(9)
    assert any(isinstance(event, WarningRaised) for event in events)  # and the run continues
