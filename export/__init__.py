"""Turns trained models into bundles; needs the extra `export` (torch, transformers, onnx).

`attenuator.export.export("checkpoint/", attention=.., output="bundles/contracts")` does what the command does.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attenuator.export.pipeline import export

__all__ = ["export"]


def __getattr__(name: str) -> Any:
    """Imports the pipeline when it is asked for: training needs the encoder alone."""
    if name != "export":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from attenuator.export import pipeline

    return pipeline.export
