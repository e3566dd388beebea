"""Subjects of a LoRA, and how long each is usually trained: a record each.

A view is one image of a batch, so batch size and accumulation do not matter. There is no measured law; users and
trainers name these figures:

- A hundred views of each image is the usual advice for a few photos of a subject ("number of images x 100" in the
  notebooks of Dreambooth, 2022), and about 2,000 views for a subject of twenty images.
- Faces need more than other subjects: 800 to 1,200 steps with a batch of two, 1,600 to 2,400 views ("Training Stable
  Diffusion with Dreambooth using Diffusers", Hugging Face 2022).
- ai-toolkit's example configs call 500 to 4,000 steps, of one image each, a good range; authors of styles for FLUX.1
  name 3,000 to 4,000.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from modules.system.problem import count


@dataclass(frozen=True, slots=True)
class SubjectSpec:
    """A kind of subject: the views of each image, and the least and the most views of all images together."""

    name: str
    label: str
    reason: str
    views_per_image: int
    least_views: int
    most_views: int

    def views(self, num_images: int) -> int:
        """Return the usual number of views for that many images."""
        return min(self.most_views, max(self.least_views, self.views_per_image * num_images))


PERSON = SubjectSpec(
    "person",
    "Person",
    "A face needs the most views of each image: small differences count.",
    views_per_image=100,
    least_views=1000,
    most_views=3000,
)
_OTHERS = (
    SubjectSpec(
        "object",
        "Object",
        "A thing or an animal is learned sooner than a face.",
        views_per_image=60,
        least_views=500,
        most_views=2000,
    ),
    SubjectSpec(
        "style",
        "Style",
        "A style changes everything in an image, and is learned from many different ones.",
        views_per_image=80,
        least_views=1500,
        most_views=4000,
    ),
    SubjectSpec(
        "concept",
        "Concept",
        "A pose, a scene or an idea looks different in each image, so it takes longer than an object.",
        views_per_image=80,
        least_views=1000,
        most_views=4000,
    ),
)
SUBJECTS: Mapping[str, SubjectSpec] = {s.name: s for s in (PERSON, *_OTHERS)}

USUAL_IMAGES = 20
"""The number of images that times are stated for until the user's are counted."""

_SHORT = 0.5  # of the least that any subject usually gets
_LONG = 4.0  # times the views that any subject usually gets of each image


def is_too_short(num_images: int, views: float) -> bool:
    """Return whether hardly any subject is learned with so few views."""
    return views < _SHORT * min(s.views(num_images) for s in SUBJECTS.values())


def is_too_long(num_images: int, views: float) -> bool:
    """Return whether each image is seen so often that a run memorizes the images.

    A small set may always be trained for the views of the longest usual run.
    """
    most_views = max(s.most_views for s in SUBJECTS.values())
    most_of_each = _LONG * max(s.views_per_image for s in SUBJECTS.values())
    return views > max(most_views, most_of_each * num_images)


@dataclass(frozen=True, slots=True)
class Amount:
    """The images of a run: their number, how many samples of them an epoch has, and the images of a step.

    `steps_per_epoch` is 0 until the sizes of the images are known: the images of each size make batches of their own.
    """

    num_images: int
    samples_per_epoch: float
    images_per_step: int
    steps_per_epoch: int = 0

    def steps(self, epochs: int) -> int:
        """Return how many steps that many epochs have; an estimate while `steps_per_epoch` is unknown."""
        return epochs * (self.steps_per_epoch or math.ceil(self.samples_per_epoch / self.images_per_step))


@dataclass(frozen=True, slots=True)
class LengthChoice:
    """The usual length of a run for a subject."""

    subject: SubjectSpec
    epochs: int
    steps: int

    @property
    def length(self) -> str:
        """The length in words."""
        return f"{count(self.steps, 'step')}, {count(self.epochs, 'epoch')}"


def length_choices(amount: Amount) -> tuple[LengthChoice, ...]:
    """Return the usual length of a run for each subject; none without images."""
    if not amount.num_images or amount.samples_per_epoch <= 0:
        return ()
    choices = []
    for subject in SUBJECTS.values():
        epochs = max(1, round(subject.views(amount.num_images) / amount.samples_per_epoch))
        choices.append(LengthChoice(subject, epochs, amount.steps(epochs)))
    return tuple(choices)
