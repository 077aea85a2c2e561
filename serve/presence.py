"""What a connection says about a request's client to whoever works on the request, beside ASGI's messages.

Whether the client is still there: ASGI's own way is to await the next message, which takes a task of its own for every
request. And the body where all of it has arrived with the header, as it mostly does: reading that takes no time limit.
"""

from collections.abc import Callable, MutableMapping
from typing import Any

STATE = "presence"


class Presence:
    """The client of one request.

    Attributes:
        left: whether it has closed the connection, or its connection was closed, before it had its answer.
        when_left: called once, when that happens.
        body: the whole body, once it has arrived and while nobody has read it; None before.
    """

    __slots__ = ("body", "left", "when_left")

    def __init__(self) -> None:
        self.left = False
        self.body: bytearray | None = None
        self.when_left: Callable[[], object] | None = None

    def leave(self) -> None:
        """The connection is gone."""
        if not self.left:
            self.left = True
            if self.when_left is not None:
                self.when_left()

    def take_body(self) -> bytes | None:
        """The whole body, which is not kept here any longer; None where some may be missing, or the client has left."""
        if self.body is None or self.left:
            return None
        body = bytes(self.body)
        self.body.clear()
        return body


def presence_of(scope: MutableMapping[str, Any]) -> Presence:
    """The client of the request that an ASGI scope describes."""
    state = scope.setdefault("state", {})
    if STATE not in state:
        state[STATE] = Presence()
    presence: Presence = state[STATE]
    return presence
