"""What vLLM servers say of themselves: their metrics and their lists of models, read over HTTP.

A server may be broken in any way, and there may be a thousand of them beside the one
event loop that routes: every reading is bounded in bytes, in time and in work.
"""
