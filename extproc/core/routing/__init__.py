"""The decision: which model a name means, and which endpoint serves the request."""
