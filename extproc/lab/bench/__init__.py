"""The benchmark, `make bench`: the cost of a decision, alone and compared with other setups.

Modules:

    __main__        the command line and the order of the measurements
    ways            the setups that requests go through: Envoy alone, with Lua, with the sidecar ...
    configs         their Envoy configurations; in_process.lua is their Lua
    peers           other routers
    rows            every setup under every load: bodies, connections
    sse             every setup with thousands of streams
    load            runs the generator (client, sse_client); upstream responds; wire is their HTTP
    decision        the decision alone, in this process, with the fleet in routers
    choosing        each strategy's part of it
    prefix_cache    PrefixCache compared with PrefixHash
    tracing         what traces cost a request
    flow_control    what a request costs that waits for room on an endpoint
    profile         a CPU profile: `make profile`
    signals         decisions next to fleets whose metrics are read; signals_through: through Envoy
    results         all figures as JSON, shown by targets, grids and page
"""
