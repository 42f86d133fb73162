"""The benchmark, `make bench`: what a decision costs, alone and beside other ways to make one.

Where things are:

    __main__    the command line; what is measured, in order
    ways        the ways through which requests go: Envoy alone, with Lua, with the sidecar ...
    configs       their Envoy configurations, in_process.lua their Lua
    peers         routers of others
    rows        every way under every load: bodies, connections
    sse         every way with thousands of streams
    load        runs the generator (client, sse_client); upstream answers; wire is their HTTP
    decision    the decision alone, in this process; routers is what it runs in
    choosing      each strategy's part of it
    prefix_cache  PrefixCache beside PrefixHash
    profile       where the time goes: `make profile`
    signals     decisions beside fleets whose metrics are read; signals_through: through Envoy
    results     all figures as JSON; targets, grids, page: what is made of them
"""
