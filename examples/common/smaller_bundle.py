"""Write a bundle again in a smaller form, where the checkpoint it was exported from is not at hand.

`python examples/common/smaller_bundle.py bundles/reviews examples/bundles/reviews --form half-tables`

* `int8`: of an fp32 bundle the graph that `attenuator export --precision int8` makes from the checkpoint, with int8
  linear layers.
* `half-tables`: the table of word embeddings, most of a small model, is stored in half precision, and the rows that are
  looked up are cast to float32: all arithmetic stays as it was, and each number of the table is off by at most 1/2048
  of itself. The bundled models are stored like this.

What export measures against PyTorch (`provenance.parity`) is left out. `evaluate.py --against` compares two bundles.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir

from attenuator.bundle import MANIFEST, MODEL, PROBE, TOKENIZER, Manifest, read_manifest
from attenuator.export import fallback
from attenuator.export.int8 import quantise
from attenuator.export.lower import write_model
from attenuator.export.output import refuse_output, replace, staging_for
from attenuator.export.pipeline import finish
from attenuator.precision import PrecisionName
from attenuator.runtime import create

CALIBRATIONS = "calibration.*"  # what belongs to the source alone
LEAST_ROWS = 1000  # smaller tables, such as those of token types, stay as they are


def write_int8(source: Path, output: Path) -> Manifest:
    """Write the bundle with int8 linear layers; arguments and errors are those of `write_again`."""
    return write_again(source, output, round_layers, "int8")


def write_half_tables(source: Path, output: Path) -> Manifest:
    """Write the bundle with its tables in half precision; arguments and errors are those of `write_again`."""
    return write_again(source, output, halve_tables, None)


FORMS = {"int8": write_int8, "half-tables": write_half_tables}


def write_again(
    source: Path, output: Path, change: Callable[[ir.Model], dict[str, int]], precision: PrecisionName | None
) -> Manifest:
    """Write a bundle again with another graph, without its calibration; one that is already there is replaced.

    Args:
        source: a bundle.
        output: folder of the new bundle.
        change: changes the graph in place; returns how many nodes of operators it has more, by the operators' keys.
        precision: that the change gives an fp32 bundle; None where it gives none.

    Raises:
        SystemExit: the source must be fp32 and is not.
        BundleError: the source is damaged.
        ExportError: the output is a folder that is not a bundle.
    """
    output = output.resolve()
    refuse_output(output)
    manifest = read_manifest(source)
    if precision and manifest.precision != "fp32":
        raise SystemExit(f"{source} has precision {manifest.precision}, must be fp32")
    with staging_for(output) as staging:
        shutil.copytree(source, staging, ignore=shutil.ignore_patterns(MANIFEST, CALIBRATIONS), dirs_exist_ok=True)
        graph = ir.load(source / MODEL)
        added = change(graph)
        write_model(graph, staging)
        with np.load(source / PROBE) as probe:
            arrays = dict(probe)
        del arrays["logits"]
        [logits] = create(staging / MODEL).run(["logits"], arrays)
        np.savez(staging / PROBE, **arrays, logits=logits)
        tokenizer = json.loads((staging / TOKENIZER).read_bytes())  # a third of the file may be indentation
        (staging / TOKENIZER).write_text(json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":")), "utf-8")
        provenance = manifest.provenance.model_copy(update={"parity": {}})
        attention = manifest.attention.model_copy(update={"other_nodes": manifest.attention.other_nodes | added})
        changed = {"precision": precision or manifest.precision, "provenance": provenance, "attention": attention}
        fields = dict(manifest) | changed
        manifest = finish(staging, {name: value for name, value in fields.items() if name not in ("files", "revision")})
        replace(staging, output)
    return manifest


def round_layers(graph: ir.Model) -> dict[str, int]:
    """Round the linear layers to int8, and attach the functions of the nodes that take their place."""
    added = quantise(graph)
    fallback.attach(graph)
    return added


def halve_tables(graph: ir.Model) -> dict[str, int]:
    """Store the tables that a graph looks rows up in as float16, with a Cast of the rows behind each lookup.

    Args:
        graph: changed in place.

    Returns:
        Nothing: it has no more nodes of operators.
    """
    for node in list(graph.graph):
        table = node.inputs[0] if node.op_type == "Gather" else None
        if table is None or table.const_value is None or table.dtype != ir.DataType.FLOAT:
            continue
        values = table.const_value.numpy()
        if values.ndim != 2 or len(values) < LEAST_ROWS:
            continue
        assert len(table.uses()) == 1, "a table that is also a weight elsewhere stays exact"
        table.const_value = ir.tensor(values.astype(np.float16), name=table.name)
        table.type = ir.TensorType(ir.DataType.FLOAT16)
        rows = node.outputs[0]
        cast = ir.node("Cast", [rows], {"to": ir.DataType.FLOAT}, name=f"{rows.name}_as_float")
        ir.convenience.replace_all_uses_with(rows, cast.outputs[0])
        cast.replace_input_with(0, rows)
        cast.outputs[0].type, cast.outputs[0].shape = rows.type, rows.shape
        cast.outputs[0].name = f"{rows.name}_as_float"
        rows.type = ir.TensorType(ir.DataType.FLOAT16)
        graph.graph.insert_after(node, cast)
    return {}


def main() -> None:
    """Write one bundle."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="folder of a bundle")
    parser.add_argument("output", type=Path, help="folder of the smaller bundle")
    parser.add_argument("--form", choices=FORMS, default="int8", help="what becomes smaller (default: int8)")
    values = parser.parse_args()
    FORMS[values.form](values.source, values.output)
    before, after = ((folder / MODEL).stat().st_size / 1e6 for folder in (values.source, values.output))
    print(f"{values.output}: {MODEL} {after:.1f} MB instead of {before:.1f}")


if __name__ == "__main__":
    main()
