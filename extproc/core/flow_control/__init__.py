"""Flow control: requests wait in the sidecar while no endpoint has room for them."""
