"""One request, read: its path, body, prompt, blocks and routing key, or the reason to refuse it."""
