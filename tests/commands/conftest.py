"""Bundles, a server with a key, and commands run in this process."""

from keyed_service import bundles, key, narrow_url, url
from running import run

__all__ = ["bundles", "key", "narrow_url", "run", "url"]
