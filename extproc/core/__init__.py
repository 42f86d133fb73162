"""The routing logic, free of I/O, clocks, event loops and gRPC."""
