"""Bundles whose nodes contradict each other, their knobs or their specs: refused when they are loaded."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import tiny

from attenuator import bundle
from attenuator.errors import BundleError
from attenuator.runtime.check import check_bundle


def select_among_the_selected(nodes: dict[str, onnx.NodeProto]) -> None:
    nodes["TokenSelect"].input[2] = nodes["TokenSelect"].input[3]


def merge_without_counting_the_row(nodes: dict[str, onnx.NodeProto]) -> None:
    """Of a short text one row goes on, where the first one and the mean of the others are two."""
    nodes["TokenSelect"].input.append("cu_seqlens")


@pytest.mark.parametrize("edit", [select_among_the_selected, merge_without_counting_the_row])
def test_nodes_that_disagree_about_the_rows_that_go_on_are_refused(
    tmp_path: Path, edit: Callable[[dict[str, onnx.NodeProto]], None]
) -> None:
    folder = tiny.write(tmp_path / "keep", "keep")
    model = onnx.load(folder / bundle.MODEL)
    edit({node.op_type: node for node in model.graph.node})
    onnx.save(model, folder / bundle.MODEL)
    tiny.sign(folder)
    with pytest.raises(BundleError, match=r"model\.onnx fails at keep 0\.05: .*TokenSelect: ") as caught:
        check_bundle(folder)
    assert "\n" not in str(caught.value)


def test_an_attribute_of_another_type_is_refused_by_the_name_of_its_file(tmp_path: Path) -> None:
    folder = tiny.write(tmp_path / "keep", "keep")
    model = onnx.load(folder / bundle.MODEL)
    lengths = next(node for node in model.graph.node if node.op_type == "KeptLengths")
    lengths.attribute.append(onnx.helper.make_attribute("merge", 3))
    onnx.save(model, folder / bundle.MODEL)
    tiny.sign(folder)
    with pytest.raises(
        BundleError, match=r"keep: model\.onnx .*attribute merge is of type int, must be of type string"
    ):
        check_bundle(folder)


def test_a_knob_of_whole_numbers_whose_range_ends_in_a_fraction_is_refused(tmp_path: Path) -> None:
    folder = tiny.write(tmp_path / "yoso", "yoso")
    knob = bundle.read_manifest(folder).knobs[0]
    tiny.sign(folder, knobs=[knob.model_copy(update={"high": 64.5})])
    with pytest.raises(BundleError, match=r"fails at num_hashes 64\.5: num_hashes is 64\.5, must be a whole number"):
        check_bundle(folder)
