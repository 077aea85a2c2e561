"""Checks of a bundle's ONNX file: what it says about itself, against the manifest, before ONNX Runtime reads it."""

import math
from collections import Counter
from pathlib import Path

from attenuator import ops
from attenuator.bundle import MANIFEST, MODEL, TAUGHT, Manifest
from attenuator.errors import BundleError
from attenuator.ops.spec import DOMAIN
from attenuator.runtime.graph import Graph

# Operators of these domains and of the model's own functions may run; control flow may not: no encoder has any, and a
# loop's length is data that could keep a server busy for ever.
DOMAINS = {"", "ai.onnx", "com.microsoft", DOMAIN}
CONTROL_FLOW = {"Loop", "Scan", "If", "SequenceMap"}


def check_graph(folder: Path, manifest: Manifest, graph: Graph, file: str = MODEL) -> None:
    """Compares the graph of a file with the manifest, before ONNX Runtime reads it.

    Raises:
        BundleError: another operator version or node count, an operator no export writes, or data outside the bundle.
    """
    where = f"bundle {folder}: {file}"
    for name in sorted(graph.external):
        if name not in manifest.files:
            raise BundleError(f"{where} refers to external data {name!r}, which is not a file of the bundle")
    version = graph.opsets.get(DOMAIN, 1)
    supported = {operator.version for operator in ops.OPERATORS}
    if version not in supported:
        raise BundleError(
            f"{where} needs version {version} of the operators, this installation has version "
            f"{', '.join(map(str, supported))}"
        )
    ours = {operator.name: operator.key for operator in ops.OPERATORS}
    # ONNX Runtime ignores functions named like our operators: the library's kernels run instead.
    functions = {owner: body for owner, body in graph.other_ops.items() if owner[0] != DOMAIN}
    used = {(node.domain, node.op_type) for node in graph.nodes}.union(*functions.values())
    for domain, name in sorted(used):
        if name in CONTROL_FLOW:
            raise BundleError(f"{where} has a {name} node: control flow is not allowed in a bundle")
        shown = f"{domain}:{name}"[:80]  # the file chose these names; a log needs neither line breaks nor megabytes
        if domain not in DOMAINS and (domain, name) not in functions:
            raise BundleError(
                f"{where} has a node {shown!r}, must be an operator of ONNX, ONNX Runtime or {DOMAIN}, or a function "
                "of the model"
            )
        if domain == DOMAIN and name not in ours:
            raise BundleError(f"{where} has a node {shown!r}, must be one of {', '.join(ours)}")
    counts = Counter(ours[node.op_type] for node in graph.nodes if node.domain == DOMAIN)
    expected = Counter(manifest.attention.other_nodes)
    expected[manifest.attention.operator] += manifest.attention.layers
    if counts != expected:
        raise BundleError(f"{where} has {_counts(counts)}, but {MANIFEST} says {_counts(expected)}")


def check_attributes(folder: Path, manifest: Manifest, graph: Graph, file: str = MODEL) -> None:
    """Compares the attributes that the manifest claims with those of the attention nodes.

    Raises:
        BundleError: the operator has no such attribute, or a node has another value.
    """
    operator = next(operator for operator in ops.OPERATORS if operator.key == manifest.attention.operator)
    defaults = {attribute.name: attribute.default for attribute in operator.attributes}
    nodes = [node for node in graph.nodes if node.domain == DOMAIN and node.op_type == operator.name]
    for name, claimed in manifest.attention.attributes.items():
        if name not in defaults:
            raise BundleError(
                f"bundle {folder}: {MANIFEST}: attention.attributes has {name!r}, must be one of {', '.join(defaults)}"
            )
        for node in nodes:
            actual = node.attributes.get(name, defaults[name])
            if not _same(actual, claimed):
                raise BundleError(
                    f"bundle {folder}: {file} has a {operator.name} node with {name} {actual!r}, "
                    f"but {MANIFEST} says {claimed!r}"
                )


def check_same_nodes(folder: Path, graph: Graph, taught: Graph) -> None:
    """Refuses a taught graph that selects otherwise than the model's own: costs are predicted by the latter.

    Raises:
        BundleError: a node of the operators differs, or there are other ones.
    """
    ours, theirs = ([(n.op_type, n.attributes) for n in each.nodes if n.domain == DOMAIN] for each in (graph, taught))
    if ours != theirs:
        raise BundleError(f"bundle {folder}: {TAUGHT} has other operator nodes than {MODEL}, must have the same")


def _same(actual: object, claimed: object) -> bool:
    """Whether two attribute values are equal; floats are compared with the precision of float32."""
    if isinstance(actual, float) or isinstance(claimed, float):
        numbers = isinstance(actual, int | float) and isinstance(claimed, int | float)
        return numbers and math.isclose(float(actual), float(claimed), rel_tol=1e-6)  # type: ignore[arg-type]
    return type(actual) is type(claimed) and actual == claimed


def _counts(counts: Counter[str]) -> str:
    named = {operator.key: operator.name for operator in ops.OPERATORS}
    return ", ".join(f"{count} {named.get(key, key)}" for key, count in sorted(counts.items())) or "no operator nodes"
