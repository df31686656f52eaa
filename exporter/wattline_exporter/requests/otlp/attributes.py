"""Attributes of OTLP spans and resources that the exporter reads."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from wattline.contract.api import HASH_DIGITS, MAX_LABEL_VALUE
from wattline_exporter.sensors.readings import printable

Value = str | int | float | bool
Values = dict[str, Value]

RUN_ID = "wattline.run_id"
POD_UID = "k8s.pod.uid"
CONTAINER_ID = "container.id"
HOST_NAME = "host.name"
PROCESS_IDS = ("process.pid", "vllm.process_id")
RESOURCE_KEYS = frozenset({RUN_ID, POD_UID, CONTAINER_ID, HOST_NAME, "service.name", *PROCESS_IDS})

MODEL = ("gen_ai.request.model", "gen_ai.response.model")
LABEL_SOURCES: Mapping[str, tuple[str, ...]] = {
    "user": (
        "user.id",
        "enduser.id",
        "llm.user",
        "metadata.user_api_key_end_user_id",
        "litellm.end_user.id",
        "litellm.metadata.user_api_key_end_user_id",
        "metadata.user_api_key_user_id",
        "litellm.metadata.user_api_key_user_id",
    ),
    "team": (
        "metadata.user_api_key_team_alias",
        "litellm.team.alias",
        "metadata.user_api_key_team_id",
        "litellm.team.id",
    ),
    "route": ("http.route", "metadata.user_api_key_request_route", "litellm.request.route"),
    "api_key": ("metadata.user_api_key_hash", "litellm.api_key.hash"),
    "operation": ("gen_ai.operation.name",),
    "provider": ("gen_ai.provider.name", "gen_ai.system"),
    "service": ("service.name",),
}
"""Attributes of each label, the first one that a span has counts. Those of LiteLLM start with
`metadata.`, with LITELLM_OTEL_V2 with `litellm.`."""
_SCALARS = frozenset({"string_value", "int_value", "double_value", "bool_value"})


def scalar(value: AnyValue) -> Value | None:
    """Return a text, a number or a bool; None for other values."""
    kind = value.WhichOneof("value")
    found: Value | None = getattr(value, kind) if kind in _SCALARS else None
    return found


def scalar_values(attributes: Mapping[str, AnyValue], wanted: Iterable[str]) -> Values:
    """Return the wanted attributes that are a text, a number or a bool."""
    found = ((key, scalar(attributes[key])) for key in wanted if key in attributes)
    return {key: value for key, value in found if value is not None}


@dataclass(frozen=True, slots=True)
class LabelRules:
    """Labels of a request, by name, and the attributes that each one is read from."""

    sources: Mapping[str, tuple[str, ...]]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(key for keys in self.sources.values() for key in keys))

    def labels(self, values: Mapping[str, str | None], resource: Values) -> dict[str, str]:
        """Return the labels that the attributes give; an API key as the start of its SHA-256
        hash.
        """
        found = {}
        for name, keys in self.sources.items():
            for key in keys:
                own = values.get(key)
                value = resource.get(key) if own is None else own
                if value is not None and value != "":
                    text = printable(str(value))
                    found[name] = _hashed(text) if name == "api_key" else text[:MAX_LABEL_VALUE]
                    break
        return found


def label_rules(names: Iterable[str]) -> LabelRules:
    """Return the rules for `model` and these names. The last source of a known name is an attribute
    of this name.
    """
    chosen = {
        name: (*known, name) if (known := LABEL_SOURCES.get(name)) else _unlisted_sources(name)
        for name in names
    }
    return LabelRules({"model": MODEL, **chosen})


def _unlisted_sources(name: str) -> tuple[str, ...]:
    """Return the attributes of a name without a rule: its own one, or those of LiteLLM."""
    return name, f"metadata.{name}", f"litellm.metadata.{name}"


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS]
