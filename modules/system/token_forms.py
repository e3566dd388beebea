"""Tokens and passwords by their form, for those that were never stored in Darkroom: masked in what leaves the machine.

A form that could be anything, such as 40 hexadecimal digits, counts as a token only after the name of its service or of
a secret.
"""

from __future__ import annotations

import re

from modules.system.redaction import MASK

_NAMES = (
    r"(?:\w*(?:api|access|secret|account|private|signing|encryption)[_-]?key(?:[_-]id)?|\w*(?:token|secret|passwd|"
    r"password|passphrase|pwd|credentials?|authorization|cookie|session[_-]?id)|(?:x-amz-)?(?:signature|credential)|sig|"
    r"key-pair-id|policy)"
)
_FORMS = (
    # services that mark their tokens
    r"\b(?:hf|api_org|gh[opsur]|github_pat|glpat|sk|pk|rk|gsk|r8|rpa|npm|nvapi|tskey|dop_v1|shpat|xai|wandb(?:_v\d+)?)"
    r"[_-][A-Za-z0-9_-]{16,}",
    r"\bxox[a-z]-[A-Za-z0-9-]{10,}",
    r"\bAIza[\w-]{30,}",
    r"\bpypi-[\w-]{16,}",
    r"\b(?:AKIA|ASIA|AROA|AIDA)[0-9A-Z]{12,}\b",
    r"\beyJ[\w-]{5,}\.[\w-]{5,}\.[\w-]*",  # JSON web tokens
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
)
_BARE = re.compile("|".join(_FORMS), re.DOTALL)
_IN_ADDRESS = re.compile(r"(?<=://)[^/\s\"'@]*:[^/\s\"']*@|(?<=://)[^/\s:@\"']{16,}@")
_SCHEME = re.compile(r"(?i)\b((?:bearer|basic|digest|negotiate)\s+)[A-Za-z0-9._~+/=-]{6,}")
_VALUE = r"(?!\[secret\])[^\s\\\"'&,;}\])]{6,}"
_AFTER_A_NAME = re.compile(rf"(?i)(?<![\w-])({_NAMES}[\\\"']*\s*[=:]\s*[\\\"']*)({_VALUE})")
_OF_A_SERVICE = re.compile(r"(?i)((?:wandb|civitai)[^\n]{0,120}?)\b[0-9a-f]{32,40}\b")
_NETRC = re.compile(r"(?i)(\bmachine\s+\S+\s+login\s+)\S+(\s+password\s+)\S+")


def without_tokens(text: str) -> str:
    """Return a text with "[secret]" in place of everything that has the form of a token or a password."""
    text = _NETRC.sub(rf"\1{MASK}\2{MASK}", text)
    text = _BARE.sub(MASK, text)
    text = _IN_ADDRESS.sub(f"{MASK}@", text)
    text = _SCHEME.sub(rf"\1{MASK}", text)
    text = _OF_A_SERVICE.sub(rf"\1{MASK}", text)
    return _AFTER_A_NAME.sub(_masked, text)


def _masked(found: re.Match[str]) -> str:
    value = found[2]
    is_scheme = value.lower() in ("bearer", "basic", "digest", "negotiate")
    return found[0] if is_scheme or not re.search(r"[^\W_]", value) else f"{found[1]}{MASK}"
