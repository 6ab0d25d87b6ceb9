"""What a stranger reads of engines and images: one name each, and who said what."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from typing import TYPE_CHECKING

import numpy as np
import pytest
from report_samples import accuracy, details, report

from vitdeploy import api
from vitdeploy.artifacts.engine import Engine
from vitdeploy.artifacts.onnx_model import Quantization
from vitdeploy.backends import registry
from vitdeploy.backends.base import BuildOptions
from vitdeploy.backends.options import OnnxRuntimeOptions
from vitdeploy.benchmarks.naming import engine_name, engine_names
from vitdeploy.benchmarks.report import flips, wording
from vitdeploy.benchmarks.report.assemble import Evidence, assemble
from vitdeploy.benchmarks.report.html import merged_to_html, to_html
from vitdeploy.benchmarks.report.markdown import merged_to_markdown, to_markdown
from vitdeploy.benchmarks.report.merge import merge
from vitdeploy.benchmarks.report.model import Flip, Report
from vitdeploy.benchmarks.speed.engines import measure_engines
from vitdeploy.benchmarks.speed.throughput import TimingConfig

if TYPE_CHECKING:
    from bench_model import Bench

PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGA"
    "WjR9awAAAABJRU5ErkJggg=="
)
_FOUND = accuracy(3, 2, n=200)


def flip(true: str | None, source: str, engine: str) -> Flip:
    return Flip("INT8 on ONNX Runtime", "17.png", PIXEL, true, source, engine)


def full() -> Report:
    """Measured under other names (of sessions, of precisions) than the report gives to engines."""
    timed = report({"fp32": (60, accuracy(0, 0, n=200)), "int8-fp32": (25, _FOUND)})
    return replace(
        timed,
        rows=tuple(
            replace(row, details=details("a session"), engine_digest=f"{i}" * 64)
            for i, row in enumerate(timed.rows)
        ),
        quantization=Quantization(
            "min-max", 256, (), ("/fc1",), {"/a": "adds", "/head": "last", "/b": "adds"}
        ),
        flips=(flip("cat", "cat", "dog"),),
    )


def text_of(page: str) -> str:
    return unescape(re.sub(r"<style.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL))


PAGES = {
    "html": lambda: text_of(to_html(full())),
    "markdown": lambda: to_markdown(full()),
    "merged html": lambda: text_of(merged_to_html(merge([full(), on_openvino()]))),
    "merged markdown": lambda: merged_to_markdown(merge([full(), on_openvino()])),
}


def on_openvino() -> Report:
    return report({"int8-fp32": (20, _FOUND)}, backend="openvino")


@pytest.mark.parametrize("page", PAGES)
def test_an_engine_has_one_name_on_a_page(page: str) -> None:
    """Neither the runtime's package with the precision, nor a session's name, nor a file's."""
    text = PAGES[page]()
    for other in ("int8-fp32", "onnxruntime fp32", "a session", "ONNX Runtime fp32"):
        assert other not in text
    assert "INT8 on ONNX Runtime" in text
    assert "FP32 on ONNX Runtime" in text


def test_charts_too() -> None:
    page = to_html(full())
    drawn = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    latency = [svg for svg in drawn if "Latency of each engine" in svg]
    assert len(latency) == 1
    for name in ("PyTorch eager fp32", "FP32 on ONNX Runtime", "INT8 on ONNX Runtime"):
        assert f">{name}</text>" in latency[0]


def test_names_say_for_what_an_engine_was_built() -> None:
    assert engine_name("tensorrt-rtx", "int8-fp16", ("sm86", "sm89")) == (
        "INT8 with FP16 on TensorRT-RTX (sm86, sm89)"
    )
    assert engine_name("openvino", "fp32", ("cpu",)) == "FP32 on OpenVINO"


@pytest.fixture(scope="module")
def twins(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> list[Engine]:
    """Two engines of one graph and runtime, optimized in different ways."""
    folder = tmp_path_factory.mktemp("twins")
    backend = registry.get("onnxruntime")
    options = [OnnxRuntimeOptions(graph_optimization=level) for level in ("all", "none")]
    return [
        api.build_engine(bench.model, backend, folder, BuildOptions(onnxruntime=each))
        for each in options
    ]


def test_of_real_engines_timings_and_rows_have_the_same_names(twins: list[Engine]) -> None:
    names = engine_names(twins)
    digests = [engine.manifest.engine_digest for engine in twins]
    expected = [f"FP32 on ONNX Runtime, engine {digest[:8]}" for digest in digests]
    assert names == expected
    config = TimingConfig(
        warmups=1, min_round_ms=0, window=1, max_seconds=0.01, accept_unstable=True
    )
    timed = measure_engines(
        twins, [api.load_engine(engine) for engine in twins], [], batch_sizes=[1], config=config
    )
    assert [m.name for m in timed.comparisons[0].measurements] == expected
    found = assemble(Evidence(engines=twins, evaluations={}, benchmark=timed))
    assert [row.name for row in found.rows] == expected
    assert [row.file for row in found.rows] == [engine.path.name for engine in twins]
    assert f"{twins[0].path.name}, sha256 {digests[0]}" in text_of(to_html(found))


class TestFlips:
    @pytest.mark.parametrize(
        ("found", "outcome"),
        [
            (flip("cat", "cat", "dog"), "only the source is right"),
            (flip("cat", "dog", "cat"), "only the engine is right"),
            (flip("cat", "dog", "cow"), "both are wrong"),
            (flip("dog, cat", "cat, dog", "cat"), "only the source is right"),
            (flip("tench, Tinca tinca", "tench, Tinca tinca", "eel"), "only the source is right"),
            (flip(None, "dog", "cow"), "other answers"),
        ],
    )
    def test_say_who_is_right(self, found: Flip, outcome: str) -> None:
        assert found.outcome == outcome

    def test_are_told_on_every_page_with_labels_for_each_answer(self) -> None:
        page = text_of(to_html(full()))
        caption = r"Only the source is right\s+True\s+cat\s+Source\s+cat\s+Engine\s+dog\s+17\.png"
        assert re.search(caption, page)
        assert "| 17.png | only the source is right | cat | cat | dog |" in to_markdown(full())

    def test_are_counted(self) -> None:
        (found,) = flips.flips_by_engine(full())
        assert found.about == (
            "5 of 200 images: on 3 only the source is right, on 2 only the engine, on 0 neither. "
            "The first 1 are shown."
        )
        assert _FOUND.images - round(_FOUND.agreement * _FOUND.images) == 5

    def test_of_every_engine_stand_under_its_name(self, bench: Bench, twins: list[Engine]) -> None:
        """A source that answers each image as the one before was answered flips many."""
        few = bench.images.take(range(0, 600, 10))
        baseline = api.Baseline("shifted", np.roll(bench.answers[::10], 1, axis=0), None, None)
        unlabelled = replace(few, labels=(), items=tuple(replace(i, label=None) for i in few.items))
        found = {
            engine.manifest.engine_digest: api.evaluate(engine, baseline, unlabelled)
            for engine in twins
        }
        made = assemble(Evidence(engines=twins, evaluations=found))
        assert [each.engine for each in flips.flips_by_engine(made)] == engine_names(twins)


def test_nodes_kept_for_one_reason_stand_together() -> None:
    text = to_markdown(full())
    assert "| /a ... /b | 2 | adds |" in text
    assert "| /head | 1 | last |" in text
    assert re.search(r"2: adds\s+/a\s+/b\s+1: last\s+/head", text_of(to_html(full())))


@pytest.mark.parametrize(
    ("value", "shown"),
    [(19.0, "19.0"), (3.5, "3.50"), (0.0123, "0.0123"), (99.96, "100"), (1234.5, "1,234")],
)
def test_figures_of_one_column_have_three_digits(value: float, shown: str) -> None:
    assert wording.significant(value) == shown


def test_times_of_day_are_for_people() -> None:
    assert wording.day("2026-11-30T20:45:25+00:00") == "2026-11-30 20:45 UTC"
    assert wording.day("2026-11-30T20:45:25+02:00") == "2026-11-30 20:45 +0200"
    assert wording.day("later") == "later"
