"""Rewards from servers: addresses, what is sent, answers that are wrong, retries, and the scores of chat models."""

from __future__ import annotations

import base64
import io
import json
import math
import queue
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from PIL import Image

from modules.rewards.address import parse_address, require_approval
from modules.rewards.composite import build_rewards
from modules.rewards.http_reward import make_client as make_http
from modules.rewards.protocol import RewardContext
from modules.rewards.servers import problems_of_servers
from modules.rewards.settings import Scorer
from modules.rewards.transport import RewardServer, StatusError, UnavailableError
from modules.rewards.vision_model import make_client as make_vision_model
from modules.rewards.vision_model import score_in
from modules.rewards.waiting import Patience
from modules.system.devices import CPU
from modules.system.errors import DarkroomError
from modules.system.problem import Problem
from tests.builders.ports import kept_port
from tests.builders.reward_servers import Reply, TestServer, serving

KEY = "sk-0123456789abcdef"
PNGS, PROMPTS = [b"one", b"two"], ["a cat", "a dog"]
GOOD = Reply({"scores": [0.5, None]})


class Waits:
    """Waits without time: it counts tenths of a second, and can do something at one of them."""

    def __init__(self, at: int = -1, do: Any = None) -> None:
        self.slices = 0
        self.warnings: list[str] = []
        self._at, self._do = at, do

    def sleep(self, seconds: float) -> None:
        self.slices += 1
        if self.slices == self._at:
            self._do()

    @property
    def patience(self) -> Patience:
        return Patience(sleep=self.sleep, warn=lambda message, advice: self.warnings.append(message))


def scorer_for(server: TestServer, **settings: Any) -> Scorer:
    return Scorer.model_validate({"kind": "reward_server", "address": server.address, "retry_minutes": 0.0, **settings})


# ---- addresses


@pytest.mark.parametrize(
    ("text", "shown", "is_local"),
    [
        ("http://localhost:8000/score", "http://localhost:8000/score", True),
        (" HTTP://127.0.0.1/ ", "http://127.0.0.1/", True),
        ("http://127.8.9.1:80", "http://127.8.9.1/", True),
        ("https://[::1]:8443/a b".replace(" ", "%20"), "https://[::1]:8443/a%20b", True),
        ("http://192.168.1.7:9000/", "http://192.168.1.7:9000/", False),
        ("http://0.0.0.0:9000/", "http://0.0.0.0:9000/", False),
        ("http://localhost.example.com/", "http://localhost.example.com/", False),
        ("http://127.0.0.1.example.com/", "http://127.0.0.1.example.com/", False),
        ("http://2130706433/", "http://2130706433/", False),
        ("https://bücher.example/x?v=1#part", "https://xn--bcher-kva.example/x?v=1", False),
    ],
)
def test_an_address_is_read_and_known_to_be_local_or_not(text: str, shown: str, is_local: bool) -> None:
    address = parse_address(text)
    assert (str(address), address.is_local) == (shown, is_local)
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        *("", "127.0.0.1:8000", "localhost:8000/score", "ftp://a/b", "http://", "http://a:99999/", "http://a:0/"),
        *("http://[::1/", "http://a/b c", "http://a/\r\nHost: b", "file:///etc/passwd", "http://" + "a" * 70 + ".b/"),
    ],
)
def test_what_is_not_an_address_is_refused(text: str) -> None:
    with pytest.raises(DarkroomError, match=r"example http://127\.0\.0\.1:8765/score"):
        parse_address(text)


def test_a_password_in_an_address_is_refused_and_not_quoted() -> None:
    with pytest.raises(DarkroomError, match="contains a user name or a password") as caught:
        parse_address("https://me:hunter2@example.com/")
    assert "hunter2" not in str(caught.value)


def test_an_address_elsewhere_needs_its_own_approval() -> None:
    local, other = parse_address("http://127.0.0.1/"), parse_address("https://example.com/a")
    require_approval(local, ())
    with pytest.raises(DarkroomError, match=r"sent to https://example\.com/a, which is not approved") as caught:
        require_approval(other, ())
    assert "--allow-address https://example.com/a" in caught.value.advice
    require_approval(other, {other.digest})
    for text in ("http://example.com/a", "https://example.com/b", "https://example.com:444/a", "https://example.org/a"):
        with pytest.raises(DarkroomError):
            require_approval(parse_address(text), {other.digest})


# ---- the reward server


def test_a_batch_is_one_request_and_returns_one_score_per_image() -> None:
    images = torch.stack([torch.full((3, 8, 12), level) for level in (0.0, 1.0)])
    with serving(GOOD) as server:
        [model] = build_rewards([scorer_for(server)], RewardContext(CPU)).reward_models
        scores = model.reward(images, PROMPTS)
    assert not model.reward.is_differentiable
    assert scores[0] == 0.5
    assert scores[1].isnan()
    [message] = server.received
    assert message["prompts"] == PROMPTS
    files = [Image.open(io.BytesIO(base64.b64decode(text))) for text in message["images"]]
    assert [(f.format, f.size, f.getpixel((0, 0))) for f in files] == [
        ("PNG", (12, 8), (0, 0, 0)),
        ("PNG", (12, 8), (255, 255, 255)),
    ]
    assert "Authorization" not in server.headers[0]


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply(b"<html>hello</html>"), "did not send JSON but '<html>hello</html>'"),
        (Reply(b""), "did not send JSON but nothing"),
        (Reply(b"[" * 100_000), "did not send JSON"),
        (Reply(b"\xff\xfe"), "did not send JSON"),
        (Reply({"score": [1, 2]}), 'answered without a list "scores"'),
        (Reply([1.0, 2.0]), 'answered without a list "scores"'),
        (Reply({"scores": [1.0]}), "sent 1 score for 2 images"),
        (Reply({"scores": [1.0, 2.0, 3.0]}), "sent 3 scores for 2 images"),
        (Reply(b'{"scores": [1.0, NaN]}'), "not a finite number: nan"),
        (Reply(b'{"scores": [1.0, -Infinity]}'), "not a finite number: -inf"),
        (Reply(b'{"scores": [1.0, 1e39]}'), "not a finite number"),
        (Reply({"scores": [1.0, "2"]}), "not a finite number: '2'"),
        (Reply({"scores": [1.0, True]}), "not a finite number: true"),
        (Reply(b" " * 1_000_001), "sent more than 1 MB"),
        (
            Reply(status=307, headers={"Location": "http://127.0.0.1:9/"}),
            r"307 \(Temporary Redirect\), a redirect, which",
        ),
        (Reply({"error": "no such path"}, 404), r"404 \(Not Found\): .*no such path"),
        (Reply(status=418), "status 418"),
    ],
)
def test_wrong_answers_are_errors_at_once(reply: Reply, words: str) -> None:
    waits = Waits()
    with serving(reply) as server:
        client = make_http(scorer_for(server, retry_minutes=5.0), waits.patience, KEY)
        with pytest.raises(DarkroomError, match=words) as caught:
            client.scores(PNGS, PROMPTS)
    assert f"The reward server {server.address} " in caught.value.message
    assert caught.value.advice
    assert len(server.received) == 1
    assert not waits.slices
    assert KEY not in json.dumps([server.received, server.headers])


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply({"error": "no memory"}, 500), r"500 \(Internal Server Error\): .*no memory"),
        (Reply(status=503), r"503 \(Service Unavailable\)\."),
        (Reply(b'{"scores"', cuts=True), "did not answer: it closed the connection"),
        (Reply(hangs=True), r"did not answer within 0\.2 seconds"),
    ],
)
def test_a_server_without_an_answer_is_named(reply: Reply, words: str) -> None:
    limit = {"timeout_seconds": 0.2} if reply.hangs else {}
    with serving(reply) as server, pytest.raises(UnavailableError, match=words):
        make_http(scorer_for(server, **limit), Patience(), "").scores(PNGS, PROMPTS)


def test_a_server_that_stalls_within_its_answer_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asking = queue.SimpleQueue[threading.Thread]()
    exchange = RewardServer._exchange

    def noted(*given: Any) -> Any:
        asking.put(threading.current_thread())
        return exchange(*given)

    monkeypatch.setattr(RewardServer, "_exchange", noted)
    with serving(Reply(b'{"scores"', stalls=True)) as server:
        with pytest.raises(UnavailableError, match=r"did not answer within 0\.2 seconds"):
            make_http(scorer_for(server, timeout_seconds=0.2), Patience(), "").scores(PNGS, PROMPTS)
        thread = asking.get(timeout=120)  # on a busy machine it may begin later than that
        thread.join(120)
        assert not thread.is_alive()


def test_a_server_that_is_not_running_or_not_known_is_named() -> None:
    with kept_port() as port:
        for address, words in (
            (f"http://127.0.0.1:{port}/", "is not running"),
            ("http://[::1]:1/", "is not running|did not answer"),
            (f"https://127.0.0.1:{port}/", "is not running"),
        ):
            with pytest.raises(UnavailableError, match=words):
                make_http(Scorer(kind="reward_server", address=address, retry_minutes=0.0), Patience(), "").scores(
                    PNGS, PROMPTS
                )


def test_a_plain_server_behind_an_encrypted_address_is_an_error() -> None:
    with serving(GOOD) as server:
        address = server.address.replace("http:", "https:")
        client = make_http(Scorer(kind="reward_server", address=address), Patience(), "")
        with pytest.raises(DarkroomError, match="cannot be reached securely"):
            client.scores(PNGS, PROMPTS)


def test_a_server_that_comes_back_is_waited_for_with_growing_delays() -> None:
    waits, fails = Waits(), Reply(status=503)
    with serving(fails, fails, fails, GOOD) as server:
        client = make_http(scorer_for(server, retry_minutes=1.0), waits.patience, "")
        assert client.scores(PNGS, PROMPTS)[0] == 0.5
    assert waits.slices == 10 + 20 + 40
    assert len(server.received) == 4
    assert ["503" in waits.warnings[0], "answers again" in waits.warnings[1]] == [True, True]
    assert len(waits.warnings) == 2


def test_the_wait_ends_after_the_set_time() -> None:
    waits = Waits()
    with serving(Reply(status=503)) as server:
        client = make_http(scorer_for(server, retry_minutes=1.0), waits.patience, "")
        with pytest.raises(UnavailableError, match="503"):
            client.scores(PNGS, PROMPTS)
    assert waits.slices == 10 * (1 + 2 + 4 + 8 + 15 + 15 + 15)
    assert len(server.received) == 8


class Stopped(Exception):  # noqa: N818
    """A stop of the run."""


def test_a_stop_takes_effect_in_a_wait_and_in_a_request() -> None:
    def stop() -> None:
        raise Stopped

    with serving(Reply(status=503), Reply(hangs=True)) as server:
        for num_requests in (1, 2):
            client = make_http(scorer_for(server, retry_minutes=1.0), Patience(stop, lambda seconds: None), "")
            with pytest.raises(Stopped):
                client.scores(PNGS, PROMPTS)
            assert len(server.received) <= num_requests


# ---- vision language models


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ('{"reason": "fine", "score": 7}', 7.0),
        ('{"score": 7.25}', 7.25),
        ('```json\n{"reason": "2 cats, 10/10", "score": 3}\n```', 3.0),
        ('<think>maybe {"score": 1}</think>\nHere: {"reason": "ok", "score": 8}', 8.0),
        ("<think>score: 5", None),
        ('{"reason": "cut off', None),
        ("{'score': '6'}", 6.0),
        ("Score: 4", 4.0),
        ("**Score:** 4.5 of 10", 4.5),
        ("The score is 9.", 9.0),
        ("I give it 6/10.", 6.0),
        ("I give it 6,5 out of 10", 6.5),
        ("8", 8.0),
        ("2 cats and 3 dogs", None),
        ("I cannot see an image.", None),
        ("11", None),
        ("-3", None),
        ('{"score": 1e400}', None),
        ('{"score": NaN}', None),
        ('{"score": null}', None),
        ('{"score": true}', None),
        ("90%", None),
        ("", None),
    ],
)
def test_scores_are_found_in_texts(text: str, score: float | None) -> None:
    found = score_in(text, 10.0)
    assert math.isnan(found) if score is None else found == score


def completion(text: Any) -> Reply:
    return Reply({"choices": [{"message": {"role": "assistant", "content": text}}]})


def vision_scorer(server: TestServer, **settings: Any) -> Scorer:
    base = server.address.replace("/score", "/v1/")
    return scorer_for(server, kind="vision_model", address=base, model_name="eyes-8b", rubric="Like cats.", **settings)


def test_a_model_scores_each_image_by_the_rubric() -> None:
    with serving(completion('{"reason": "a cat", "score": 4}'), completion([{"type": "text", "text": "2"}])) as server:
        client = make_vision_model(vision_scorer(server, highest_score=5.0), Patience(), KEY)
        assert client.scores(PNGS, PROMPTS) == [4.0, 2.0]
        assert KEY not in repr(client)
    first, second = server.received
    assert [h["path"] for h in server.headers] == ["/v1/chat/completions"] * 2
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert (first["model"], first["temperature"], first["response_format"]["type"]) == ("eyes-8b", 0, "json_schema")
    system, user = first["messages"]
    assert system["content"].startswith("Like cats.")
    assert "number from 0 to 5" in system["content"]
    text, image = user["content"]
    assert "a cat" in text["text"]
    assert image["image_url"]["url"] == f"data:image/png;base64,{base64.b64encode(b'one').decode()}"
    assert "a dog" in second["messages"][1]["content"][0]["text"]


def test_a_server_without_structured_answers_is_asked_plainly_from_then_on() -> None:
    with serving(Reply({"error": "response_format"}, 400), completion("Score: 3")) as server:
        client = make_vision_model(vision_scorer(server), Patience(), "")
        assert client.scores(PNGS, PROMPTS) == [3.0, 3.0]
    assert ["response_format" in m for m in server.received] == [True, False, False]
    with serving(Reply({"error": "no such model"}, 400)) as server:
        client = make_vision_model(vision_scorer(server), Patience(), "")
        with pytest.raises(StatusError, match="no such model"):
            client.scores(PNGS, PROMPTS)


def test_an_answer_without_a_score_is_left_out_and_reported_once() -> None:
    waits = Waits()
    with serving(completion("I cannot tell.")) as server:
        client = make_vision_model(vision_scorer(server), waits.patience, "")
        assert all(math.isnan(score) for score in client.scores(PNGS, PROMPTS) + client.scores(PNGS, PROMPTS))
    [warning] = waits.warnings
    assert "eyes-8b gave no score from 0 to 10: 'I cannot tell.'" in warning
    for reply in (Reply({"choices": []}), Reply([]), completion(None), completion([1])):
        with serving(reply) as server, pytest.raises(DarkroomError, match="did not answer as a chat completion"):
            make_vision_model(vision_scorer(server), Patience(), "").scores(PNGS, PROMPTS)


def test_a_key_is_never_sent_unencrypted_to_another_computer() -> None:
    scorer = Scorer(kind="vision_model", address="http://example.com/v1", model_name="eyes-8b")
    with pytest.raises(DarkroomError, match=r"would be sent to http://example\.com/v1/chat/completions unencrypted"):
        make_vision_model(scorer, Patience(), KEY)
    make_vision_model(scorer, Patience(), "")
    azure = scorer.model_copy(update={"address": "https://example.com/v1?api-version=1"})
    assert make_vision_model(azure, Patience(), KEY).server.address.path == "/v1/chat/completions?api-version=1"


def test_a_wrong_key_is_reported_with_the_place_to_enter_it() -> None:
    with serving(Reply({"error": "invalid key"}, 401)) as server:
        client = make_vision_model(vision_scorer(server), Patience(), KEY)
        with pytest.raises(StatusError, match="invalid key") as caught:
            client.scores(PNGS, PROMPTS)
    assert "Tokens…" in caught.value.advice
    assert KEY not in str(caught.value)


# ---- before the start


def problems_of(scorers: Sequence[Scorer], approved: Sequence[str] = ()) -> list[Problem]:
    options: dict[str, Any] = {"held_out_reward": "none", "vision_model_key": ""}
    return list(problems_of_servers(scorers, approved_hashes=approved, **options))


def test_each_server_gets_a_test_image_before_the_start() -> None:
    with serving(Reply({"scores": [0.5]})) as server:
        assert problems_of([Scorer(kind="brightness"), scorer_for(server)]) == []
        [message] = server.received
        assert message["prompts"] == ["a test image"]
        assert Image.open(io.BytesIO(base64.b64decode(message["images"][0]))).size == (64, 64)
    with serving(Reply({"scores": []})) as server:
        [problem] = problems_of([Scorer(kind="brightness"), scorer_for(server, retry_minutes=5.0)])
    assert (problem.path, problem.severity) == ("reward.models.1.address", "error")
    assert "sent 0 scores for 1 image" in problem.message
    [problem] = problems_of([scorer_for(server, retry_minutes=5.0)])  # it has ended: reported at once
    assert "is not running" in problem.message


def test_nothing_is_sent_to_an_address_that_is_not_approved(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ask(self: Any, message: Any) -> Any:
        asked.append(str(self.address))
        return {"scores": [1.0]}

    monkeypatch.setattr("modules.rewards.transport.RewardServer.ask", ask)
    scorer = Scorer(kind="reward_server", address="http://example.com/score")
    [problem] = problems_of([scorer])
    assert (problem.path, problem.severity) == ("reward.models.0.address", "error")
    assert "not approved" in problem.message
    with pytest.raises(DarkroomError, match="not approved"):
        build_rewards([scorer], RewardContext(CPU))
    assert asked == []
    approved = parse_address(scorer.address).digest
    [note] = problems_of([scorer], [approved])
    assert (note.severity, asked) == ("info", ["http://example.com/score"])
    assert "not encrypted" in note.message
    build_rewards([scorer], RewardContext(CPU, approved_hashes=frozenset({approved})))
