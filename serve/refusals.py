"""What no route takes: query parameters and compressed bodies."""

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
