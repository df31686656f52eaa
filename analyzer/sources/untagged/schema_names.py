"""Names of exporter schemas and LLM servers, separate from their tables for a fast start of the command line."""

from __future__ import annotations

AUTO = "auto"
SCHEMA_NAMES = ("wattline", "dcgm-exporter", "nvidia-gpu-exporter", "kepler", "node-exporter", "all-smi")
TOKEN_SERVER_NAMES = ("vllm", "sglang", "tgi", "llama.cpp", "tensorrt-llm")
