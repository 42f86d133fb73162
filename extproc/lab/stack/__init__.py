"""The whole data path on loopback: real Envoy, the real sidecar, stand-in servers."""
