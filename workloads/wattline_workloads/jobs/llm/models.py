"""Transformers models: published weights, or random weights of a known shape."""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattline.client.messages import log_message, log_message_once
from wattline_workloads.jobs.kernels import torch_device
from wattline_workloads.jobs.llm.options import PRESETS, find_preset

if TYPE_CHECKING:
    import torch

_OFFSET_POSITIONS = {
    "roberta",
    "xlm-roberta",
    "camembert",
    "longformer",
}  # their positions start at 2


class ModelError(ValueError):
    """Missing or unsuitable model; one line with the remedy."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Loaded model; `eos` are the tokens that end a text, none with random weights."""

    module: Any
    device: torch.device
    vocabulary: int
    positions: int | None
    eos: frozenset[int]
    is_causal: bool
    tokenizer_name: str | None
    """Name or folder of the tokenizer, None with random weights."""


def load_model(options: argparse.Namespace) -> LoadedModel:
    """Load a model. Raises ModelError, and RuntimeError if memory is insufficient."""
    torch_device.require_modules("torch", "transformers")
    import torch

    _silence_libraries()
    device = _device(options.device)
    dtype = _dtype(options.dtype, device)
    torch.manual_seed(options.seed)
    config = _config(options.random) if options.random else _published(options.model)
    is_causal, kind = _kind(config)
    if options.random:
        module = _random(kind, config, options.random, dtype, device)
    else:
        module = _readable(
            options.model, functools.partial(kind.from_pretrained, options.model, config=config)
        )
    positions = getattr(config, "max_position_embeddings", None)
    return LoadedModel(
        module=module.to(device=device, dtype=dtype),
        device=device,
        vocabulary=int(config.vocab_size),
        positions=positions - 2
        if positions and config.model_type in _OFFSET_POSITIONS
        else positions,
        eos=frozenset() if options.random else _eos(module),
        is_causal=is_causal,
        tokenizer_name=None if options.random else options.model,
    )


def load_tokenizer(loaded: LoadedModel) -> Any:
    """Load the tokenizer of the model. Raises ModelError."""
    from transformers import AutoTokenizer

    name = loaded.tokenizer_name
    if name is None:
        raise ModelError(
            "a file of texts needs the model's tokenizer; give --model instead of --random, or "
            "omit the file"
        )
    return _readable(name, functools.partial(AutoTokenizer.from_pretrained, name))


def check_positions(loaded: LoadedModel, tokens: int) -> None:
    """Check the length of a text. Raises ModelError."""
    if loaded.positions is not None and tokens > loaded.positions:
        raise ModelError(
            f"{tokens} tokens exceed the model's maximum of {loaded.positions}; reduce the length"
        )


def require_causal(loaded: LoadedModel) -> None:
    """Check that the model predicts next tokens. Raises ModelError."""
    if not loaded.is_causal:
        raise ModelError(
            "the model does not predict next tokens; give a causal model like gpt2, or use the job "
            "llm-forward"
        )


def _silence_libraries() -> None:
    import transformers

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # no messages about retries
    untyped: Any = transformers.utils.logging
    untyped.set_verbosity_error()
    untyped.disable_progress_bar()


def _device(name: str) -> torch.device:
    """Return this process's device: one per process under a launcher, else the first."""
    import torch

    if name != "auto":
        try:
            device = torch.device(name)
        except RuntimeError as error:
            raise ModelError(f"{name!r} is not a device; give cpu, cuda or cuda:1") from error
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise ModelError(
                f"unknown device {name}: torch has {torch.cuda.device_count()} GPUs; give a lower "
                "number, or cpu"
            )
        return device
    if "LOCAL_RANK" in os.environ and torch.cuda.is_available():
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    first, *others = torch_device.torch_devices()
    if others:
        log_message(
            f"this process uses the first of {1 + len(others)} GPUs; for all, start one process "
            "each: "
            f"torchrun --nproc-per-node {1 + len(others)} -m wattline_workloads.jobs.… (see "
            "workloads/docs/language-models.md)"
        )
    return first


def _dtype(name: str, device: torch.device) -> torch.dtype:
    import torch

    kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    return (
        kinds["float16" if device.type == "cuda" else "float32"] if name == "auto" else kinds[name]
    )


def _random(kind: Any, config: Any, shape: str, dtype: torch.dtype, device: torch.device) -> Any:
    try:
        with _default_dtype(dtype), device:
            return kind.from_config(config)
    except (ValueError, TypeError, AttributeError) as error:
        raise ModelError(
            f"cannot create a model of shape {shape}: {str(error).strip().splitlines()[0]}"
        ) from error


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Create new parameters with this type, since a later conversion needs more memory."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _config(shape: str) -> Any:
    from transformers import AutoConfig

    preset = find_preset(shape)
    if preset is not None:
        return AutoConfig.for_model(preset.model_type, **preset.config)
    if not Path(shape).exists():
        raise ModelError(
            f"unknown shape {shape!r}; give one of {', '.join(PRESETS)}, a config.json or its "
            "folder"
        )
    return _readable(shape, functools.partial(AutoConfig.from_pretrained, shape))


def _published(name: str) -> Any:
    from transformers import AutoConfig

    return _readable(name, functools.partial(AutoConfig.from_pretrained, name))


def _readable(name: str, read: Callable[..., Any]) -> Any:
    """Call `read` for local files, else for the Hub. Raises ModelError."""
    try:
        return read(local_files_only=True)
    except (OSError, ValueError, ImportError) as error:
        if Path(name).exists():
            raise _unreadable(name, error) from error
    log_message_once(f"{name} is not cached; fetching it from the Hugging Face Hub")
    try:
        return read()
    except (OSError, ValueError, ImportError) as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> ModelError:
    cause = str(error).strip().partition("\n")[0] or type(error).__name__
    known = f", or --random {name} for random weights of its shape" if find_preset(name) else ""
    return ModelError(
        f"cannot load model {name}: {cause[:200]}; give the folder of a local model{known}"
    )


def _kind(config: Any) -> tuple[bool, Any]:
    """Return whether the model predicts next tokens, and its class; for an encoder its bare
    layers.
    """
    from transformers import AutoModel, AutoModelForCausalLM
    from transformers.models.auto import modeling_auto

    is_causal = (
        type(config) in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING
        and type(config) not in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING
    )
    return is_causal, AutoModelForCausalLM if is_causal else AutoModel


def _eos(module: Any) -> frozenset[int]:
    generation = getattr(module, "generation_config", None)
    eos = getattr(generation, "eos_token_id", None)
    if eos is None:
        eos = getattr(module.config, "eos_token_id", None)
    if eos is None:
        return frozenset()
    return frozenset(eos if isinstance(eos, list | tuple) else [eos])
