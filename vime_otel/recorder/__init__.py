"""The engine side: what runs inside vLLM's processes."""
