"""Bundles and a server with a key."""

from keyed_service import bundles, key, narrow_url, url

__all__ = ["bundles", "key", "narrow_url", "url"]
