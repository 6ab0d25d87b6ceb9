"""Positions in a report: resampled ones are shown beside the trained ones, wrong ones stand out."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import onnx
import pytest
import report_samples
from onnx import numpy_helper

from vitdeploy.artifacts.onnx_model import ModelDescription, read_description
from vitdeploy.benchmarks.report.html import to_html
from vitdeploy.benchmarks.report.markdown import to_markdown
from vitdeploy.benchmarks.report.positions import (
    ReportedPositions,
    graph_of,
    reported_positions,
)
from vitdeploy.demo import assets
from vitdeploy.errors import InputError

GRAPH = assets.GRAPH


def unheard(line: str) -> None:
    raise AssertionError(line)


def of_demo(path: Path = GRAPH, checkpoint: Path | None = assets.CHECKPOINT) -> ReportedPositions:
    found = reported_positions(path, checkpoint, unheard)
    assert found is not None
    return found


def test_the_demos_positions_are_the_trained_ones_resampled() -> None:
    found = of_demo()
    assert found.figures.least_kept_cosine is not None
    assert found.figures.least_kept_cosine > 0.9
    assert found.in_words().startswith("8x8 to 12x12; ")
    drawn = base64.b64decode(found.picture.partition(",")[2])
    assert drawn.startswith(b"\x89PNG")
    assert len(drawn) < 300_000


def test_a_grid_on_its_side_is_seen(tmp_path: Path) -> None:
    model = onnx.load(GRAPH)
    held = next(t for t in model.graph.initializer if t.name == of_demo().figures.after.name)
    vectors = numpy_helper.to_array(held)
    prefix = vectors.shape[-2] - 144
    grid = vectors[:, prefix:].reshape(1, 12, 12, -1)
    turned = np.concatenate(
        [vectors[:, :prefix], grid.transpose(0, 2, 1, 3).reshape(1, 144, -1)], 1
    )
    held.CopyFrom(numpy_helper.from_array(turned, held.name))
    onnx.save(model, tmp_path / "turned.onnx")
    wrong = of_demo(tmp_path / "turned.onnx").figures.kept_cosine
    right = of_demo().figures.kept_cosine
    assert wrong is not None
    assert right is not None
    assert wrong < right - 0.2


def test_without_the_checkpoint_the_graph_alone_is_shown() -> None:
    found = of_demo(checkpoint=None)
    assert found.figures.before is None
    assert found.in_words().startswith("12x12, neighbours")
    assert found.picture


def test_the_graph_is_found_by_weights_and_size(tmp_path: Path) -> None:
    description: ModelDescription = read_description(GRAPH)
    assert graph_of(description, (tmp_path, GRAPH.parent)) == GRAPH
    assert graph_of(description, (tmp_path,)) is None


def test_both_reports_say_it_and_the_page_shows_it() -> None:
    found = of_demo()
    report = report_samples.report({}, positions=found)
    page = to_html(report)
    assert page.count(found.in_words()) == 1
    assert found.picture in page
    assert to_markdown(report).count(found.in_words()) == 1


def test_a_picture_from_elsewhere_is_refused() -> None:
    with pytest.raises(InputError, match="not embedded"):
        ReportedPositions(of_demo().figures, "https://example.org/picture.png")


def test_a_missing_graph_is_noted(tmp_path: Path) -> None:
    heard: list[str] = []
    assert reported_positions(tmp_path / "gone.onnx", None, heard.append) is None
    assert "gone.onnx" in heard[0]
