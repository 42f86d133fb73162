"""Imports Envoy's messages of betterproto2 without the warnings of their old pydantic style."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import envoy_data_plane.envoy.service.ext_proc.v3  # noqa: F401
