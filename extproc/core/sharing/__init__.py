"""What sidecars tell each other about their requests, so that each knows the load of all."""
