"""The switch for OpenTelemetry traces.

Nothing here loads OpenTelemetry, which is an extra: `serve.observe.otel` does, where traces are wanted.
"""

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from attenuator.errors import AttenuatorError

if TYPE_CHECKING:
    from attenuator.serve.observe.otel import Traces

log = logging.getLogger(__name__)
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"
MISSING = "traces need the packages of OpenTelemetry: pip install '.[otel]' in a checkout"


def open_traces(asked: bool, environment: Mapping[str, str] = os.environ) -> "Traces | None":
    """Begins to send traces; gives what makes spans, or None where no traces are wanted.

    The setting asks for them (`asked`), or an endpoint in the standard variables; `OTEL_SDK_DISABLED` says no to both.

    Raises:
        AttenuatorError: OpenTelemetry is not installed though the setting asks for it, or one of its variables has a
            value that this service cannot follow.
    """
    exporter = environment.get("OTEL_TRACES_EXPORTER", "otlp")
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true" or exporter == "none":
        return None
    if not asked and not any(environment.get(name) for name in ENDPOINTS):
        return None
    if exporter != "otlp":
        raise AttenuatorError(f"OTEL_TRACES_EXPORTER is '{exporter[:80]}', must be otlp or none")
    for name in PROTOCOLS:
        if environment.get(name, PROTOCOL) != PROTOCOL:
            raise AttenuatorError(f"{name} is '{environment[name][:80]}', must be {PROTOCOL}")
    try:
        from attenuator.serve.observe.otel import otlp_traces

        return otlp_traces()
    except ImportError:
        if asked:
            raise AttenuatorError(f"--otel: {MISSING}") from None
        log.warning("the environment names an endpoint for traces; %s", MISSING)
        return None
    except ValueError as error:  # of a variable, or of propagators that it does not know
        raise AttenuatorError(f"OpenTelemetry cannot start: {error}") from None
