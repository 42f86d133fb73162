"""The laboratory: what stands in for GPUs, drives load, and measures; no part of the data path."""
