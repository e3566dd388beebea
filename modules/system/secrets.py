"""Tokens and passwords: a separate file, readable by its owner alone, and never part of a config.

The file has the format of OneTrainer's `secrets.json`, so that both programs can read it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from modules.system.redaction import keep_secret

_MIN_CHARS = 3
_WEB_TOKEN = re.compile(r"[A-Za-z0-9_-]{16,128}")
_COMMON = ("root", "localhost", "true", "false", "none")


class _HiddenText:
    """A dataclass whose repr shows only which values are set, never the values."""

    __slots__ = ()

    def __repr__(self) -> str:
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.repr}  # type: ignore[arg-type]
        parts = [f"{n}={v!r}" if isinstance(v, _HiddenText) else f"{n} set" for n, v in values.items() if v]
        return f"{type(self).__name__}({', '.join(parts)})"


@dataclass(frozen=True, slots=True, repr=False)
class CloudSecrets(_HiddenText):
    """The access to a rented machine, or one of the user's. An empty text means that the value is not set."""

    api_key: str = ""
    id: str = ""
    host: str = ""
    port: str = ""
    user: str = ""
    key_file: str = ""
    password: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Secrets(_HiddenText):
    """All secrets. `others` are unknown entries of the file, kept as they are."""

    huggingface_token: str = ""
    cloud: CloudSecrets = CloudSecrets()
    others: Mapping[str, Any] = field(default_factory=dict, repr=False)
    vision_model_api_key: str = ""
    web_token: str = ""


@dataclass(frozen=True, slots=True)
class SecretField:
    """One value: its name in the file, its label, and whether it grants access by itself.

    A value that does not (a host, a user) is stored with the rest, but is shown in its entry and stays readable in
    logs: redacting a user name would garble every path of their home folder. One without `is_used` is kept for
    OneTrainer, which has the file's format.
    """

    name: str
    label: str
    is_key: bool = False
    is_used: bool = False


SECRET_FIELDS: tuple[SecretField, ...] = (
    SecretField("huggingface_token", "Hugging Face token", is_key=True, is_used=True),
    SecretField("vision_model_api_key", "Key for vision language models", is_key=True, is_used=True),
    SecretField("cloud.api_key", "RunPod API key", is_key=True, is_used=True),
    SecretField("cloud.id", "Cloud machine's id"),
    SecretField("cloud.host", "Cloud host"),
    SecretField("cloud.port", "Cloud port"),
    SecretField("cloud.user", "Cloud user"),
    SecretField("cloud.key_file", "Cloud key file"),
    SecretField("cloud.password", "Cloud password", is_key=True),
    SecretField("web_token", "Token of the page in the browser", is_key=True, is_used=True),
)
SECRET_NAMES = tuple(f.name for f in SECRET_FIELDS)
WHERE_TO_ENTER = "Tokens… in the presets menu, or python -m trainer secrets set NAME"


def secret(secrets: Secrets, name: str) -> str:
    """Return the value of a name of `SECRET_NAMES`; empty where it is not set."""
    section, _, key = name.rpartition(".")
    value: str = getattr(secrets.cloud if section else secrets, key)
    return value


def with_secret(secrets: Secrets, name: str, value: str) -> Secrets:
    """Return the secrets with one value changed, surrounding whitespace removed; an empty value removes it."""
    section, _, key = name.rpartition(".")
    change: dict[str, Any] = {key: value.strip()}
    return replace(secrets, cloud=replace(secrets.cloud, **change)) if section else replace(secrets, **change)


def secret_error(name: str, value: str) -> str:
    """Return an error message for a value, without quoting it; empty if the value is valid."""
    value = value.strip()
    if name == "huggingface_token" and not all("!" <= c <= "~" for c in value):
        return "A Hugging Face token contains only letters, digits and punctuation, no spaces. Copy it again."
    if name == "vision_model_api_key" and not all("!" <= c <= "~" for c in value):
        return "An API key contains only letters, digits and punctuation, no spaces. Copy it again."
    if name == "cloud.port" and value and not (value.isascii() and value.isdigit() and 0 < int(value[:6]) <= 65535):
        return "A port is a number from 1 to 65535."
    if name == "web_token" and value and not _WEB_TOKEN.fullmatch(value):
        return "The page's token has 16 to 128 letters, digits, hyphens and underscores."
    return ""


def guard(secrets: Secrets, environment: Mapping[str, str] = os.environ) -> None:
    """Redact the values that grant access from all logs and events, the environment's token included."""
    keep_secret(*(secret(secrets, f.name) for f in SECRET_FIELDS if f.is_key))
    keep_secret(*(environment.get(name, "") for name in _ENVIRONMENT_TOKENS))


def from_json(data: Mapping[str, Any]) -> tuple[Secrets, list[str]]:
    """Return the secrets in a file's data, and the names of secrets with an invalid value, which are left out."""
    secrets, odd = Secrets(), []
    for name in SECRET_NAMES:
        match _at(data, name):
            case None | "" | 0 | False:
                continue
            case str() | int() as value if not secret_error(name, str(value)):
                secrets = with_secret(secrets, name, str(value))
            case _:
                odd.append(name)
    return replace(secrets, others=_others(data)), odd


def to_json(secrets: Secrets) -> dict[str, Any]:
    """Return the secrets as the file stores them: only the ones that are set, and unknown entries unchanged."""
    tree: dict[str, Any] = {k: dict(v) if k == "cloud" else v for k, v in secrets.others.items()}
    for name in SECRET_NAMES:
        if value := secret(secrets, name):
            section, _, key = name.rpartition(".")
            (tree.setdefault(section, {}) if section else tree)[key] = value
    return tree


def _at(data: Mapping[str, Any], name: str) -> Any:
    section, _, key = name.rpartition(".")
    inner = data.get(section) if section else data
    return inner.get(key) if isinstance(inner, Mapping) else None


def _others(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the unknown entries, without a "cloud" that is not an object."""
    others = {k: v for k, v in data.items() if k not in (*SECRET_NAMES, "cloud")}
    cloud = data.get("cloud")
    if isinstance(cloud, Mapping) and (rest := {k: v for k, v in cloud.items() if f"cloud.{k}" not in SECRET_NAMES}):
        others["cloud"] = rest
    return others


def stored_values(secrets: Secrets) -> tuple[str, ...]:
    """Return every text of the file, unknown entries included, for what leaves the machine.

    Numbers such as a port are left out, and what is too short or too common to tell a secret from a word.
    """
    texts: list[str] = []
    open_nodes: list[Any] = [to_json(secrets)]
    while open_nodes:
        node = open_nodes.pop()
        if isinstance(node, Mapping):
            open_nodes += node.values()
        elif isinstance(node, list | tuple):
            open_nodes += node
        elif isinstance(node, str):
            texts.append(node.strip())
    return tuple(v for v in dict.fromkeys(texts) if len(v) >= _MIN_CHARS and not v.isdigit() and v not in _COMMON)


# -- the token passed to huggingface_hub

HubSource = Literal["environment", "store", "login"]
_ENVIRONMENT_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")  # in the order of huggingface_hub's get_token
_ENVIRONMENT_WAYS = ("HF_OIDC_RESOURCE", *_ENVIRONMENT_TOKENS)


@dataclass(frozen=True, slots=True)
class HubAccess:
    """The token to pass to huggingface_hub; None where it finds one itself, in the environment or in its login."""

    token: str | None = field(default=None, repr=False)
    source: HubSource = "login"

    @property
    def description(self) -> str:
        """The token's source, as part of a sentence."""
        descriptions: Mapping[HubSource, str] = {
            "environment": "the token in the environment (HF_TOKEN)",
            "store": "the token stored in Darkroom",
            "login": "the login that Hugging Face's own tools have stored, if there is one",
        }
        return descriptions[self.source]


def hub_access(secrets: Secrets, environment: Mapping[str, str] = os.environ) -> HubAccess:
    """Return the token for Hugging Face: the environment's first, as in huggingface_hub itself, then the stored one,
    then the login of `hf auth login`.
    """
    if any(environment.get(name, "").strip() for name in _ENVIRONMENT_WAYS):
        return HubAccess(None, "environment")
    if secrets.huggingface_token:
        return HubAccess(secrets.huggingface_token, "store")
    return HubAccess()


def set_names(secrets: Secrets) -> Iterator[str]:
    """Yield the names of the values that are set."""
    return (name for name in SECRET_NAMES if secret(secrets, name))
