"""Bundles, a server with a key, and commands run in this process."""

from checking import checks_in_this_process
from keyed_service import bundles, key, narrow_url, url
from running import run

__all__ = ["bundles", "checks_in_this_process", "key", "narrow_url", "run", "url"]
