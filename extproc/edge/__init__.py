"""Envoy's side: the gRPC service, the wire format, and the admin port."""
