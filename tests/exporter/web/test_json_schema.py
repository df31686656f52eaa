"""JSON schemas of typed dictionaries."""

from typing import Literal, NotRequired, TypedDict

import pytest

from wattline_exporter.web.json_schema import schema_name, typed_dict_schemas


class InnerJson(TypedDict):
    count: int


class OuterJson(TypedDict):
    name: str | None
    state: Literal["running", "ended"]
    parts: list[InnerJson]
    amounts: dict[str, dict[str, float]]
    more: NotRequired[bool]


class TextsJson(TypedDict):
    texts: set[str]


def test_json_schema_has_all_fields_and_the_nested_types():
    assert typed_dict_schemas(OuterJson, "#/schemas/") == {
        "Outer": {
            "type": "object",
            "title": "Outer",
            "properties": {
                "name": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "state": {"enum": ["running", "ended"]},
                "parts": {"type": "array", "items": {"$ref": "#/schemas/Inner"}},
                "amounts": {
                    "type": "object",
                    "additionalProperties": {
                        "type": "object",
                        "additionalProperties": {"type": "number"},
                    },
                },
                "more": {"type": "boolean"},
            },
            "required": ["name", "state", "parts", "amounts"],
        },
        "Inner": {
            "type": "object",
            "title": "Inner",
            "properties": {"count": {"type": "integer"}},
            "required": ["count"],
        },
    }
    assert schema_name(OuterJson) == "Outer"


def test_json_schema_of_a_type_without_json_is_an_error():
    with pytest.raises(TypeError, match="no JSON schema of set"):
        typed_dict_schemas(TextsJson, "")
