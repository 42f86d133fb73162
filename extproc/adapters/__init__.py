"""The world's side: configuration, discovery, telemetry."""
