"""Bundles are checked in this process."""

from checking import checks_in_this_process

__all__ = ["checks_in_this_process"]
