"""A stand-in Kubernetes API server, for tests.

| module | content |
|---|---|
| `store`, `objects`, `validation` | the objects, and the log of their versions |
| `resources`, `selectors` | the kinds of objects, and the selection of objects |
| `verbs`, `watch` | the operations on objects |
| `front`, `discovery` | the HTTP server of the API |
| `rbac`, `faults` | reasons to refuse requests |
| `control` | the second port, which controls the server |
| `process`, `builders` | the server as a child process, and objects for it |
"""
