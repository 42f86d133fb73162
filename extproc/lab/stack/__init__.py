"""The whole data path on loopback: a real Envoy, the real sidecar and stand-in servers."""
