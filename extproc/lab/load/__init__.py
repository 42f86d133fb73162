"""`extproc load`: the workloads of the laboratory, sent for real to any OpenAI-compatible URL."""
