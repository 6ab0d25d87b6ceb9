"""Compute once what depends on no input."""

from __future__ import annotations

import logging

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass, RemoveUnusedNodesPass
from onnxscript import optimizer

_LARGEST_VALUES = 1 << 26
"""Values of one folded tensor: rotary tables and biases of 1,000 tokens are within it."""


def fold_constants(model: ir.Model) -> ir.Model:
    """Nodes that read only constants become initializers; nodes nothing reads are dropped.

    PyTorch's exporter folds small tensors alone, so that rotary tables, tables
    of relative positions and windows' masks would be computed in every run.
    """
    logger = logging.getLogger("onnxscript")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it warns of every node it cannot fold
    try:
        _fold(model)
        while _split_constants(model.graph):
            _fold(model)
    finally:
        logger.setLevel(level)
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    RemoveUnusedNodesPass()(model)
    return model


def _fold(model: ir.Model) -> None:
    optimizer.fold_constants(
        model,
        input_size_limit=_LARGEST_VALUES,
        output_size_limit=_LARGEST_VALUES,
        should_fold=_mask_of_a_window,
    )


def _mask_of_a_window(node: ir.Node) -> bool | None:
    """onnxscript keeps ConstantOfShape as it is, and with it Swin's masks; None: its own rules."""
    return True if node.op_type == "ConstantOfShape" else None


def _split_constants(graph: ir.Graph) -> bool:
    """Cut constants that a Split cuts, which onnxscript leaves; False where there are none."""
    found = False
    for node in list(graph):
        if node.op_type != "Split" or node.inputs[0] is None:
            continue
        whole = ir.convenience.get_const_tensor(node.inputs[0])
        if whole is None:
            continue
        axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
        sizes = [int(value.shape[axis]) for value in node.outputs if value.shape is not None]  # type: ignore[arg-type]
        ends = np.cumsum(sizes)
        parts = np.split(whole.numpy(), ends[:-1], axis=axis)
        for value, part in zip(node.outputs, parts, strict=True):
            constant = ir.Value(name=f"{value.name}_constant", type=value.type, shape=value.shape)
            constant.const_value = ir.Tensor(np.ascontiguousarray(part), name=constant.name)
            graph.register_initializer(constant)
            value.replace_all_uses_with(constant)
        graph.remove(node, safe=True)
        found = True
    return found
