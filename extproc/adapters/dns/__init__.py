"""Endpoints by host name: the hosts file first, then DNS, again whenever a TTL ends."""
