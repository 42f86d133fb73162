"""The ext_proc service, and its messages on the wire."""
