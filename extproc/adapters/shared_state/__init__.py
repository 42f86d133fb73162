"""Shares this sidecar's requests with others through Redis or Valkey, away from the request path.

link        connects, exchanges batches at intervals, and reconnects
server      the server's URL and credentials
stream      the stream of batches
checkpoints what each endpoint's cache holds, for sidecars that start
codec       batches and checkpoints as bytes
"""
