"""Sockets, HTTP framing and bodies: all that reaches into the inner parts of uvicorn and of the event loop.

The rooms above see this much: `Server` serves an ASGI application on one socket, `Connections` bounds what is open,
`Bodies` reads a request's body within limits, `client_of` says whether a request's client is still there. The JSON of
errors is handed to it at the start (`Connections.refusal`). Which danger each part meets:

* `arrivals`: more silent connections than files may be open: the one that has waited longest makes room. Bodies that
  trickle, are too large, are too many at once, or are of a type that any web page may send; many requests that take
  milliseconds each before the first of them waits for anything.
* `framing`: requests that a proxy reads otherwise than llhttp does (smuggling), endless headers, bodies of millions of
  tiny chunks, endless pipelines, names in `Host` that a web page has made to lead here, and clients that ask for
  another protocol together with a body, which uvicorn loses (Java's).
* `protocol`: headers that trickle, answers that nobody reads, clients that leave while their request is worked on, or
  that close their half and wait; a client that still sends gets its answer before the connection ends.
* `server`: crowds that connect at once, an end that waits for connections, and signals, which the caller handles; an
  event loop that hangs after one.

*What uvicorn does by itself* and is used: accepting, parsing, keep-alive, pipelines, back pressure. Its
`timeout_keep_alive` runs between requests alone, not from the connection's start; its limit on headers is for the
parser h11; it has none for the time of a header, a body or an answer; `limit_concurrency` answers 503 in plain text, to
health routes too; it takes a client that has closed its half for one that has left, and answers nothing.

*A proxy in front* that buffers requests makes `arrivals` and the time limits of `protocol` unnecessary;
not `framing`, which must agree with it, nor the news that a client has left.

*Taken from inside*, to look at when uvicorn is updated: `HttpToolsProtocol` with its `parser`, `pipeline`, `cycle` and
`flow`, `RequestResponseCycle`, and `Server.startup`, `shutdown`, `servers`, `capture_signals` and `server_state`;
of the event loop the descriptor that wakes it after a signal.
"""
