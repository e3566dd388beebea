"""Checks the servers of reward models before a run: where images are sent, and whether a server answers."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Sequence

from modules.rewards.address import parse_address, require_approval
from modules.rewards.in_use import scorers_in_use
from modules.rewards.registry import REWARDS
from modules.rewards.settings import Scorer
from modules.rewards.waiting import Patience
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from modules.system.problem import Problem

_TEST_PX = 64
_TEST_PROMPT = "a test image"


def problems_of_servers(
    scorers: Sequence[Scorer],
    *,
    held_out_reward: str,
    approved_hashes: Collection[str],
    vision_model_key: str,
) -> Iterator[Problem]:
    """Yield unapproved addresses and servers that do not answer as errors, and where images are sent as infos.

    Each server gets a test image, once, but none whose address is not approved.
    """
    for scorer in scorers_in_use(scorers, held_out_reward).all:
        spec = REWARDS[scorer.kind]
        if not spec.client:
            continue
        where = f"reward.models.{scorers.index(scorer)}.address" if scorer in scorers else "training.method"
        try:
            address = parse_address(scorer.address)
            require_approval(address, approved_hashes)
            once = scorer.model_copy(update={"retry_minutes": 0.0})
            load_factory(spec.client)(once, Patience(), vision_model_key).scores([_test_png()], [_TEST_PROMPT])
        except DarkroomError as error:
            yield Problem(where, error.message, advice=error.advice)
            continue
        if not address.is_local:
            risk = "" if address.is_encrypted else " They are not encrypted on the way."
            yield Problem(where, f"The sampled images and their prompts are sent to {address}.{risk}", "info")


def _test_png() -> bytes:
    """Return a small image as PNG: a gradient, so that no measure of it is degenerate."""
    from PIL import Image  # the window starts without Pillow

    file = io.BytesIO()
    Image.linear_gradient("L").resize((_TEST_PX, _TEST_PX)).convert("RGB").save(file, format="PNG")
    return file.getvalue()
