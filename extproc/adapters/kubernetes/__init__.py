"""Objects of the Kubernetes API: the endpoints of a model, and the models document.

- `api` is the interface to the API server; `http_api` implements it and `cluster` connects it.
- `reflector` keeps a copy of a set of objects by list and watch.
- `shared_slices` lets the Services of a namespace share such a copy.
- `endpoint_slices` and `inference_pool` read endpoints from such copies.
- `events` writes Events that `kubectl describe` shows.
"""
