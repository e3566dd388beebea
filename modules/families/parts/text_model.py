"""The shared base of transformer models: all that depends on the class of their conditioning alone."""

from __future__ import annotations

from abc import ABC
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import torch

from modules.data.conditioning import Conditioning, SizeConditioning
from modules.diffusion.flow import FlowProcess
from modules.families.parts.latent_model import LatentModel, Process


class PromptText(Conditioning, Protocol):
    """The conditioning of a transformer model, which needs the empty prompt only in place of dropped prompts."""

    def with_empty_prompts(self, empty_for: Sequence[Collection[int]], empty: Self) -> Self:
        """Return it with the empty prompt's states for some text encoders of each prompt, by their index."""
        ...

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, torch.Tensor]) -> Self:
        """Return the conditioning from its `tensors`. Raises KeyError where one is missing."""
        ...

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Join conditionings into one."""
        ...


Text = TypeVar("Text", bound=PromptText)


@dataclass(eq=False)
class TextModel(LatentModel[Process], ABC, Generic[Process, Text]):
    """A loaded model without size conditioning. `text_class` is the class of its conditioning, `Text`."""

    text_class: ClassVar[type[Any]]

    def with_size_conditioning(
        self, conditioning: Conditioning, size_conditionings: Sequence[SizeConditioning]
    ) -> Text:
        """Return the conditioning as it is: the model has no size conditioning."""
        return self._text(conditioning)

    def with_empty_prompts(
        self, conditioning: Conditioning, empty_for: Sequence[Collection[int]], empty: Conditioning
    ) -> Text:
        """Return the conditioning with the empty prompt for some text encoders of each prompt."""
        return self._text(conditioning).with_empty_prompts(empty_for, self._text(empty))

    def conditioning_from(self, tensors: Mapping[str, torch.Tensor]) -> Text:
        """Return the conditioning of a cache entry."""
        text: Text = self.text_class.from_tensors(tensors)
        return text

    def join(self, conditionings: Sequence[Conditioning], empty: Conditioning) -> Text:
        """Join several conditionings into one."""
        text: Text = self.text_class.join([self._text(c) for c in conditionings])
        return text

    def _text(self, conditioning: Conditioning) -> Text:
        assert isinstance(conditioning, self.text_class), f"conditioning of another family: {type(conditioning)}"
        text: Text = conditioning
        return text


class FlowModel(TextModel[FlowProcess, Text], ABC, Generic[Text]):
    """A loaded flow model without size conditioning."""
