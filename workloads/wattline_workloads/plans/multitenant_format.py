"""Configuration files of an older multi-tenant benchmark: `single_model`, `tenants`.

`sleep_duration` is a pause before the run; `mps` may be a text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, NonNegativeFloat, model_validator

from wattline_workloads.plans.model import PlanEntry, Tenant, WorkloadPlan

JOB = "llm-forward"
_OPTIONS = {
    "model_name": "model",
    "batch_size": "batch-size",
    "seq_len": "seq-len",
    "num_iters": "iterations",
    "num_warmup": "warmup",
    "device": "device",
}
Count = Annotated[int, Field(ge=1)]


def _is_on(mps: bool | str) -> tuple[bool, str | None]:
    """Return the flag and a note on an ambiguous text. Raises ValueError."""
    if isinstance(mps, bool):
        return mps, None
    words = [word.strip().lower() for word in mps.split("/")]
    if not words or set(words) - {"true", "false"}:
        raise ValueError(f"{mps!r} is not a flag; give true or false")
    note = f"mps: {mps!r} is read as true; give true or false" if len(set(words)) > 1 else None
    return words[0] == "true" or note is not None, note


def _readable(mps: bool | str) -> bool | str:
    _is_on(mps)
    return mps


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())


class MultitenantModel(_Part):
    model_name: str
    name: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    batch_size: Count = 8
    seq_len: Count = 128
    num_iters: Count = 200
    num_warmup: Annotated[int, Field(ge=0)] = 10
    device: str | None = None
    tag: Annotated[str, Field(max_length=128)] | None = None


class MultitenantFile(_Part):
    experiment_name: Annotated[str, Field(min_length=1, max_length=128)]
    mps: Annotated[bool | str, AfterValidator(_readable)] = False
    sleep_duration: NonNegativeFloat = 0.0
    device: str | None = None
    single_model: MultitenantModel | None = None
    tenants: Annotated[list[MultitenantModel], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _is_one_of_two(self) -> MultitenantFile:
        if (self.single_model is None) == (self.tenants is None):
            raise ValueError("give one of single_model and tenants")
        return self


MODELS: Mapping[str, type[BaseModel]] = {
    "": MultitenantFile,
    "tenants": MultitenantModel,
    "single_model": MultitenantModel,
}


def is_multitenant_file(document: Mapping[str, Any]) -> bool:
    return "runs" not in document and bool({"single_model", "experiment_name"} & document.keys())


def convert_multitenant(document: Mapping[str, Any]) -> tuple[WorkloadPlan, tuple[str, ...]]:
    """Return the equivalent plan, and notes for the user. Raises ValidationError and ValueError."""
    file = MultitenantFile.model_validate(document)
    mps, note = _is_on(file.mps)
    if file.single_model is not None:
        options = _options(file.single_model, file.device)
        labels = {"tag": file.single_model.tag} if file.single_model.tag else {}
        entry = PlanEntry(name=file.single_model.name, job=JOB, options=options, labels=labels)
    else:
        tenants = [
            Tenant(name=each.name or each.model_name, job=JOB, options=_options(each, file.device))
            for each in file.tenants or ()
        ]
        entry = PlanEntry(tenants=tenants, mps=mps)
    plan = WorkloadPlan(
        name=file.experiment_name, runs=[entry], pause_seconds=file.sleep_duration, mps=mps
    )
    return plan, (note,) if note else ()


def original_path(path: Sequence[str | int]) -> tuple[str | int, ...]:
    """Translate a location in the plan to the location in the configuration file."""
    names = {option: key for key, option in _OPTIONS.items()}
    rest = [names.get(str(part), part) for part in path[2:] if part not in {"options", "job"}]
    return tuple(rest) if rest[:1] == ["tenants"] else ("single_model", *rest)


def _options(model: MultitenantModel, device: str | None) -> dict[str, Any]:
    values = model.model_dump(exclude_none=True, include=set(_OPTIONS))
    if device is not None:
        values.setdefault("device", device)
    return {_OPTIONS[key]: value for key, value in values.items()}
