"""A stand-in Kubernetes API server, in the pieces that a real one has.

`store` keeps the objects and their log of versions; `resources` are the kinds there
are, `verbs` what can be done to them, `watch` how changes are told; `front` is the
HTTP side, `discovery` what kubectl asks first; `rbac` and `faults` say no, and
`control` is the second port, by which tests steer it all.
"""
