"""What no route takes: query parameters, compressed bodies, and headers that are there twice."""

from fastapi import Request

from attenuator.errors import UnknownField
from attenuator.serve.errors import MalformedBody


def refuse_query(request: Request, place: str | None = "the JSON body") -> None:
    """Refuses query parameters: if they were ignored, a knob would seem to be set.

    Args:
        request: the request.
        place: where such fields stand; None where the route takes none.

    Raises:
        UnknownField: names the first.
    """
    if not request.scope["query_string"]:
        return
    for name in request.query_params:
        short = name[:64]
        hint = f"put '{short}' in {place}" if place else f"leave '{short}' out"
        raise UnknownField(f"query parameters are not accepted: {hint}", param=short, allowed="no query string")


def refuse_encoding(request: Request) -> None:
    """Refuses a compressed body and says so; otherwise the error would only be that it is not JSON.

    Raises:
        MalformedBody: names the header and its value, or all values if it occurs more than once.
    """
    encoding = ", ".join(request.headers.getlist("content-encoding")).strip()
    if encoding.lower() not in ("", "identity"):
        raise MalformedBody(f"the body has Content-Encoding '{encoding[:40]}', must be sent without one")


def single_header(request: Request, name: str) -> str | None:
    """The value of a header; None where the request has no such header.

    Raises:
        MalformedBody: it is there more than once: what stands between here and the caller may have read another one.
    """
    values = request.headers.getlist(name)
    if len(values) > 1:
        raise MalformedBody(f"the header {name} is there {len(values)} times, must be there once")
    return values[0] if values else None
