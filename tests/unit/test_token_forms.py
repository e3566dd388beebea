"""Tokens and passwords are recognised by their forms, and ordinary texts stay."""

from __future__ import annotations

import pytest

from modules.system.redaction import without_tokens

LONG = "AbCd1234" * 5
HEX = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"hf_{LONG}", LONG),
        (f"api_org_{LONG}", LONG),
        (f"sk-{LONG}", LONG),
        (f"sk-proj-{LONG}", LONG),
        (f"sk-ant-api03-{LONG}", LONG),
        *((f"gh{kind}_{LONG}", LONG) for kind in "pousr"),
        (f"github_pat_{LONG}_{LONG}", LONG),
        (f"glpat-{LONG}", LONG),
        (f"xoxb-1234-{LONG}", LONG),
        (f"AIza{LONG[:35]}", LONG[:35]),
        (f"npm_{LONG}", LONG),
        (f"pypi-{LONG}", LONG),
        (f"r8_{LONG}", LONG),
        (f"rpa_{LONG}", LONG),
        ("AKIAIOSFODNN7EXAMPLE", "IOSFODNN7EXAMPLE"),
        ("ASIAIOSFODNN7EXAMPLE", "IOSFODNN7EXAMPLE"),
        ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalrXUtnFEMI"),
        ('"AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG"', "wJalrXUtnFEMI"),
        ("AccountKey=wJalrXUtnFEMI/K7MDENG==;", "wJalrXUtnFEMI"),
        (f"Authorization: Bearer {LONG}", LONG),
        ("{'authorization': 'Bearer abc.def-123'}", "abc.def-123"),
        ("Authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        (r"{\"token\": \"abcdef123\"}", "abcdef123"),
        ("https://me:password1@host/x", "password1"),
        ("https://me:pass:with@more@host/x", "with"),
        (f"https://{LONG}@github.com/x", LONG),
        (f"https://civitai.com/api/download/models/1?type=Model&token={HEX}", HEX),
        ("https://x.s3.amazonaws.com/a?X-Amz-Signature=abcdef0123&X-Amz-Credential=EXAMPLE1%2F2026", "abcdef0123"),
        ("https://x.s3.amazonaws.com/a?X-Amz-Signature=abcdef0123&X-Amz-Credential=EXAMPLE1%2F2026", "EXAMPLE1"),
        ("https://cdn/x?Policy=eyJTdGF0ZW1&Signature=abc~def1&Key-Pair-Id=K2FPYV", "K2FPYV"),
        (f"WANDB_API_KEY={HEX}01234567", HEX),
        (f"wandb: logged in with the key {HEX}01234567", HEX),
        (f"civitai key {HEX}", HEX),
        (f"wandb_v1_{LONG}", LONG),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "c2lnbmF0dXJl"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1r\n-----END OPENSSH PRIVATE KEY-----", "b3BlbnNzaC1r"),
        ("machine host login alice password hunter22", "hunter22"),
        ("my_password: hunter22", "hunter22"),
    ],
)
def test_a_token_is_masked(text: str, secret: str) -> None:
    for whole in (text, f"before {text}", f'{{"note": "{text}"}}'):
        assert secret not in without_tokens(whole)
        assert "[secret]" in without_tokens(whole)


@pytest.mark.parametrize(
    "text",
    [
        "nothing",
        "a token is missing",
        '"keep_tokens_count": 1, "token_count": 123456789',
        '"tokenizer": "openai/clip-vit-large-patch14"',
        f"revision {HEX}01234567 of owner/model",
        "https://huggingface.co/owner/model/resolve/main/model.safetensors",
        "http://127.0.0.1:6006/",
        "sk-learn 1.2 and sk_image",
        "the password is short",
        '"huggingface_token": ""',
        "AKIA is a prefix",
        "mail me@example.org",
    ],
)
def test_an_ordinary_text_stays(text: str) -> None:
    assert without_tokens(text) == text
