"""`extproc load`: sends a workload of the laboratory to any OpenAI-compatible server."""
