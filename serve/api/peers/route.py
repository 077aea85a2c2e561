"""Routes whose errors have the form that another server's clients expect, key and limits included."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from attenuator.errors import AttenuatorError
from attenuator.serve.api.errors import ErrorForm, failed, response_for, stopped

log = logging.getLogger(__name__)


def route_class(form: ErrorForm) -> type[APIRoute]:
    """The class of the routes whose errors have a form."""

    class PeerRoute(APIRoute):
        """Answers what goes wrong on the way, also before the endpoint is reached."""

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handler = super().get_route_handler()

            async def answer(request: Request) -> Response:
                try:
                    return await handler(request)
                except AttenuatorError as error:
                    return response_for(error, form)
                except (HTTPException, ClientDisconnect):
                    raise
                except asyncio.CancelledError:  # the service stops; nobody else cancels a request's task
                    return stopped(form)
                except Exception:
                    log.exception("the service failed on a request")
                    return failed(form)

            return answer

    return PeerRoute
