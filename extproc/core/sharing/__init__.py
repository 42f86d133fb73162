"""The reports of sidecars about their requests, so that each knows the load of all."""
