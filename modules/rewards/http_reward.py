"""A reward server: a program that scores images and prompts, which are sent to it over HTTP. Record and code."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from modules.rewards.address import Address, parse_address
from modules.rewards.settings import Scorer
from modules.rewards.transport import RewardServer, wrong_answer
from modules.rewards.waiting import Patience
from modules.system.problem import count, quote


@dataclass(frozen=True, slots=True)
class HttpReward:
    """Sends a batch of images in one request: {"prompts": [text, ...], "images": [PNG in base64, ...]}.

    The server answers {"scores": [number or null, ...]}, one per image; null for an image without a score.
    """

    server: RewardServer

    def scores(self, pngs: Sequence[bytes], prompts: Sequence[str]) -> list[float]:
        """Return a score for each PNG file; NaN without one. Raises DarkroomError where the server gives none."""
        images = [base64.b64encode(png).decode("ascii") for png in pngs]
        answer = self.server.ask({"prompts": list(prompts), "images": images})
        return _scores_in(answer, len(pngs), self.server.address)


def _scores_in(answer: Any, num_images: int, address: Address) -> list[float]:
    """Return the scores of an answer. Raises DarkroomError where it does not have one finite number per image."""
    scores = answer.get("scores") if isinstance(answer, dict) else None
    if not isinstance(scores, list):
        raise wrong_answer(address, f'answered without a list "scores": {quote(answer, max_chars=120)}')
    if len(scores) != num_images:
        raise wrong_answer(address, f"sent {count(len(scores), 'score')} for {count(num_images, 'image')}")
    for score in scores:
        is_number = isinstance(score, int | float) and not isinstance(score, bool)
        if score is not None and not (is_number and abs(score) <= 1e30):  # also NaN; float32 ends at 3e38
            raise wrong_answer(address, f"sent a score that is not a finite number: {quote(score)}")
    return [math.nan if score is None else float(score) for score in scores]


def make_client(scorer: Scorer, patience: Patience, api_key: str) -> HttpReward:
    """Return the client of a reward server, which gets no key. Raises DarkroomError for an invalid address."""
    address = parse_address(scorer.address)
    return HttpReward(RewardServer(address, scorer.timeout_seconds, 60 * scorer.retry_minutes, patience))
