"""Names that a user types, apart from what they mean, so that a command line is quick to start."""

from __future__ import annotations

AUTO = "auto"
SCHEMA_NAMES = ("wattline", "dcgm-exporter", "nvidia-gpu-exporter", "kepler", "node-exporter", "all-smi")
TOKEN_SERVER_NAMES = ("vllm", "sglang", "tgi", "llama.cpp", "tensorrt-llm")
