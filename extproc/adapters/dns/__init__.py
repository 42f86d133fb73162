"""Endpoints by host name: the hosts file first, then DNS, repeated when a TTL ends."""
