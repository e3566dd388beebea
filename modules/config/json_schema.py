"""The config as a JSON Schema, so that any editor completes and checks a config as it is typed."""

from __future__ import annotations

from typing import Any

from modules.config.migrations.chain import NEWEST_DARKROOM
from modules.config.schema import Config

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a config of the newest version. Sparse files are valid, as they load.

    Labels and help texts are the titles and descriptions. A file may name the schema under "$schema".
    """
    schema = Config.model_json_schema(mode="validation")
    _loosen(schema)
    properties = {"$schema": {"type": "string"}, **schema["properties"]}
    return {
        "$schema": DIALECT,
        "title": f"Darkroom config, version {NEWEST_DARKROOM}",
        **{key: value for key, value in schema.items() if key not in ("title", "properties")},
        "properties": properties,
        "required": ["darkroom_version"],
    }


def _loosen(node: Any) -> None:
    """Allow sections with variants in every form that loads: without their name, or as a bare name.

    pydantic writes them as "oneOf", and an object without a name is often valid for several variants.
    """
    if isinstance(node, dict):
        if "discriminator" in node:
            names = list(node.pop("discriminator")["mapping"])
            node["anyOf"] = [*node.pop("oneOf"), {"enum": names}]
        for value in node.values():
            _loosen(value)
    elif isinstance(node, list):
        for value in node:
            _loosen(value)
