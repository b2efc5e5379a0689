"""Checks vime_otel.recorder.vllm_targets against the source of vLLM's releases; `make contract` runs it."""
