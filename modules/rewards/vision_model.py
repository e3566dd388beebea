"""A vision language model as a reward: it scores images by a rubric, through an OpenAI-style endpoint."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from modules.rewards.address import Address, parse_address
from modules.rewards.transport import RewardServer, StatusError, wrong_answer
from modules.rewards.waiting import Patience
from modules.system.errors import DarkroomError
from modules.system.problem import quote
from modules.system.regular_files import json_object_in

if TYPE_CHECKING:
    from modules.rewards.settings import Scorer

_PATH = "/chat/completions"
_REFUSED_OPTIONS = (400, 422)
_SCHEMA = {
    "type": "object",
    "properties": {"reason": {"type": "string"}, "score": {"type": "number"}},
    "required": ["reason", "score"],
    "additionalProperties": False,
}
# What makes an answer reliable, where the server supports it.
_OPTIONS = {
    "temperature": 0,
    "response_format": {"type": "json_schema", "json_schema": {"name": "score", "strict": True, "schema": _SCHEMA}},
}
_THOUGHTS = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL | re.IGNORECASE)
_NUMBER = r"(-?\d+(?:[.,]\d+)?)(?![\d%])"
_IN_JSON = re.compile(rf"[\"']score[\"']\s*:\s*[\"']?{_NUMBER}", re.IGNORECASE)
_AFTER_SCORE = re.compile(rf"\bscore\b\W{{0,10}}(?:is|of|:)?\W{{0,10}}{_NUMBER}", re.IGNORECASE)
_OF_THE_SCALE = re.compile(rf"{_NUMBER}\s*(?:/|out of)\s*\d")
_ANY = re.compile(rf"(?<![\w.,/-]){_NUMBER}")


def score_in(text: str, highest: float) -> float:
    """Return the score that a text states, from 0 to `highest`; NaN if there is none, or if it is not clear.

    In the order of trust: JSON with "score", its text within others, "score: 7", "7/10", and an only number.
    """
    text = _THOUGHTS.sub("", text)
    candidates: list[Any] = [_json_score(text)]
    for pattern in (_IN_JSON, _AFTER_SCORE, _OF_THE_SCALE):
        candidates += pattern.findall(text)[-1:]
    numbers = _ANY.findall(text)
    candidates += numbers if len(numbers) == 1 else []
    score = next((float(str(one).replace(",", ".")) for one in candidates if one is not None), math.nan)
    return score if 0 <= score <= highest else math.nan


def _json_score(text: str) -> float | None:
    """Return the number "score" of an answer that is nothing but a JSON object, perhaps in a code block."""
    bare = re.sub(r"\A\s*```\w*\s*|\s*```\s*\Z", "", text)
    score = (json_object_in(bare) or {}).get("score")
    return score if isinstance(score, int | float) and not isinstance(score, bool) else None


@dataclass(frozen=True, slots=True)
class VisionModel:
    """Asks a model on a server to score one image after the other, from 0 to `highest`."""

    server: RewardServer
    model_name: str
    rubric: str
    highest: float
    refused: set[str] = field(default_factory=set)
    """The options that the server has refused."""
    oddities: set[str] = field(default_factory=set)
    """The first text without a score, which was reported."""

    def scores(self, pngs: Sequence[bytes], prompts: Sequence[str]) -> list[float]:
        """Return a score for each PNG file, NaN where the model's answer contains none.

        Raises DarkroomError where the server fails.
        """
        texts = [self._answer_to(png, prompt) for png, prompt in zip(pngs, prompts, strict=True)]
        scores = [score_in(text, self.highest) for text in texts]
        for text, score in zip(texts, scores, strict=True):
            if math.isnan(score) and not self.oddities:
                self.oddities.add(text)
                self.server.patience.warn(
                    f"{self.model_name} gave no score from 0 to {self.highest:g}: {quote(text, max_chars=120)}.",
                    "Such images are left out. If there are many, make the rubric clearer or use another model.",
                )
        return scores

    def _answer_to(self, png: bytes, prompt: str) -> str:
        message = {"model": self.model_name, "messages": self._messages(png, prompt)}
        options = {name: value for name, value in _OPTIONS.items() if name not in self.refused}
        try:
            answer = self.server.ask({**message, **options})
        except StatusError as error:
            if not options or error.status not in _REFUSED_OPTIONS:
                raise
            answer = self.server.ask(message)
            self.refused.update(options)  # it was because of them
        return _text_in(answer, self.server.address)

    def _messages(self, png: bytes, prompt: str) -> list[dict[str, Any]]:
        form = f'Answer with JSON alone: {{"reason": "one sentence", "score": number from 0 to {self.highest:g}}}.'
        image = {"url": f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"}
        return [
            {"role": "system", "content": f"{self.rubric.strip()}\n\n{form}"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": f"The image was made for this prompt: {prompt}"},
                    {"type": "image_url", "image_url": image},
                ],
            },
        ]


def _text_in(answer: Any, address: Address) -> str:
    """Return the text of a chat completion. Raises DarkroomError where it has none."""
    try:
        content = answer["choices"][0]["message"]["content"]
        if isinstance(content, list):
            content = "".join(part.get("text", "") for part in content)
    except (KeyError, IndexError, TypeError, AttributeError):
        content = None
    if not isinstance(content, str):
        raise wrong_answer(address, f"did not answer as a chat completion: {quote(answer, max_chars=120)}")
    return content


def make_client(scorer: Scorer, patience: Patience, api_key: str) -> VisionModel:
    """Return the client of a vision language model.

    Raises DarkroomError for an invalid address, or if the key would travel to another computer unencrypted.
    """
    address = parse_address(scorer.address).under(_PATH)
    if api_key and not (address.is_local or address.is_encrypted):
        raise DarkroomError(
            f"Your API key would be sent to {address} unencrypted.",
            advice="Enter an address with https://, or remove the key under Tokens….",
        )
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    server = RewardServer(address, scorer.timeout_seconds, 60 * scorer.retry_minutes, patience, headers)
    return VisionModel(server, scorer.model_name, scorer.rubric, scorer.highest_score)
