"""One tiny source and its graph, traced once."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest
import torch
from planted import decomposed, loud_stream, written
from tiny_vits import tiny

from vitdeploy.artifacts.onnx_model import OnnxModel, with_description
from vitdeploy.export.export import ExportOptions, export
from vitdeploy.export.passes.module_names import name_nodes_by_module
from vitdeploy.export.trace import trace
from vitdeploy.graph import files
from vitdeploy.models.source import SourceModel


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def source() -> SourceModel:
    """Native 64x96; see `tiny_vits.tiny`."""
    return tiny()


@pytest.fixture(scope="session")
def grown(source: SourceModel) -> SourceModel:
    """The source at 96x160, a grid of 6x10."""
    return source.at((96, 160))


@pytest.fixture(scope="session")
def grown_graph(grown: SourceModel) -> ir.Model:
    """The right graph at 96x160. Tests change copies of it only."""
    return name_nodes_by_module(trace(grown))


@pytest.fixture(scope="session")
def exported(source: SourceModel, tmp_path_factory: pytest.TempPathFactory) -> OnnxModel:
    """The file that export writes at 96x160."""
    folder: Path = tmp_path_factory.mktemp("exported")
    return export(source, ExportOptions(resolution=(96, 160)), folder)


@pytest.fixture(scope="session")
def written_out(tmp_path_factory: pytest.TempPathFactory) -> OnnxModel:
    """A stream at 1,400 through normalizations that are written out."""
    folder = tmp_path_factory.mktemp("decomposed")
    graph = written(loud_stream(1400.0), folder)
    changed = with_description(graph, passes=("decomposed",))
    return files.save(decomposed(files.load(graph)), changed, folder / "decomposed.onnx")
