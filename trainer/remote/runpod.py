"""RunPod's REST API, version 2 (docs.runpod.io/api-reference-v2)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any, get_args
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from modules.system.errors import DarkroomError
from modules.system.problem import shorten
from trainer.remote.providers import Offer, Pod, PodRequest, PodState, RefusedError, Stock

_SECONDS = 60
_MAX_BYTES = 8 << 20
_MAX_CHARS = 300
_MAX_LABEL_CHARS = 60
_SSH_PORT = 22
_SERVER_ERROR = 500


class RunPod:
    """The provider RunPod."""

    url = "https://api.runpod.io/v2"
    _STATES: Mapping[str, PodState] = {"RUNNING": "running", "EXITED": "stopped", "ERROR": "failed"}

    def __init__(self, token: str) -> None:
        self._token = token

    def offers(self) -> list[Offer]:
        """Return the NVIDIA cards of the provider's own data centres, the cheapest first."""
        match self._call("GET", "/catalog/gpus?include=AVAILABILITY&product=POD&cloud=SECURE"):
            case {"gpus": list(cards)}:
                offers = (_offer(card) for card in cards)
                return sorted((one for one in offers if one is not None), key=lambda o: (o.price_per_hour, o.label))
            case _:
                raise DarkroomError("RunPod answered with something that is not a list.", advice="Try it again later.")

    def find(self, name: str) -> Pod | None:
        """Return the machine of the account with a name, among its first thousand; None if there is none."""
        match self._call("GET", "/pods?limit=1000"):
            case {"pods": list(pods)} | list(pods):
                matches = (pod for pod in pods if isinstance(pod, dict) and pod.get("name") == name)
                return next(map(self._pod, matches), None)
            case _:
                raise DarkroomError("RunPod answered with something that is not a list.", advice="Try it again later.")

    def create(self, request: PodRequest) -> Pod:
        """Rent a machine in the provider's own data centres."""
        content = {
            "name": request.name,
            "image": request.image,
            "cloud": "SECURE",
            "gpu": {"id": request.card, "count": request.num_cards},
            "disk": request.disk_gb,
            "mounts": {"persistent": {"size": request.volume_gb, "path": request.volume_path}},
            "ports": [f"{_SSH_PORT}/tcp"],
            "env": {"PUBLIC_KEY": request.public_key},
        }
        return self._pod(self._call("POST", "/pods", content))

    def read(self, pod: str) -> Pod:
        """Return the state of a machine; its address is known once its container runs."""
        return self._pod(self._call("GET", f"/pods/{pod}"))

    def start(self, pod: str) -> None:
        """Start a stopped machine."""
        self._call("POST", f"/pods/{pod}/action", {"action": "start"})

    def stop(self, pod: str) -> None:
        """Stop a machine; its volume stays, and costs less."""
        self._call("POST", f"/pods/{pod}/action", {"action": "stop"})

    def delete(self, pod: str) -> None:
        """Delete a machine with all that is on it."""
        self._call("DELETE", f"/pods/{pod}")

    def _pod(self, answer: Any) -> Pod:
        match answer:
            case {"id": str(pod), **facts}:
                host, port = _ssh_address(facts)
                cost = facts.get("cost")
                price = float(cost) if isinstance(cost, int | float) else 0.0
                return Pod(pod, self._STATES.get(str(facts.get("status")), "starting"), host, port, price)
            case _:
                raise DarkroomError("RunPod answered with something that is not a pod.", advice="Try it again later.")

    def _call(self, method: str, path: str, content: object = None) -> Any:
        body = json.dumps(content).encode() if content is not None else None
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        headers["User-Agent"] = "Darkroom"
        request = Request(f"{self.url}{path}", body, headers, method=method)
        try:
            with build_opener(_NoRedirects).open(request, timeout=_SECONDS) as answer:
                text = answer.read(_MAX_BYTES)
            return json.loads(text) if text.strip() else None
        except HTTPError as error:
            message, advice = f"RunPod refused it: {_detail_of(error)}.", _advice_for(error.code)
            if error.code >= _SERVER_ERROR:  # a gateway may have given up before the work was done
                raise DarkroomError(message, advice=advice) from None
            raise RefusedError(message, advice=advice) from None
        except (URLError, OSError, HTTPException) as error:  # also an answer that is cut off
            reason = getattr(error, "reason", error)
            raise DarkroomError(f"RunPod cannot be reached: {reason}.", advice="Check the network.") from None
        except ValueError:
            raise DarkroomError("RunPod did not answer with JSON.", advice="Try it again later.") from None


def _offer(card: object) -> Offer | None:
    """Return a card of the catalogue; None if it cannot be rented, or has no NVIDIA driver."""
    match card:
        case {"id": str(name), "secure": True, "price": {"secure": int(price) | float(price)}, **facts}:
            if price <= 0 or facts.get("manufacturer", "NVIDIA") != "NVIDIA":
                return None
            memory = facts.get("memory")
            stock = str(facts.get("availability") or "").lower()
            return Offer(
                name,
                _line(str(facts.get("name") or name)),
                round(memory) if isinstance(memory, int | float) else 0,
                float(price),
                stock if stock in get_args(Stock) else "",  # type: ignore[arg-type]
            )
    return None


def _line(text: str) -> str:
    """Return a name of the provider as one line that can be shown."""
    return shorten("".join(c for c in text if c.isprintable()), max_chars=_MAX_LABEL_CHARS)


def _ssh_address(facts: Mapping[Any, Any]) -> tuple[str, int]:
    """Return the public address and port of the SSH server; empty ones before there are any."""
    match facts:
        case {"ssh": {"direct": {"host": str(host), "port": int(port)}}} if host:
            return host, port
        case {"runtime": {"ports": list(ports)}}:
            for port in ports:
                match port:
                    case {"private": int(private), "type": "tcp", "ip": str(ip), "public": int(public)}:
                        if private == _SSH_PORT and ip:
                            return ip, public
    return "", 0


class _NoRedirects(HTTPRedirectHandler):
    """Follows nothing: the token is for this host alone."""

    def redirect_request(self, *_arguments: Any) -> None:
        """Let a redirect be an error."""


def _detail_of(error: HTTPError) -> str:
    """Return the detail of an error (RFC 9457), as a part of a sentence."""
    try:
        answer = json.loads(error.read(_MAX_BYTES))
        text = str(answer.get("detail") or answer.get("title") or "")
    except (OSError, ValueError, AttributeError):
        text = ""
    return f"{shorten(text, max_chars=_MAX_CHARS).rstrip('.') or error.reason} (HTTP {error.code})"


def _advice_for(code: int) -> str:
    advice = {
        401: "Store a key of your account: secrets set cloud.api_key.",
        403: "The stored key may not do this. Give it more rights, or store another one: secrets set cloud.api_key.",
        402: "Add credit to your account.",
        404: "It may have been deleted. Remove the machine from the list, or rent another one.",
    }
    return advice.get(code, "No such machine may be free now: try it later, or with another card.")
