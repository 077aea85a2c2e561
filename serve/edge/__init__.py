"""Sockets, HTTP framing and bodies: all that reaches into the inner parts of uvicorn and of the event loop.

The rooms above see this much. `Server` serves an ASGI application on a socket of `listen`, on the `fastest_loop`, until
one of `SIGNALS`, and `end_in_time` ends a loop that hangs; `Connections` bounds what is open, by `connection_limit` and
`raise_descriptor_limit`; `Bodies` reads a request's body or raises one of three errors; `client_of` says whether its
client is still there; `address` and `is_loopback` are of sockets, and the media types are names. The JSON of errors is
handed to `Connections` as a callable. Which danger each part meets:

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

*Taken from inside*, to look at when uvicorn is updated. Of `HttpToolsProtocol`: `parser`, `pipeline`, `cycle`, `flow`,
`url`, `headers`, `expect_100_continue`, `_should_upgrade`, `_start_asgi_task`, `on_response_complete`; of
`RequestResponseCycle`: `body`, `more_body`, `message_event`, `response_started`, `disconnected`, `keep_alive`; of
`Server`: `startup`, `shutdown`, `servers`, `capture_signals`, `server_state` and its `tasks`; `STATUS_LINE`; of the
event loop the descriptor that wakes it after a signal. Two other places reach into Python, since every command needs
them: `attenuator.json_body` takes its JSON decoder apart, and `observe.logs` switches off what `logging` looks up.
"""
