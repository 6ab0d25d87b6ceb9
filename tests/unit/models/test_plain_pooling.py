"""Pooling in the form traced: the same numbers, and nothing of the batch size in the graph."""

from __future__ import annotations

import torch
from torch import nn

from vitdeploy.models.plain_pooling import MeanOfCells, use_plain_pooling


def traced_operators(module: nn.Module) -> set[str]:
    program = torch.onnx.export(
        module,
        (torch.zeros(2, 3, 4, 8),),
        dynamo=True,
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        verbose=False,
    )
    assert program is not None
    return {node.op_type for node in program.model.graph}


class ChannelsLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.pool(images.permute(0, 3, 1, 2)).flatten(1)


def test_a_mean_leaves_no_indices() -> None:
    module = ChannelsLast().eval()
    assert "Range" in traced_operators(module), "PyTorch traces it plainly by itself now"
    images = torch.randn(5, 3, 4, 8, generator=torch.Generator().manual_seed(0))
    expected = module(images)
    plain = use_plain_pooling(module)
    assert "Range" not in traced_operators(plain)
    torch.testing.assert_close(plain(images), expected)


def test_pooling_to_more_cells_stays() -> None:
    module = nn.Sequential(nn.AdaptiveAvgPool2d((1, 2)), nn.AdaptiveAvgPool2d((1, 1)))
    use_plain_pooling(module)
    assert type(module[0]) is nn.AdaptiveAvgPool2d
    assert type(module[1]) is MeanOfCells
