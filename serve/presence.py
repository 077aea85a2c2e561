"""Whether a request's client is still there: said by its connection, heard by whoever works on the request.

ASGI's own way is to await the next message, which takes a task of its own for every request.
"""

from collections.abc import Callable, MutableMapping
from typing import Any

STATE = "presence"


class Presence:
    """The client of one request.

    Attributes:
        left: whether it has closed the connection, or its connection was closed, before it had its answer.
        when_left: called once, when that happens.
    """

    __slots__ = ("left", "when_left")

    def __init__(self) -> None:
        self.left = False
        self.when_left: Callable[[], object] | None = None

    def leave(self) -> None:
        """The connection is gone."""
        if not self.left:
            self.left = True
            if self.when_left is not None:
                self.when_left()


def presence_of(scope: MutableMapping[str, Any]) -> Presence:
    """The client of the request that an ASGI scope describes."""
    state = scope.setdefault("state", {})
    if STATE not in state:
        state[STATE] = Presence()
    presence: Presence = state[STATE]
    return presence
