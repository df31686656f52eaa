"""Attributes of OTLP spans and resources that the exporter reads."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from exporter.contract.requests.served import MAX_LABEL_VALUE
from exporter.model import printable

Values = dict[str, str | int | float | bool]

RUN_ID, POD_UID, CONTAINER_ID, HOST_NAME = "wattline.run_id", "k8s.pod.uid", "container.id", "host.name"
PROCESS_IDS = ("process.pid", "vllm.process_id")
RESOURCE_KEYS = frozenset({RUN_ID, POD_UID, CONTAINER_ID, HOST_NAME, "service.name", *PROCESS_IDS})

MODEL = ("gen_ai.request.model", "gen_ai.response.model")
LABEL_SOURCES: Mapping[str, tuple[str, ...]] = {
    "user": (
        "user.id",
        "enduser.id",
        "llm.user",
        "metadata.user_api_key_end_user_id",
        "metadata.user_api_key_user_id",
    ),
    "team": ("metadata.user_api_key_team_alias", "metadata.user_api_key_team_id"),
    "route": ("http.route", "metadata.user_api_key_request_route"),
    "api_key": ("metadata.user_api_key_hash",),
    "operation": ("gen_ai.operation.name",),
    "provider": ("gen_ai.provider.name", "gen_ai.system"),
    "service": ("service.name",),
}
"""Attributes of each label, the first one that a span has counts. Those of LiteLLM start with `metadata.`."""
HASH_DIGITS = 16
_SCALARS = frozenset({"string_value", "int_value", "double_value", "bool_value"})


def scalar_values(attributes: Iterable[KeyValue], wanted: Collection[str]) -> Values:
    """Return the wanted attributes that are a text, a number or a bool."""
    found: Values = {}
    for attribute in attributes:
        key = attribute.key
        if key in wanted:
            value = attribute.value
            kind = value.WhichOneof("value")
            if kind in _SCALARS:
                found[key] = getattr(value, kind)
    return found


@dataclass(frozen=True, slots=True)
class LabelRules:
    """Labels of a request, by name, and the attributes that each one is read from."""

    sources: Mapping[str, tuple[str, ...]]

    @property
    def keys(self) -> frozenset[str]:
        return frozenset(key for keys in self.sources.values() for key in keys)

    def labels(self, values: Values, resource: Values) -> dict[str, str]:
        """Return the labels that the attributes give; an API key as the start of its SHA-256 hash."""
        found = {}
        for name, keys in self.sources.items():
            for key in keys:
                value = values.get(key, resource.get(key))
                if value is not None and value != "":
                    text = printable(str(value))
                    found[name] = _hashed(text) if name == "api_key" else text[:MAX_LABEL_VALUE]
                    break
        return found


def label_rules(names: Iterable[str]) -> LabelRules:
    """Return the rules for `model` and these names. A name without a rule is an attribute's, or LiteLLM's."""
    chosen = {name: LABEL_SOURCES.get(name, (name, f"metadata.{name}")) for name in names}
    return LabelRules({"model": MODEL, **chosen})


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS]
