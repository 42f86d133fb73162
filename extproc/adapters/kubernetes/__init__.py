"""The Kubernetes API's side: who serves a model, and what is configured.

`api` speaks HTTP to the API server; `reflector` keeps a copy of a set of its
objects by list and watch; `endpoint_slices` and `inference_pool` read endpoints
out of such copies, `screening` says which addresses are never routed to, and
`discovery` keeps one follower for each source that the configuration names.
`models_configmap` follows the configuration itself.
"""
