"""The settings of a reward model, and which files it needs.

One flat record serves every kind: a field applies if the kind's record uses it.
"""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated

from annotated_types import Interval

from modules.rewards.registry import REWARDS, reward_help, reward_labels, rewards_using
from modules.settings.field import Section, Setting, When, advanced_setting, one_of
from modules.settings.shared_types import UpTo1000

if TYPE_CHECKING:
    from modules.formats.published_files import FileRequest


def _used(setting: str) -> When:
    """Return the condition of a field that only some kinds use."""
    return When("kind", partial(rewards_using, setting))


class Scorer(Section):
    """One reward model and the weight of its score."""

    enabled: Annotated[bool, Setting("Enabled", "Whether this reward model is used.")] = True
    kind: Annotated[
        str,
        *one_of(reward_labels, reward_help),
        Setting(
            "Reward model",
            "How images are scored: by a published reward model, by a simple measure that needs no file, or by your "
            "own function.",
        ),
    ] = "aesthetic"
    weight: Annotated[UpTo1000, Setting("Weight", "The weight of its score relative to the other reward models.")] = 1.0
    file: Annotated[
        str,
        Setting(
            "File",
            "Its weights: a file, a folder or a Hugging Face repository. For a custom function: the Python file and "
            "the function's name, for example rewards/mine.py:score; the file runs as a program.",
            path_kind="file",
            empty_means="the published weights, if any",
            applies_when=_used("file"),
        ),
    ] = ""
    clip_model: Annotated[
        str,
        advanced_setting(
            "CLIP model",
            "The CLIP model that encodes the images: a folder or a repository in transformers' layout.",
            path_kind="folder",
            empty_means="the published CLIP model",
            applies_when=_used("clip_model"),
        ),
    ] = ""
    vocabulary: Annotated[
        str,
        advanced_setting(
            "Vocabulary",
            "The vocabulary of the model that reads captions, vocab.txt or tokenizer.json: a file or a repository.",
            path_kind="file",
            empty_means="the published vocabulary",
            applies_when=_used("vocabulary"),
        ),
    ] = ""
    colour: Annotated[
        str,
        Setting(
            "Colour",
            "The target colour, as #rrggbb.",
            applies_when=_used("colour"),
        ),
    ] = "#ff0000"
    jpeg_quality: Annotated[
        int,
        *Interval(ge=1, le=95),
        advanced_setting(
            "JPEG quality",
            "The quality at which images are compressed to measure their file size.",
            applies_when=_used("jpeg_quality"),
        ),
    ] = 95
    address: Annotated[
        str,
        Setting(
            "Address",
            "Where the server listens, such as http://127.0.0.1:8765/score; for a vision language model up to /v1, "
            "such as http://127.0.0.1:8000/v1. Another computer's address has to be approved once.",
            applies_when=_used("address"),
        ),
    ] = ""
    model_name: Annotated[
        str,
        Setting(
            "Model name",
            "The name of the vision language model, as its server lists it.",
            applies_when=_used("model_name"),
        ),
    ] = ""
    rubric: Annotated[
        str,
        Setting(
            "Rubric",
            "What makes a good image, and a bad one: the instructions that the model scores by.",
            multiline=True,
            applies_when=_used("rubric"),
        ),
    ] = (
        "You score images that were generated from a prompt. A high score needs both: the image shows what the prompt "
        "describes, and it is well made, without artifacts, wrong anatomy or garbled text."
    )
    highest_score: Annotated[
        float,
        *Interval(gt=0, le=1000),
        Setting(
            "Highest score",
            "The scale of the scores, from 0 to this number. Answers beyond it count as no score.",
            applies_when=_used("highest_score"),
        ),
    ] = 10.0
    timeout_seconds: Annotated[
        float,
        *Interval(ge=0.1, le=3600),
        advanced_setting(
            "Time limit",
            "The time within which a server has to answer a request, or a custom function to score a batch of images.",
            unit="s",
            changeable_on_resume=True,
            applies_when=_used("timeout_seconds"),
        ),
    ] = 60.0
    retry_minutes: Annotated[
        float,
        *Interval(ge=0, le=1440),
        advanced_setting(
            "Retry for",
            "How long a run waits for a server that stops answering. If it answers again, the run continues; if "
            "not, the run ends with a backup, from which it can be resumed.",
            unit="min",
            changeable_on_resume=True,
            applies_when=_used("retry_minutes"),
        ),
    ] = 10.0


def wanted_files(scorer: Scorer) -> "Iterator[FileRequest]":
    """Yield the files of a reward model. A repository named in the settings replaces the published one."""
    from modules.formats.published_files import file_request  # with the records, which the window is drawn without

    for published in REWARDS[scorer.kind].files:
        yield file_request(published, str(getattr(scorer, published.slot)))
