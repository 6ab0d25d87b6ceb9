"""Graphs of real exporters in one form: what is recognised, and that it computes the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import pytest
from foreign_graphs import (
    SIZE,
    Exporting,
    checked,
    export,
    images,
    one_by_one,
    operators,
    plain_vit,
    relative_error,
    timm_vit,
    torchvision_vit,
    transformers_vit,
)
from torch import nn

from vitdeploy.export.adopting.normal_form import normal_form
from vitdeploy.graph import files
from vitdeploy.graph.recognition import Recognised, recognise
from vitdeploy.preprocessing import Size

LIMIT = 1e-5

TORCHSCRIPT = [
    Exporting(opset, dynamic=dynamic) for opset in (14, 16, 17) for dynamic in (False, True)
]
DYNAMO = [Exporting(18, dynamic=dynamic, dynamo=True) for dynamic in (False, True)]


def normalized(path: Path, *, opset: int = 20, size: Size = SIZE) -> ir.Model:
    model = files.load(path)
    image = model.graph.inputs[0]
    assert image.shape is not None
    image.shape = ir.Shape([image.shape[0], 3, *size])
    return checked(normal_form(model, opset=opset))


def require_equal(path: Path, model: ir.Model, size: Size = SIZE) -> None:
    batch = images(2, size)
    assert relative_error(one_by_one(model, batch), one_by_one(path, batch)) <= LIMIT


def require_parts(found: Recognised, *, linears: int = 9, projections: int = 1) -> None:
    """Two blocks: two norms, a GELU and an attention each, then norm and head."""
    assert len(found.layer_norms) == 5
    assert len(found.gelus) == 2
    assert len(found.linears) == linears
    assert [(a.heads, a.head_size, a.tokens, a.masked) for a in found.attentions] == [
        (3, 16, 7, False)
    ] * 2
    assert all(len(a.projections) == projections for a in found.attentions)
    assert "conv" in found.patch_embedding.lower()
    assert found.others == {}


def require_standard_form(model: ir.Model) -> None:
    left = operators(model)
    assert left["Constant"] == left["Identity"] == left["Dropout"] == left["Cast"] == 0
    assert left["LayerNormalization"] == 5
    assert left["Gelu"] == 2
    assert left["ReduceMean"] == left["Pow"] == left["Sqrt"] == left["Erf"] == 0
    names = [node.name for node in model.graph]
    assert len(set(names)) == len(names)
    assert all(names)


@pytest.mark.parametrize("how", [*TORCHSCRIPT, *DYNAMO], ids=str)
def test_timm(how: Exporting, tmp_path: Path) -> None:
    path = export(timm_vit(), tmp_path / "vit.onnx", how)
    model = normalized(path)
    require_standard_form(model)
    require_parts(recognise(model))
    require_equal(path, model)
    # What is left of shape arithmetic is the batch that the class token is repeated for.
    assert operators(model)["Shape"] == (1 if how.dynamic else 0)


@pytest.mark.parametrize("dynamic", [False, True])
def test_timm_with_attention_written_out_at_opset_12(dynamic: bool, tmp_path: Path) -> None:
    """Softmax had other semantics then, and axes were attributes."""
    path = export(plain_vit(), tmp_path / "vit.onnx", Exporting(12, dynamic=dynamic))
    model = normalized(path)
    require_standard_form(model)
    require_parts(recognise(model))
    require_equal(path, model)


@pytest.mark.parametrize(
    ("attention", "how"),
    [
        ("eager", Exporting(12)),
        ("eager", Exporting(14, dynamic=True)),
        ("sdpa", Exporting(14, dynamic=True)),
        ("sdpa", Exporting(17)),
        ("eager", Exporting(18, dynamo=True)),
        ("sdpa", Exporting(18, dynamic=True, dynamo=True)),
    ],
    ids=str,
)
def test_transformers(attention: str, how: Exporting, tmp_path: Path) -> None:
    """Queries, keys and values come from three Linear layers."""
    path = export(transformers_vit(attention), tmp_path / "vit.onnx", how)
    model = normalized(path)
    require_standard_form(model)
    require_parts(recognise(model), linears=13, projections=3)
    require_equal(path, model)


def test_all_sides_open_as_optimum_exports_them(tmp_path: Path) -> None:
    how = Exporting(14, dynamic=True)
    path = export(transformers_vit("sdpa"), tmp_path / "vit.onnx", how, dynamic_size=True)
    model = normalized(path)
    require_standard_form(model)
    require_parts(recognise(model), linears=13, projections=3)
    require_equal(path, model)


@pytest.mark.parametrize("how", [Exporting(14), Exporting(17, dynamic=True)], ids=str)
def test_torchvision_whose_linear_layers_work_on_flattened_tokens(
    how: Exporting, tmp_path: Path
) -> None:
    path = export(torchvision_vit(), tmp_path / "vit.onnx", how, size=(32, 32))
    model = normalized(path, size=(32, 32))
    found = recognise(model)
    assert len(found.linears) == 9
    assert [(a.heads, a.head_size, a.tokens) for a in found.attentions] == [(3, 16, 5)] * 2
    assert operators(model)["Gemm"] == 1, "the head alone works on a table"
    require_equal(path, model, (32, 32))


def test_below_opset_20_a_gelu_is_recognised_and_kept(tmp_path: Path) -> None:
    path = export(timm_vit(), tmp_path / "vit.onnx", Exporting(14))
    model = normalized(path, opset=17)
    assert model.graph.opset_imports[""] == 17
    left = operators(model)
    assert left["Gelu"] == 0
    assert left["Erf"] == 2
    assert left["LayerNormalization"] == 5
    require_parts(recognise(model))
    require_equal(path, model)


def test_a_later_opset_stays(tmp_path: Path) -> None:
    path = export(timm_vit(), tmp_path / "vit.onnx", Exporting(21, dynamo=True))
    assert normalized(path).graph.opset_imports[""] == 21


FAMILIES: dict[str, tuple[Callable[[], nn.Module], Size, dict[str, int]]] = {
    "biased attention": (lambda: timm_vit("beit_base_patch16_224"), SIZE, {}),
    "layer scale": (lambda: timm_vit("deit3_small_patch16_224"), SIZE, {}),
    "pooled by attention": (lambda: timm_vit("vit_base_patch16_siglip_224"), SIZE, {}),
    "quick GELU": (
        lambda: timm_vit("vit_base_patch16_clip_quickgelu_224"),
        SIZE,
        {"Sigmoid": 2},
    ),
    "windows": (
        lambda: timm_vit(
            "swin_tiny_patch4_window7_224",
            img_size=64,
            window_size=4,
            embed_dim=24,
            depths=(2,),
            num_heads=(2,),
            depth=None,
        ),
        (64, 64),
        {},
    ),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_families(name: str, dynamic: bool, tmp_path: Path) -> None:
    make, size, others = FAMILIES[name]
    path = export(make(), tmp_path / "vit.onnx", Exporting(14, dynamic=dynamic), size=size)
    model = normalized(path, size=size)
    found = recognise(model)
    assert found.others == others
    assert len(found.pooling) == (name in ("biased attention", "windows"))
    assert len(found.attentions) == (3 if name == "pooled by attention" else 2)
    assert all(a.masked == (name in ("biased attention", "windows")) for a in found.attentions)
    if name != "quick GELU":
        assert len(found.gelus) == len(found.attentions)
    require_equal(path, model, size)


def test_what_was_recognised_is_said_in_a_few_lines(tmp_path: Path) -> None:
    path = export(timm_vit(), tmp_path / "vit.onnx", Exporting(14))
    assert recognise(normalized(path)).lines == (
        "recognised: 5 LayerNorm, 2 GELU, 9 Linear, 2 attention",
        "attention: 2 blocks with 3 heads of 16, 7 tokens, Q, K and V from one Linear",
        "patch embedding: /patch_embed/proj/Conv",
        "not recognised: nothing",
    )


def test_nothing_is_recognised_in_a_graph_as_it_was_written_but_products(tmp_path: Path) -> None:
    """LayerNorm is standard only as one operator; what is missing is counted."""
    path = export(timm_vit(), tmp_path / "vit.onnx", Exporting(14))
    found = recognise(files.load(path))
    assert found.layer_norms == ()
    assert found.others["ReduceMean"] == 10
