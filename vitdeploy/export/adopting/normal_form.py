"""One form for all: what later stages look for, however a graph was exported."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common
from onnxscript.rewriter import RewriteRuleSet
from onnxscript.rewriter.rules import common as rules

from vitdeploy.export.passes.expanded_constants import without_expanded_constants
from vitdeploy.export.passes.flat_linears import unflatten_linears
from vitdeploy.export.passes.fold_constants import fold_constants
from vitdeploy.export.passes.gelus import fuse_gelus
from vitdeploy.export.passes.layer_norms import fuse_layer_norms
from vitdeploy.export.passes.nan_guards import without_nan_guards
from vitdeploy.export.passes.neutral_operands import without_neutral_operands
from vitdeploy.export.passes.raise_opset import raise_opset
from vitdeploy.export.passes.scale_first import scale_queries_first
from vitdeploy.export.passes.static_shapes import settle_shapes

_TIDY = RewriteRuleSet(
    [
        rules.no_op_cast_rule,
        rules.no_op_expand_rule,
        rules.reshape_reshape_rule,
        rules.transpose_transpose_rule,
    ]
)

OLDEST_OPSET = 17
"""The first with LayerNormalization."""


def normal_form(model: ir.Model, *, opset: int) -> ir.Model:
    """The graph with every part of a ViT in its standard form; it computes the same. In place.

    * constants folded and stored as initializers; dead code, Identity, Dropout
      and what adds nothing gone; operators that compute the same merged;
    * the opset raised to `opset`, at least to `OLDEST_OPSET`;
    * LayerNorm as one operator, GELU too from opset 20;
    * Linear layers on tokens as they are; shapes as constants where the batch
      alone is open; queries scaled before they meet keys.

    Raises ExportError where the opset cannot be raised.
    """
    common.RemoveInitializersFromInputsPass()(model)
    _folded(model)
    raise_opset(model, max(opset, OLDEST_OPSET))
    common.NameFixPass()(model)
    _folded(model)
    common.CommonSubexpressionEliminationPass()(model)
    without_expanded_constants(model)
    _folded(model)
    for one in (
        without_neutral_operands,
        without_nan_guards,
        fuse_layer_norms,
        fuse_gelus,
        unflatten_linears,
        scale_queries_first,
    ):
        one(model)
        common.RemoveUnusedNodesPass()(model)
    _TIDY.apply_to_model(model)
    _folded(model)
    common.RemoveUnusedOpsetsPass()(model)
    common.NameFixPass()(model)
    return model


def _folded(model: ir.Model) -> None:
    """Fold until shapes that were not known before have nothing left to fold."""
    while True:
        before = len(list(model.graph))
        fold_constants(model)
        settle_shapes(model)
        common.IdentityEliminationPass()(model)
        common.RemoveUnusedNodesPass()(model)
        if len(list(model.graph)) == before:
            return
