"""Reads one request: its path, body, prompt, blocks and routing key, or the reason to refuse it."""
