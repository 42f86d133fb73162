"""Stand-ins for what cannot run here: vLLM servers over HTTP, and a Kubernetes API server."""
