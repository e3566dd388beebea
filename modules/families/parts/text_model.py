"""The shared base of transformer models: all that depends on the class of their conditioning alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypedDict, TypeVar

import torch

from modules.data.conditioning import Conditioning, SizeConditioning
from modules.data.inputs import NO_INPUTS
from modules.diffusion.flow import FlowProcess, flow_process_of
from modules.families.lora_naming import LoraNaming
from modules.families.parts.chat_text import ChatReader
from modules.families.parts.conditioning import TokenConditioning
from modules.families.parts.files import ModelFiles
from modules.families.parts.latent_model import LatentModel, Process
from modules.families.parts.lora_names import naming_of
from modules.families.spec import FamilySpec


class PromptText(Conditioning, Protocol):
    """The conditioning of a transformer model, which needs the empty prompt only in place of dropped prompts."""

    def with_empty_prompts(self, empty_for: Sequence[Collection[int]], empty: Self) -> Self:
        """Return it with the empty prompt's states for some text encoders of each prompt, by their index."""
        ...

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, torch.Tensor]) -> Self:
        """Return the conditioning from its `tensors`. Raises KeyError if one is missing."""
        ...

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Join conditionings into one."""
        ...


Text = TypeVar("Text", bound=PromptText)


@dataclass(frozen=True, eq=False)
class DenoiserInputs(Generic[Text]):
    """The inputs of a prediction, those of images in the dtype of the denoiser's inputs, and the time as it reads it.

    `images` are the further inputs of a variant, by name (`FamilySpec.inputs`).
    """

    noisy_BCHW: torch.Tensor
    time_B: torch.Tensor
    text: Text
    images: Mapping[str, torch.Tensor]

    def cast(self, values: torch.Tensor) -> torch.Tensor:
        """Return a tensor in the dtype of the denoiser's inputs."""
        return values.to(self.noisy_BCHW.dtype)


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

    def predict(
        self,
        noisy_BCHW: torch.Tensor,
        timesteps_B: torch.Tensor,
        conditioning: Conditioning,
        inputs: Mapping[str, torch.Tensor] = NO_INPUTS,
    ) -> torch.Tensor:
        """Return the prediction, of the shape of the noisy latents; `inputs` are the further inputs of a variant."""
        text = self._text(conditioning)
        dtype = self._input_dtype(self._denoiser_of(text))
        images = {name: image.to(dtype) for name, image in inputs.items()}
        given = DenoiserInputs(noisy_BCHW.to(dtype), self._time(timesteps_B), text, images)
        return self._prediction(self._output(given))

    @abstractmethod
    def _output(self, given: DenoiserInputs[Text]) -> torch.Tensor:
        """Return the denoiser's output as latents."""

    def _denoiser_of(self, text: Text) -> str:
        """Return the part that predicts for a conditioning."""
        return self.spec.denoiser.name

    def _denoise(self, **inputs: Any) -> torch.Tensor:
        """Run the denoiser, and return its output."""
        output: torch.Tensor = self._forward(self.spec.denoiser.name)(**inputs, return_dict=False)[0]
        return output

    def _time(self, timesteps_B: torch.Tensor) -> torch.Tensor:
        """Return timesteps as the denoiser reads them."""
        return timesteps_B

    def _prediction(self, output_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the denoiser's output with the process's sign."""
        return output_BCHW

    def _text(self, conditioning: Conditioning) -> Text:
        assert isinstance(conditioning, self.text_class), f"conditioning of another family: {type(conditioning)}"
        text: Text = conditioning
        return text


class FlowModel(TextModel[FlowProcess, Text], ABC, Generic[Text]):
    """A loaded flow model without size conditioning, which predicts the velocity."""

    def _time(self, timesteps_B: torch.Tensor) -> torch.Tensor:
        return self.process.time_input(timesteps_B)

    def _prediction(self, output_BCHW: torch.Tensor) -> torch.Tensor:
        return self.process.velocity(output_BCHW)


class FlowFacts(TypedDict):
    """The arguments that all flow models share (`LatentModel`)."""

    spec: FamilySpec
    modules: Mapping[str, Any]
    process: FlowProcess
    scheduler: Mapping[str, Any]
    folder: Path | None
    lora_naming: LoraNaming
    by_inputs: str


def flow_facts(files: ModelFiles, spec: FamilySpec, model: str, *, by_inputs: str = "") -> FlowFacts:
    """Return the arguments of a flow model that follow from its files; `model` is the name of its published model.

    `by_inputs` is a variant that its weights do not show. Raises DarkroomError for a shift that cannot be used.
    """
    assert spec.process.flow is not None, f"{spec.label} is not a flow model"
    return {
        "spec": spec,
        "modules": files.parts,
        "process": flow_process_of(files.scheduler, spec.process.flow),
        "scheduler": files.scheduler,
        "folder": files.folder,
        "lora_naming": naming_of(model, files.parts, prediction="flow", by_inputs=by_inputs),
        "by_inputs": by_inputs,
    }


# The shared base of flow models whose prompts a frozen language model reads as messages of a chat.


@dataclass(eq=False)
class ChatModel(FlowModel[Text], ABC):
    """A loaded flow model with the `reader` of its prompts. Its conditioning is or contains a `TokenConditioning`."""

    text_class: ClassVar[type[Any]] = TokenConditioning

    reader: ChatReader

    def encode_prompts(self, prompts: Sequence[str], padded_like: Sequence[str] = ()) -> Text:
        """Return the states of prompts. None depends on the others, so `padded_like` changes nothing."""
        text: Text = self.text_class.of(self.reader.encode(self._forward("text_encoder"), prompts))
        return text

    def text_identity(self) -> str:
        """Return everything but the weights that affects how a prompt is encoded."""
        return self.reader.identity()

    def count_tokens(self, prompt: str) -> int:
        """Return the number of tokens of a prompt, without the template."""
        return self.reader.tokenizer.count(prompt)


# The shared base of models whose only text encoder is a T5, of which they see single tokens.


@dataclass(eq=False)
class T5Model(TextModel[Process, TokenConditioning], ABC, Generic[Process]):
    """A loaded model with a T5, `text_encoder`; implements `FamilyWithEmbeddings` but for its own forward pass."""

    text_class = TokenConditioning

    def encode_prompts(self, prompts: Sequence[str], padded_like: Sequence[str] = ()) -> TokenConditioning:
        """Return the states of prompts, each with its kept padding; `padded_like` changes nothing."""
        return TokenConditioning.of(self._t5("text_encoder").encode(self._forward("text_encoder"), prompts))
