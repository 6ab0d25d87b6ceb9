"""fold and unfold in ONNX: PyTorch's numbers, at any batch, without indices of the shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.export.translations import table
from vitdeploy.graph import files

SHAPES: dict[str, dict[str, Any]] = {
    "volo": {"kernel_size": 3, "padding": 1, "stride": 2},
    "oblong": {"kernel_size": (3, 2), "padding": (1, 0), "stride": (2, 1)},
    "dilated": {"kernel_size": 2, "dilation": 2, "padding": 1},
    "remainder": {"kernel_size": 3, "stride": 4},
}
IMAGE = (3, 8, 9)


def exported(module: nn.Module, shape: tuple[int, ...]) -> Any:
    program = torch.onnx.export(
        module.eval(),
        (torch.zeros(2, *shape),),
        dynamo=True,
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        custom_translation_table=table(),
        input_names=["input"],
        verbose=False,
    )
    assert program is not None
    return program.model


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("kind", ["unfold", "fold"])
def test_columns_and_images(kind: str, name: str) -> None:
    unfold = nn.Unfold(**SHAPES[name])
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(5, *IMAGE, generator=generator)
    module: nn.Module = unfold
    if kind == "fold":
        # Sessions take four axes: columns stand there with a last one of 1.
        inputs = torch.randn(*unfold(inputs).shape, 1, generator=generator)
        module = nn.Sequential(nn.Flatten(2), nn.Fold(IMAGE[1:], **SHAPES[name]))
    model = exported(module, tuple(inputs.shape[1:]))
    held = {node.op_type for node in model.graph}
    assert not held & {"Range", "Gather", "Col2Im", "ScatterElements", "ScatterND"}
    answered = GraphSession(files.serialize(model)).run(inputs.numpy())
    np.testing.assert_allclose(answered, module(inputs).numpy(), atol=1e-6)


class Einsum(nn.Module):
    """The image against itself, in 8x9 rows and columns."""

    def __init__(self, equation: str, *, turned: bool) -> None:
        super().__init__()
        self.equation, self.turned = equation, turned

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        other = image.transpose(-1, -2) if self.turned else image
        return torch.einsum(self.equation, image, 2 * other)


@pytest.mark.parametrize(
    ("equation", "turned", "kind"),
    [
        ("B C I D, B C J D -> B C I J", False, "MatMul"),
        ("B C I J, B C J D -> B C I D", True, "MatMul"),
        ("bcdi,bcdj->bcij", False, "MatMul"),
        ("B C I J, B D I J -> B C D", False, "Einsum"),  # a sum over two axes
        ("bcid,bcjd->bcji", False, "Einsum"),  # rows and columns exchanged
        ("bcid,bcid->bcd", False, "Einsum"),  # nothing of its own in either
    ],
)
def test_batched_products_are_products(equation: str, turned: bool, kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(5, *IMAGE, generator=generator)
    module = Einsum(equation, turned=turned)
    model = exported(module, IMAGE)
    assert {node.op_type for node in model.graph} & {"MatMul", "Einsum"} == {kind}
    equations = [
        n.attributes["equation"].as_string() for n in model.graph if kind == n.op_type == "Einsum"
    ]
    assert all(one.islower() and " " not in one for one in equations)
    answered = GraphSession(files.serialize(model)).run(inputs.numpy())
    np.testing.assert_allclose(answered, module(inputs).numpy(), rtol=1e-6, atol=1e-5)
