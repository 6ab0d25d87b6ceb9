"""Name every node after the PyTorch module it came from."""

from __future__ import annotations

import ast
from collections import Counter

import onnx_ir as ir

from vitdeploy.models.library import WRAPPED

_SCOPES = "pkg.torch.onnx.name_scopes"


def name_nodes_by_module(model: ir.Model) -> ir.Model:
    """'node_MatMul_12' becomes 'blocks.0.attn.qkv/MatMul'; a second one ends in '_1'.

    The exporter's own metadata (among it stack traces with paths of the
    exporting machine) is dropped afterwards.
    """
    seen: Counter[str] = Counter()
    _unwrap(model)
    for node in model.graph:
        scopes = ast.literal_eval(node.metadata_props.get(_SCOPES, "[]"))
        modules = [scope for scope in scopes[:-1] if scope and not scope.startswith("_")]
        modules = [name for scope in modules if (name := _library_name(scope))]
        name = f"{modules[-1]}/{node.op_type}" if modules else node.op_type
        node.name = f"{name}_{seen[name]}" if seen[name] else name
        seen[name] += 1
        node.metadata_props.clear()
        for output in node.outputs:
            output.metadata_props.clear()
    for value in (*model.graph.initializers.values(), *model.graph.inputs):
        value.metadata_props.clear()
    model.graph.metadata_props.clear()
    model.metadata_props.clear()
    return model


def _unwrap(model: ir.Model) -> None:
    """Free the initializers' names of wrapper modules of ours."""
    initializers = model.graph.initializers
    for name in list(initializers):
        own = _library_name(name)
        if own != name and own not in initializers:
            value = initializers.pop(name)
            value.name = own
            initializers[own] = value


def _library_name(name: str) -> str:
    """'wrapped.blocks.0.attn' is the library's 'blocks.0.attn', 'wrapped' the model itself."""
    while name == WRAPPED or name.startswith(f"{WRAPPED}."):
        name = name[len(WRAPPED) + 1 :]
    return name
