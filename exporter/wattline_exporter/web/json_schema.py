"""JSON schemas of the typed dictionaries of the contract, for the OpenAPI document."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

_TYPES = {str: "string", float: "number", int: "integer", bool: "boolean", NoneType: "null"}


def schema_name(kind: type) -> str:
    """Return the name of a typed dictionary in the document: `Run` of `RunJson`."""
    return kind.__name__.removesuffix("Json")


def typed_dict_schemas(kind: type, reference: str) -> dict[str, dict[str, Any]]:
    """Return the schemas of a typed dictionary and of those in it, by name.

    `reference` is the start of a reference to a schema. Raises TypeError for another type.
    """
    found: dict[str, dict[str, Any]] = {}
    left = [kind]
    while left:
        each = left.pop()
        hints = get_type_hints(each, include_extras=True)
        found[schema_name(each)] = {
            "type": "object",
            "title": schema_name(each),
            "properties": {
                name: _schema(_present(hint), reference) for name, hint in hints.items()
            },
            "required": [name for name, hint in hints.items() if _present(hint) is hint],
        }
        nested = [inner for hint in hints.values() for inner in _typed_dicts(hint)]
        left += [inner for inner in nested if schema_name(inner) not in found]
    return found


def _present(hint: Any) -> Any:
    """Return the type of a field that may be absent."""
    return get_args(hint)[0] if get_origin(hint) is NotRequired else hint


def _typed_dicts(hint: Any) -> list[type]:
    if is_typeddict(hint):
        return [hint]
    return [inner for argument in get_args(hint) for inner in _typed_dicts(argument)]


def _schema(hint: Any, reference: str) -> dict[str, Any]:
    if hint in _TYPES:
        return {"type": _TYPES[hint]}
    if is_typeddict(hint):
        return {"$ref": reference + schema_name(hint)}
    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin is Literal:
        return {"enum": list(arguments)}
    parts = [_schema(argument, reference) for argument in arguments]
    if origin in (UnionType, Union):
        return {"anyOf": parts}
    if origin is list:
        return {"type": "array", "items": parts[0]}
    if origin is dict:
        return {"type": "object", "additionalProperties": parts[1]}
    raise TypeError(f"no JSON schema of {hint}")
