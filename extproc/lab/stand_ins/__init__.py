"""Stand-in vLLM servers: vLLM's HTTP APIs over simulated engines."""
