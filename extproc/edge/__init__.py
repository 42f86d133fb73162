"""The side of the sidecar that Envoy and operators connect to: gRPC service and admin port."""

import os

# gRPC's core would write to stderr in its own format. It reads this variable when it is imported,
# and only modules of this package import it.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
