"""Reads requests' bodies within limits.

Bodies that are still arriving do not count as requests in progress. They have limits of their own: time and rate for
each, number and bytes for all together. When there are too many, the one that began first is refused, so that stalled
bodies keep nobody out.
"""

import asyncio
import re
from dataclasses import dataclass, field

from starlette.requests import ClientDisconnect, Request

from attenuator.serve.errors import BodyTimeout, BodyTooLarge, UnsupportedMediaType
from attenuator.serve.presence import presence_of
from attenuator.serve.settings import ServeSettings

RATE_GRACE_S = 5.0
JSON_TYPE = re.compile(r"application/([\w.+-]+\+)?json\s*(;.*)?", re.IGNORECASE)
BINARY_TYPE = "application/octet-stream"
CHARSET = re.compile(r";\s*charset\s*=\s*\"?([^\s;\"]*)", re.IGNORECASE)


@dataclass(eq=False, slots=True)
class Arriving:
    """A body that is arriving.

    Attributes:
        timeout: ends the wait for it.
        parts: what has arrived.
        size: bytes of it.
        given_up: why it was given up before its time limit.
    """

    timeout: asyncio.Timeout
    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    given_up: str = ""


class Bodies:
    """All bodies that are arriving."""

    def __init__(self, settings: ServeSettings) -> None:
        self._settings = settings
        self._arriving: dict[Arriving, None] = {}  # ordered: the first to begin comes first
        self._bytes = 0

    async def read(self, request: Request, binary: bool = False) -> bytes:
        """Reads a request's body.

        Args:
            request: the request.
            binary: whether bytes that are not JSON may follow, so that the body as a whole is of no type.

        Returns:
            The body.

        Raises:
            UnsupportedMediaType: its Content-Type is not JSON.
            BodyTooLarge: announced or found to be over the limit.
            BodyTimeout: it did not arrive in time or at the least rate, or was given up in favour of others.
            ClientDisconnect: the client left before the end.
        """
        check_content_type(request, BINARY_TYPE if binary else None)
        return await self.receive(request)

    async def receive(self, request: Request) -> bytes:
        """As `read`, whatever type the body is of.

        Raises:
            BodyTooLarge: as `read`.
            BodyTimeout: likewise.
            ClientDisconnect: likewise.
        """
        limit = self._settings.max_body_bytes
        announced = request.headers.get("content-length", "0")
        if announced.isdecimal() and int(announced) > limit:
            raise _too_large(limit)
        whole = presence_of(request.scope).take_body()
        if whole is not None:
            if len(whole) > limit:
                raise _too_large(limit)
            return whole
        started_s = asyncio.get_running_loop().time()
        arriving = Arriving(asyncio.timeout_at(self._deadline_s(started_s, 0)))
        self._arriving[arriving] = None
        try:
            async with arriving.timeout:
                self._keep_limits()
                async for part in request.stream():
                    arriving.parts.append(part)
                    arriving.size += len(part)
                    self._bytes += len(part)
                    if arriving.size > limit:
                        raise _too_large(limit)
                    if not arriving.timeout.expired() and not arriving.given_up:
                        arriving.timeout.reschedule(self._deadline_s(started_s, arriving.size))
                    self._keep_limits()
        except TimeoutError:
            raise BodyTimeout(arriving.given_up or self._late(arriving.size)) from None
        finally:
            self._arriving.pop(arriving, None)
            self._bytes -= arriving.size
        return b"".join(arriving.parts)

    def _deadline_s(self, started_s: float, size: int) -> float:
        """The time at which a body is too late, if no more of it arrives."""
        end_s = self._settings.body_timeout_ms / 1000
        rate = self._settings.min_body_bytes_per_s
        return started_s + (min(end_s, RATE_GRACE_S + size / rate) if rate else end_s)

    def _late(self, size: int) -> str:
        """Why a body of which so many bytes have arrived is too late."""
        if self._deadline_s(0.0, size) < self._settings.body_timeout_ms / 1000:
            return f"the body arrived too slowly, must arrive at {self._settings.min_body_bytes_per_s} bytes/s or more"
        return f"the body did not arrive within {self._settings.body_timeout_ms:g} ms"

    def _keep_limits(self) -> None:
        """Refuses bodies, the one that began first before the others, until number and bytes are within the limits."""
        count, size = len(self._arriving), self._bytes
        for oldest in self._arriving:
            if count <= self._settings.max_arriving_bodies and size <= self._settings.max_arriving_bytes:
                break
            count -= 1
            size -= oldest.size
            if not oldest.given_up and not oldest.timeout.expired():
                oldest.given_up = "too many bodies were arriving, and this one had taken the longest: try again"
                oldest.timeout.reschedule(asyncio.get_running_loop().time())


def check_content_type(request: Request, other: str | None = None) -> None:
    """Refuses a Content-Type other than JSON in UTF-8; a body without a Content-Type is accepted.

    Args:
        request: the request.
        other: a type that is accepted too.

    Raises:
        UnsupportedMediaType: names the header and how to send it.
    """
    for value in request.headers.getlist("content-type"):
        charset = CHARSET.search(value)
        if other is not None and value.strip().lower() == other:
            continue
        if not JSON_TYPE.fullmatch(value.strip()) or (charset and charset[1].lower() not in ("utf-8", "utf8")):
            raise UnsupportedMediaType(
                f"the Content-Type is '{value[:80]}', must be application/json in UTF-8: "
                "curl sends it with -H 'Content-Type: application/json'"
            )


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is too large, must have at most {limit} bytes")


__all__ = ["Bodies", "ClientDisconnect"]
