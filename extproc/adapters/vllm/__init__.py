"""Metrics and lists of models of vLLM servers, read over HTTP.

A server may be broken in any way, and the event loop that routes requests also reads a thousand of
them. So every reading is limited in bytes, in time and in work.
"""
