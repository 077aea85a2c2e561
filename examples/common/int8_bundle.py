"""Write an fp32 bundle again with int8 linear layers, where the checkpoint it was exported from is not at hand.

`python examples/common/int8_bundle.py examples/bundles/reviews bundles/reviews-int8`

The graph is the one that `attenuator export --precision int8` makes from the checkpoint; what that command measures
against PyTorch (`provenance.parity`) is left out. `evaluate.py --against` compares the two bundles.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import numpy as np
import onnx_ir as ir

from attenuator.bundle import MANIFEST, MODEL, PROBE, Manifest, read_manifest
from attenuator.export.int8 import quantise
from attenuator.export.lower import write_model
from attenuator.export.output import refuse_output, replace, staging_for
from attenuator.export.pipeline import finish
from attenuator.runtime import create

CALIBRATIONS = "calibration.*"  # what belongs to the source alone


def write_int8(source: Path, output: Path) -> Manifest:
    """Write the bundle; one that is already there is replaced.

    Args:
        source: an fp32 bundle.
        output: folder of the int8 bundle.

    Raises:
        SystemExit: the source is not fp32.
        BundleError: the source is damaged.
        ExportError: the output is a folder that is not a bundle.
    """
    output = output.resolve()
    refuse_output(output)
    manifest = read_manifest(source)
    if manifest.precision != "fp32":
        raise SystemExit(f"{source} has precision {manifest.precision}, must be fp32")
    with staging_for(output) as staging:
        shutil.copytree(source, staging, ignore=shutil.ignore_patterns(MANIFEST, CALIBRATIONS), dirs_exist_ok=True)
        graph = ir.load(source / MODEL)
        quantise(graph)
        write_model(graph, staging)
        with np.load(source / PROBE) as probe:
            arrays = dict(probe)
        del arrays["logits"]
        [logits] = create(staging / MODEL).run(["logits"], arrays)
        np.savez(staging / PROBE, **arrays, logits=logits)
        provenance = manifest.provenance.model_copy(update={"parity": {}})
        fields = dict(manifest) | {"precision": "int8", "provenance": provenance}
        manifest = finish(staging, {name: value for name, value in fields.items() if name not in ("files", "revision")})
        replace(staging, output)
    return manifest


def main() -> None:
    """Write one bundle."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="folder of an fp32 bundle")
    parser.add_argument("output", type=Path, help="folder of the int8 bundle")
    values = parser.parse_args()
    write_int8(values.source, values.output)
    before, after = ((folder / MODEL).stat().st_size / 1e6 for folder in (values.source, values.output))
    print(f"{values.output}: {MODEL} {after:.1f} MB instead of {before:.1f}")


if __name__ == "__main__":
    main()
