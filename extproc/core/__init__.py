"""What the project is about, and nothing else: no I/O, no clock, no event loop, no gRPC."""
