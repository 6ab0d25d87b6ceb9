"""A graph in the operators of a later opset."""

from __future__ import annotations

import logging

import onnx
import onnx_ir as ir
from onnxscript import version_converter

from vitdeploy.errors import ExportError


def raise_opset(model: ir.Model, opset: int) -> ir.Model:
    """Convert a graph of an earlier opset; one of the same or a later one stays as it is.

    Raises ExportError where onnx cannot convert one of its operators.
    """
    own = model.graph.opset_imports.get("", 0)
    if own >= opset:
        return model
    logger = logging.getLogger("onnxscript")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # it says on the log that it gave up, and goes on
    try:
        version_converter.convert_version(model, target_version=opset, fallback=True)
    except RuntimeError as error:
        raise _not_converted(own, opset) from error
    finally:
        logger.setLevel(level)
    if model.graph.opset_imports.get("") != opset:
        raise _not_converted(own, opset)
    needed = onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)])
    model.ir_version = max(model.ir_version, needed)
    return model


def _not_converted(own: int, opset: int) -> ExportError:
    return ExportError(
        f"the graph's opset {own} cannot be raised to {opset}: onnx knows no way for one "
        "of its operators",
        hint="export it again with opset 17 or later, or take a lower --opset",
    )
