"""Envoy's messages in betterproto2 are pydantic classes of an older manner, which warn a lot."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import envoy_data_plane.envoy.service.ext_proc.v3  # noqa: F401
