"""vLLM's plugin: it reports each request that the server has finished.

vLLM finds it by its entry point in the group `vllm.stat_logger_plugins`, if both are installed in
one environment.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

from wattline.client.messages import log_message_once
from wattline.contract.requests.served import CLIENT_RUN_LABEL, client_run_of
from wattline.integrations.served_requests import Served, ServedRequests

_reporters: list[ServedRequests] = []
"""Reporter of this process; vLLM creates one logger for each of its engines."""


class RequestLogger(StatLoggerBase):  # type: ignore[misc]  # vLLM is not installed where types are checked
    """Logger of finished requests. An error is logged once, and never reaches the server."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self._labels: dict[str, str] = {}
        try:
            self._labels = {"model": _model_name(vllm_config)}
            if engine_index:
                self._labels["engine"] = str(engine_index)
            if not _reporters:
                _reporters.append(ServedRequests("vLLM"))
        except Exception as error:  # noqa: BLE001  # a new version of vLLM must start nevertheless
            _log_error(error)

    def log_engine_initialized(self) -> None:
        """Start to look for the run: the engine is on its GPUs now."""
        if _reporters:
            _reporters[0].start()

    def record(
        self,
        scheduler_stats: Any = None,
        iteration_stats: Any = None,
        *_: Any,
        **__: Any,
    ) -> None:
        """Report the requests that one step of the engine has finished."""
        try:
            if iteration_stats is not None and iteration_stats.finished_requests and _reporters:
                for served in finished(iteration_stats, self._labels):
                    _reporters[0].add(served)
        except Exception as error:  # noqa: BLE001  # a new version of vLLM must serve nevertheless
            _log_error(error)


def finished(iteration_stats: Any, labels: dict[str, str]) -> Iterator[Served]:
    """Yield the finished requests of vLLM's `IterationStats`.

    The end is when vLLM received the step's outputs; the arrival is its end-to-end latency earlier,
    and the first token the time of the decode phase earlier. Choices (`n` above 1) are separate
    requests with the same id in vLLM.
    """
    ended_at = iteration_stats.iteration_timestamp
    ids: dict[str, int] = {}
    for request in iteration_stats.finished_requests:
        request_id = getattr(request, "request_id", None)  # vLLM before 0.12 has none
        if request_id is not None:
            ids[request_id] = ids.get(request_id, 0) + 1
            request_id = request_id if ids[request_id] == 1 else f"{request_id}#{ids[request_id]}"
        client = client_run_of(request_id or "")
        has_token = request.num_generation_tokens > 0
        yield Served(
            request_id=request_id,
            started_at=ended_at - request.e2e_latency,
            ended_at=ended_at,
            first_token_at=ended_at - request.decode_time if has_token else None,
            prompt_tokens=request.num_prompt_tokens,
            cached_tokens=getattr(request, "num_cached_tokens", None),
            generated_tokens=request.num_generation_tokens,
            labels=labels if client is None else {**labels, CLIENT_RUN_LABEL: client},
        )


def _model_name(vllm_config: Any) -> str:
    """Return the name under which clients know the model."""
    model = vllm_config.model_config
    served = getattr(model, "served_model_name", None)
    if isinstance(served, list | tuple):
        served = served[0] if served else None
    return str(served or model.model)[:128]


def _log_error(error: Exception) -> None:
    log_message_once(
        f"cannot measure requests of this vLLM: {type(error).__name__}: {error}; use another "
        "version of vLLM, or "
        "--middleware wattline.integrations.asgi.EnergyMiddleware"
    )
