"""Models documents and a request body for the tests of the commands."""

from __future__ import annotations

GOOD = "models:\n- name: llama\n  endpoints: [10.0.0.1:8000, 10.0.0.2:8000]\n"
TWO = GOOD + "- {name: qwen, endpoints: [10.0.1.1:8000]}\n"
BY_SERVICE = "models: [{name: a, service: {namespace: n, name: s, port: http}}]\n"
BY_POOL = "models: [{name: a, inferencePool: {namespace: n, name: p}}]\n"
BODY = b'{"model": "llama", "messages": [{"role": "user", "content": "hello"}]}'
