"""Positions are found where they are added, laid out as rows and columns, and compared."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from small_graphs import exported, lively, parsed, read, saved
from torch import nn
from torch.nn import functional

from vitdeploy.errors import InputError
from vitdeploy.export.export import ExportOptions, export
from vitdeploy.graph.inspection import compared_positions, read_graph
from vitdeploy.graph.positions import PositionGrid, positions_in_checkpoint
from vitdeploy.graph.similarity import (
    kept_cosines,
    position_figures,
)
from vitdeploy.models.load import ModelRequest, seeded_random_source
from vitdeploy.preprocessing import Size

NATIVE: Size = (64, 96)
"""4x6 patches of 16 pixels."""


def planted(rows: int, columns: int, width: int = 48) -> NDArray[np.float32]:
    """(rows, columns, width) waves over the image, of other frequencies down than across."""
    down = (np.arange(rows)[:, None, None] + 0.5) / rows
    across = (np.arange(columns)[None, :, None] + 0.5) / columns
    wave = np.arange(width)[None, None, :]
    return (np.sin(2.5 * down + wave) + 0.7 * np.cos(1.3 * across + 2.3 * wave)).astype(np.float32)


def vit(size: Size = NATIVE, name: str = "vit_tiny_patch16_224", **more: Any) -> nn.Module:
    """One block of width 48, its grid planted, its prefix positions noise."""
    kwargs = {"depth": 1, "embed_dim": 48, "num_heads": 3, "num_classes": 5, "img_size": size}
    module = lively(name, **kwargs, **more)
    rows, columns = module.patch_embed.grid_size
    grid = torch.from_numpy(planted(rows, columns).reshape(-1, 48))
    with torch.no_grad():
        module.pos_embed[0, -rows * columns :] = grid
    return module


@pytest.fixture(scope="module")
def native() -> nn.Module:
    return vit()


@pytest.fixture(scope="module")
def grown(native: nn.Module) -> nn.Module:
    """The same weights at 96x160, a grid of 6x10, resampled by timm itself."""
    module = copy.deepcopy(native)
    module.set_input_size(img_size=(96, 160))
    return module


@pytest.fixture(scope="module")
def grown_graph(grown: nn.Module) -> onnx.ModelProto:
    return ir.to_proto(exported(grown, (96, 160)))


@pytest.fixture
def graph(grown_graph: onnx.ModelProto, tmp_path: Path) -> Path:
    return saved(ir.from_proto(grown_graph), tmp_path / "grown.onnx")


@pytest.fixture
def checkpoint(native: nn.Module, tmp_path: Path) -> Path:
    path = tmp_path / "native.safetensors"
    save_file(native.state_dict(), path)
    return path


def found_in(path: Path) -> PositionGrid:
    grid = read_graph(path).positions()
    assert grid is not None
    return grid


def test_the_grid_is_timms_in_rows_and_columns(graph: Path, grown: nn.Module) -> None:
    found = found_in(graph)
    expected = grown.pos_embed[0, 1:].reshape(6, 10, 48).detach().numpy()
    np.testing.assert_array_equal(found.vectors, expected)
    assert (found.name, found.size, found.prefix_tokens) == ("pos_embed", (6, 10), 1)


def compared(graph: Path, checkpoint: Path) -> tuple[float, float]:
    read = read_graph(graph)
    after = read.positions()
    assert after is not None
    before = positions_in_checkpoint(checkpoint, after, NATIVE)
    assert before.size == (4, 6)
    figures = position_figures(after, before)
    assert figures.kept_cosine is not None
    assert figures.least_kept_cosine is not None
    return figures.kept_cosine, figures.least_kept_cosine


def test_right_resampling_keeps_the_vectors(graph: Path, checkpoint: Path) -> None:
    kept, least = compared(graph, checkpoint)
    assert kept > 0.995
    assert least > 0.98


def test_a_transposed_grid_does_not(
    grown_graph: onnx.ModelProto, checkpoint: Path, tmp_path: Path
) -> None:
    """The same vectors in the order of columns: as many tokens, every other check passes."""
    model = ir.from_proto(grown_graph)
    value = model.graph.initializers["pos_embed"]
    assert value.const_value is not None
    array = value.const_value.numpy().copy()
    array[0, 1:] = array[0, 1:].reshape(6, 10, 48).transpose(1, 0, 2).reshape(60, 48)
    value.const_value = ir.Tensor(array, name="pos_embed")
    kept, least = compared(saved(model, tmp_path / "transposed.onnx"), checkpoint)
    assert kept < 0.9
    assert least < 0.6


def test_a_shift_by_the_prefix_is_seen(native: nn.Module, graph: Path, tmp_path: Path) -> None:
    """A class token taken for the first image token moves every vector by one place."""
    after = found_in(graph)
    rows = native.pos_embed[0].detach().numpy()
    shifted = PositionGrid("shifted", rows[:-1].reshape(4, 6, 48))
    assert kept_cosines(shifted, after).min() < 0.5


@pytest.mark.parametrize(
    ("name", "more", "prefix"),
    [
        ("deit_tiny_distilled_patch16_224", {}, 2),
        ("vit_tiny_patch16_224", {"reg_tokens": 4, "no_embed_class": True}, 0),
        ("vit_tiny_patch16_224", {"reg_tokens": 4}, 5),
    ],
)
def test_prefix_tokens_are_left_out(
    name: str, more: dict[str, Any], prefix: int, tmp_path: Path
) -> None:
    found = read(exported(vit(NATIVE, name, **more), NATIVE), tmp_path).positions()
    assert found is not None
    assert found.prefix_tokens == prefix
    np.testing.assert_array_equal(found.vectors, planted(4, 6))


class Patched(nn.Module):
    """Patches cut by reshaping, positions of any layout, then one layer."""

    def __init__(self, positions: torch.Tensor) -> None:
        super().__init__()
        self.embed = nn.Linear(3 * 16 * 16, 48)
        self.positions = nn.Parameter(positions)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        rows, columns = images.shape[2] // 16, images.shape[3] // 16
        cut = images.reshape(-1, 3, rows, 16, columns, 16).permute(0, 2, 4, 1, 3, 5)
        return self.embed(cut.reshape(-1, rows * columns, 768)) + self.positions


def test_patches_without_a_convolution(tmp_path: Path) -> None:
    module = Patched(torch.from_numpy(planted(4, 6).reshape(1, 24, 48)))
    found = read(exported(module, NATIVE), tmp_path).positions()
    assert found is not None
    np.testing.assert_array_equal(found.vectors, planted(4, 6))


def test_the_convolutions_grid_goes_before_the_images_aspect(tmp_path: Path) -> None:
    """Patches of 8x16 pixels: an 8x6 grid of a 64x96 image, which square patches never make."""
    found = read(exported(vit(patch_size=(8, 16)), NATIVE), tmp_path).positions()
    assert found is not None
    np.testing.assert_array_equal(found.vectors, planted(8, 6))


@pytest.mark.parametrize("layout", ["channels first", "channels last"])
def test_grids_before_flattening(layout: str, tmp_path: Path) -> None:
    grid = onnx.numpy_helper.from_array(planted(4, 6)[None], "grid")
    turned = onnx.numpy_helper.from_array(planted(4, 6).transpose(2, 0, 1)[None].copy(), "grid")
    move = "c = Identity(t)" if layout == "channels first" else "c = Transpose<perm=[0,2,3,1]>(t)"
    path = parsed(
        f"""g (float[N, 3, 64, 96] x, float[48, 3, 16, 16] w, float[48] b) => (y) {{
            t = Conv <strides = [16, 16]> (x, w, b)
            {move}
            y = Add(c, grid)
        }}""",
        tmp_path,
    )
    proto = onnx.load(path)
    proto.graph.initializer.append(turned if layout == "channels first" else grid)
    for name, shape in (("w", (48, 3, 16, 16)), ("b", (48,))):
        zeros = np.zeros(shape, np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(zeros, name))
    onnx.save(proto, path)
    np.testing.assert_array_equal(found_in(path).vectors, planted(4, 6))


# --- graphs that resample themselves -----------------------------------------------------


class Resampling(nn.Module):
    """Positions resampled in the graph, linearly, by matrices made from the image's size."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 48, 8, stride=8)
        self.register_buffer("pos_embed", torch.from_numpy(planted(4, 6)))
        self.head = nn.Linear(48, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        rows, columns = images.shape[2] // 8, images.shape[3] // 8
        grid = torch.einsum("ar,rcw->acw", matrix(rows, 4), self.get_buffer("pos_embed"))
        grid = torch.einsum("bc,acw->abw", matrix(columns, 6), grid)
        tokens = self.embed(images).flatten(2).transpose(1, 2)
        return self.head(tokens + grid.reshape(1, rows * columns, 48))


def matrix(new: Any, old: int) -> torch.Tensor:
    size = torch.scalar_tensor(new)
    centres = ((torch.arange(new) + 0.5) * old / size - 0.5).clamp(0, old - 1)
    return (1 - (centres[:, None] - torch.arange(old)[None]).abs()).clamp(min=0)


def test_what_a_dynamic_graph_adds_at_each_size(tmp_path: Path) -> None:
    model = exported(Resampling().eval(), (32, 48), dynamic=True)
    native = torch.from_numpy(planted(4, 6)).permute(2, 0, 1)[None]
    for grid in ((4, 6), (7, 5)):
        size = (8 * grid[0], 8 * grid[1])
        found = read(model, tmp_path, resolution=size).positions()
        expected = functional.interpolate(native, grid, mode="bilinear")[0].permute(1, 2, 0)
        assert found is not None
        assert found.name == "pos_embed"
        np.testing.assert_allclose(found.vectors, expected.numpy(), atol=1e-6)


def test_an_exported_range_shows_what_was_trained(tmp_path: Path) -> None:
    request = ModelRequest(
        name="vit_tiny_patch16_224",
        random_weights=True,
        model_kwargs={
            **{"depth": 1, "embed_dim": 48, "num_heads": 3, "num_classes": 5},
            "img_size": list(NATIVE),
        },
    )
    source = seeded_random_source(request, 0)
    trained = torch.cat([torch.zeros(1, 48), torch.from_numpy(planted(4, 6)).reshape(24, 48)])
    with torch.no_grad():
        for parameter in source.module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
        source.module.pos_embed.copy_(trained[None])
    options = ExportOptions(dynamic_resolution=((64, 64), (160, 160)))
    path = export(source, options, tmp_path).path
    graph = read_graph(path, resolution=(96, 160))
    after, native = graph.positions(), graph.native_positions()
    assert after is not None
    assert native is not None
    expected = source.at((96, 160)).module.pos_embed[0, 1:].reshape(6, 10, 48).detach().numpy()
    np.testing.assert_allclose(after.vectors, expected, atol=1e-5)
    np.testing.assert_array_equal(native.vectors, planted(4, 6))
    assert read_graph(path, resolution=NATIVE).native_positions() is None
    with pytest.raises(InputError, match="does not take 96x176"):
        read_graph(path, resolution=(96, 176))


# --- what cannot be read -----------------------------------------------------------------


def test_a_square_checkpoint_needs_no_description(tmp_path: Path) -> None:
    after = PositionGrid("pos_embed", planted(6, 10), 1)
    array = np.concatenate([np.zeros((1, 48), np.float32), planted(5, 5).reshape(25, 48)])
    path = tmp_path / "square.safetensors"
    save_file(
        {"pos_embed": torch.from_numpy(array)[None], "rel_pos_embed": torch.ones(48, 2)}, path
    )
    np.testing.assert_array_equal(positions_in_checkpoint(path, after, None).vectors, planted(5, 5))


def test_half_precision_checkpoints(tmp_path: Path) -> None:
    after = PositionGrid("pos_embed", planted(6, 10))
    tokens = torch.from_numpy(planted(5, 5).reshape(1, 25, 48))
    for kind in (torch.float16, torch.bfloat16):
        path = tmp_path / "half.safetensors"
        save_file({"pos_embed": tokens.to(kind)}, path)
        found = positions_in_checkpoint(path, after, None).vectors
        np.testing.assert_array_equal(found, tokens.to(kind).float().numpy().reshape(5, 5, 48))


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"head": torch.ones(3, 48)}, "found: none"),
        ({"a.pos_embed": torch.ones(1, 9, 48), "b.pos_embed": torch.ones(1, 9, 48)}, "a.pos_embed"),
        ({"pos_embed": torch.ones(1, 9, 32)}, "width 48"),
        ({"pos_embed": torch.ones(1, 7, 48)}, "fit no grid"),
    ],
)
def test_checkpoints_without_the_positions(
    tensors: dict[str, torch.Tensor], said: str, graph: Path, tmp_path: Path
) -> None:
    path = tmp_path / "other.safetensors"
    save_file(tensors, path)
    read = read_graph(graph)
    with pytest.raises(InputError, match=said):
        compared_positions(read, found_in(graph), path)


def test_pickled_checkpoints_are_not_opened(graph: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither a graph nor a safetensors"):
        compared_positions(read_graph(graph), found_in(graph), tmp_path / "weights.pth")


def external(grown_graph: onnx.ModelProto, folder: Path, location: str) -> Path:
    proto = onnx.ModelProto()
    proto.CopyFrom(grown_graph)
    path = folder / "external.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="external.data", size_threshold=0)
    moved = onnx.load(path, load_external_data=False)
    for tensor in moved.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    onnx.save(moved, path)
    return path


def test_external_data_is_read_where_it_is_needed(
    grown_graph: onnx.ModelProto, grown: nn.Module, tmp_path: Path
) -> None:
    path = external(grown_graph, tmp_path, "external.data")
    read = read_graph(path)
    expected = grown.pos_embed[0, 1:].reshape(6, 10, 48).detach().numpy()
    np.testing.assert_array_equal(found_in(path).vectors, expected)
    (file,) = read.summary.external
    data = tmp_path / "external.data"
    assert (file.location, file.size_bytes) == ("external.data", data.stat().st_size)
    inside = read_graph(saved(ir.from_proto(grown_graph), tmp_path / "inside.onnx")).summary.work
    assert read.summary.work == inside
    bare = onnx.load(path, load_external_data=False)
    del bare.graph.value_info[:]
    onnx.save(bare, tmp_path / "bare.onnx")
    assert read_graph(tmp_path / "bare.onnx").summary.work == inside
    data.unlink()
    missing = read_graph(path)
    assert missing.summary.external[0].size_bytes is None
    assert missing.summary.work == inside
    with pytest.raises(InputError, match="pos_embed cannot be read"):
        missing.positions()


def test_external_data_outside_the_folder_is_not_touched(
    grown_graph: onnx.ModelProto, tmp_path: Path
) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    path = external(grown_graph, inside, "../secret")
    (inside / "external.data").rename(tmp_path / "secret")
    read = read_graph(path)
    assert read.summary.external[0].size_bytes is None
    with pytest.raises(InputError, match="cannot be read"):
        read.positions()
