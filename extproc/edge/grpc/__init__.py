"""The gRPC transports that carry the ext_proc service: our own, and grpc.aio."""
