"""Reads a request's body within limits, and notices when the client leaves."""

import asyncio

from starlette.requests import ClientDisconnect, Request

from attenuator.serve.errors import BodyTimeout, BodyTooLarge

LINGER_BYTES = 32 * 2**20
LINGER_S = 2.0


async def read_body(request: Request, *, max_bytes: int, timeout_ms: float) -> bytes:
    """Reads the body.

    Args:
        request: the request.
        max_bytes: largest body.
        timeout_ms: longest wait for it.

    Returns:
        The body.

    Raises:
        BodyTooLarge: announced or found to be over the limit.
        BodyTimeout: it did not arrive in time.
        ClientDisconnect: the client left before the end.
    """
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            announced = request.headers.get("content-length", "0")
            if announced.isdecimal() and int(announced) > max_bytes:
                raise await _too_large(request, max_bytes)
            parts, size = [], 0
            async for part in request.stream():
                size += len(part)
                if size > max_bytes:
                    raise await _too_large(request, max_bytes)
                parts.append(part)
            return b"".join(parts)
    except TimeoutError:
        raise BodyTimeout(f"the body did not arrive within {timeout_ms:g} ms") from None


async def _too_large(request: Request, max_bytes: int) -> BodyTooLarge:
    """Throws away what still comes: a client that is cut off while it sends never reads the answer."""
    if "100-continue" not in request.headers.get("expect", "").lower():
        size = 0
        try:
            async with asyncio.timeout(LINGER_S):
                while size < LINGER_BYTES:
                    message = await request.receive()
                    size += len(message.get("body", b""))
                    if message["type"] != "http.request" or not message.get("more_body"):
                        break
        except TimeoutError:
            pass
    return BodyTooLarge(f"the body is over the limit of {max_bytes} bytes")


async def client_disconnected(request: Request) -> None:
    """Returns when the client has closed the connection; call it after the body was read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


__all__ = ["ClientDisconnect", "client_disconnected", "read_body"]
