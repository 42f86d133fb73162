"""The laboratory: a model of a vLLM replica, and a stand-in server that behaves like one.

Nothing in the data path imports it.
"""
