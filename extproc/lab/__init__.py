"""The laboratory: simulations, stand-in servers, a load generator, the demo and benchmarks.

The data path never imports it. The wheel includes only the packages that commands need, and the
image includes none.
"""
