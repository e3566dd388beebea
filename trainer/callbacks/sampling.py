"""Samples: images of the same prompts and seeds, generated during training."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import ClassVar

from PIL import Image

from modules.adapters.protocol import Adapter
from modules.config.sections.evaluation import SamplePrompt, Sampling
from modules.data.wildcards import expand
from modules.memory.guard import PlacementError
from modules.system.errors import DarkroomError
from modules.system.file_errors import plain_reason
from modules.system.paths import from_root
from modules.system.problem import count
from modules.system.seeds import derive_seed
from trainer.callbacks.image_sampler import ImageSampler
from trainer.callbacks.sample_files import SampleFiles
from trainer.commands import CommandDesk, SampleNow
from trainer.events import Event, PhaseChanged, SampleProgress, WarningRaised
from trainer.step.callback import DryRunCheck, DryRunState, StepView
from trainer.step.counters import Counters
from trainer.step.evaluation import Evaluation
from trainer.step.meeting import Meeting, meeting_of_one

Prompts = list[tuple[int, SamplePrompt]]
"""Prompts with their positions among the prompts of the settings."""

_TRIAL = "a sample in the dry run"


class SampleCallback(ABC):
    """Writes images at the start, when they are due or requested, and at the end.

    The processes of a `meeting` share them, dealt in turn; the main one writes them. A subclass names its images, and
    its `_sample_share((step, number))` returns this process's images for one of the evaluations: images with EMA come
    first, then those without.
    """

    task: ClassVar[str]
    advice: ClassVar[str] = "Training continues."

    def __init__(
        self,
        settings: Sampling,
        *,
        evaluation: Evaluation,
        files: SampleFiles,
        desk: CommandDesk,
        emit: Callable[[Event], None],
        meeting: Meeting | None = None,
    ) -> None:
        self._settings = settings
        self._evaluation = evaluation
        self._files = files
        self._desk = desk
        self._emit = emit
        self._meeting = meeting or meeting_of_one(desk)
        self._meeting.offer(self.task, self._sample_share)

    @abstractmethod
    def _named_images(self) -> list[tuple[int, str]]:
        """Return the number and the name of each image."""

    @abstractmethod
    def _sample_share(self, given: tuple[int, int]) -> list[Image.Image]:
        """Return this process's images at a step for one of the evaluations."""

    def at_start(self, counters: Counters) -> None:
        """Sample before training, if set."""
        if self._settings.at_start:
            self.sample_all(counters.step)

    def is_due(self, before: Counters, now: Counters) -> bool:
        """Return whether it is due or requested."""
        settings = self._settings
        is_due = settings.every.is_due(before.moment, now.moment, skip_first=settings.skip_first)
        return self._desk.has(SampleNow) or is_due

    def after_step(self, view: StepView) -> None:
        """Sample if it is due or requested."""
        if self.is_due(view.before, view.now):
            self._desk.take(SampleNow)
            self.sample_all(view.now.step)

    def at_end(self, counters: Counters) -> None:
        """Sample after training, if set, unless the last step already did."""
        first = self._named_images()[:1]
        if self._settings.at_end and not any(self._files.path(counters.step, i, name).exists() for i, name in first):
            self.sample_all(counters.step)

    def sample_all(self, step: int) -> None:
        """Write every image. A failure is a warning and does not end the run, except for a placement bug."""
        named = self._named_images()
        if not named:
            return
        self._emit(PhaseChanged("sampling", count(len(named), "sample")))
        try:
            for number, evaluation in enumerate(self._evaluations()):
                shares = self._meeting.share(self.task, (step, number))
                is_without_ema = evaluation is not self._evaluation
                for place, (index, name) in enumerate(named):
                    image = shares[place % len(shares)][place // len(shares)]
                    self._files.keep(image, step, index, name, is_without_ema=is_without_ema)
        except PlacementError:
            raise
        except (RuntimeError, ValueError, OSError, SyntaxError, DarkroomError) as error:
            self._emit(WarningRaised(f"The samples could not be generated: {plain_reason(error)}.", self.advice))

    def _evaluations(self) -> list[Evaluation]:
        return self._evaluation.variants(also_without_ema=self._settings.also_without_ema)


class SamplingCallback(SampleCallback):
    """Samples the enabled prompts when they are due or requested, at the start and at the end."""

    task = "samples"
    advice = "Training continues. Smaller samples need less memory."

    def __init__(
        self,
        settings: Sampling,
        *,
        image_sampler: ImageSampler,
        evaluation: Evaluation,
        files: SampleFiles,
        desk: CommandDesk,
        emit: Callable[[Event], None],
        meeting: Meeting | None = None,
        adapters: Sequence[Adapter] = (),
    ) -> None:
        """`adapters` are the trained ones."""
        super().__init__(settings, evaluation=evaluation, files=files, desk=desk, emit=emit, meeting=meeting)
        self._image_sampler = image_sampler
        self._adapters = adapters
        self._meeting.offer(_TRIAL, self._sample_shortly)
        self._progress = SamplingProgress(0, self._meeting.check, emit)

    def _named_images(self) -> list[tuple[int, str]]:
        return [(index, prompt.prompt) for index, prompt in self._prompts()]

    def _sample_share(self, given: tuple[int, int]) -> list[Image.Image]:
        step, number = given
        rank, evaluations = self._meeting.rank, self._evaluations()
        prompts = [self._with_seed(index, p, step) for index, p in self._prompts()[rank.index :: rank.world_size]]
        if number == 0:
            total = len(evaluations) * sum(p.steps for p in prompts)
            self._progress = SamplingProgress(total, self._meeting.check, self._emit)
        with evaluations[number].active(), without_idle(self._adapters):
            return self._image_sampler.sample(
                [expand_wildcards(self._settings, p) for p in prompts], on_step=self._progress.next
            )

    def _with_seed(self, index: int, prompt: SamplePrompt, step: int) -> SamplePrompt:
        """Return a prompt with its seed at this step: the same at each step, or another one for each."""
        if not prompt.random_seed:
            return prompt
        return prompt.model_copy(update={"seed": derive_seed(prompt.seed, "random sample", step, index)})

    def dry_run_checks(self, state: DryRunState) -> list[DryRunCheck]:
        """Return the check of the largest sample, if the settings make samples without a request."""
        prompts, settings = self._prompts(), self._settings
        if not prompts or (settings.every.is_never and not settings.at_start and not settings.at_end):
            return []
        largest = max(prompts, key=lambda p: p[1].width_px * p[1].height_px * (2 if p[1].guidance > 1 else 1))
        advice = "Use smaller samples, or switch them off."
        return [DryRunCheck("sampling", advice, partial(self._try_out, largest, state.counters.step))]

    def _try_out(self, prompt: tuple[int, SamplePrompt], step: int) -> None:
        """Generate a sample with a single denoising step, and start to write it."""
        image, *_ = self._meeting.share(_TRIAL, prompt[0])
        self._files.try_out(image, step, prompt[0], prompt[1].prompt)

    def _sample_shortly(self, index: int) -> Image.Image:
        """Return the sample of a prompt after a single denoising step."""
        with self._evaluation.active():
            prompt = expand_wildcards(self._settings, self._settings.prompts[index])
            [image] = self._image_sampler.sample([prompt], on_step=self._meeting.check, most_steps=1)
        return image

    def _prompts(self) -> Prompts:
        return [(i, p) for i, p in enumerate(self._settings.prompts) if p.enabled]


def expand_wildcards(settings: Sampling, prompt: SamplePrompt) -> SamplePrompt:
    """Return a prompt with its wildcards replaced by words that its seed chooses."""
    folder = from_root(settings.wildcards_dir) if settings.wildcards_dir.strip() else None
    texts = {
        name: expand(getattr(prompt, name), seed=prompt.seed, folder=folder).text
        for name in ("prompt", "negative_prompt")
    }
    return prompt.model_copy(update=texts)


@contextmanager
def without_idle(adapters: Sequence[Adapter]) -> Iterator[None]:
    """Leave out the adapters that change nothing, which takes a fifth of the time of the samples before the first step.

    The images are the same.
    """
    with ExitStack() as stack:
        for adapter in adapters:
            if adapter.changes_nothing():
                stack.enter_context(adapter.disabled())
        yield


class SamplingProgress:
    """Counts denoising steps, reports them, and raises StopRequested on a stop."""

    def __init__(self, total: int, check: Callable[[], None], emit: Callable[[Event], None]) -> None:
        self._total, self._check, self._emit = total, check, emit
        self._done = 0
        self._start = time.monotonic()

    def next(self) -> None:
        """Called before each denoising step."""
        self._check()
        left = None
        if self._done:
            left = (time.monotonic() - self._start) / self._done * (self._total - self._done)
        self._emit(SampleProgress(self._done, self._total, left))
        self._done += 1
