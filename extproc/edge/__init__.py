"""Envoy's side: the gRPC service, the wire format, and the admin port."""

import os

# gRPC's core would write to stderr in a format of its own. It reads this when it is
# imported, and only modules of this package import it.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
