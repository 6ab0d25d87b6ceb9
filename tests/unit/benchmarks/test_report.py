from __future__ import annotations

import base64
import io
import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitdeploy.artifacts.onnx_model import (
    FallbackStep,
    ModelDescription,
    Quantization,
    Verification,
)
from vitdeploy.artifacts.source import SourceDescription
from vitdeploy.benchmarks.accuracy.classes import AccuracyComparison, compare
from vitdeploy.benchmarks.report.html import PLOTS_LEFT_OUT, to_html
from vitdeploy.benchmarks.report.markdown import escape, table_rows, to_markdown
from vitdeploy.benchmarks.report.model import Flip, Report, ReportRow
from vitdeploy.benchmarks.report.read import read_report
from vitdeploy.benchmarks.report.write import write_report
from vitdeploy.benchmarks.speed.throughput import Measurement, Speedup
from vitdeploy.environment import Environment
from vitdeploy.errors import InputError
from vitdeploy.preprocessing import Preprocessing

HOSTILE = "<script>alert(1)</script>"
_PIXELS = (np.arange(28 * 28).reshape(28, 28) % 255).astype(np.uint8)


def thumbnail() -> str:
    buffer = io.BytesIO()
    Image.fromarray(_PIXELS).save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def accuracy(lost: int, gained: int, n: int = 10_000, labelled: bool = True) -> AccuracyComparison:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, n)
    source, engine = labels.copy(), labels.copy()
    source[:gained] = (labels[:gained] + 1) % 10
    engine[gained : gained + lost] = (labels[gained : gained + lost] + 1) % 10
    wrong = slice(n - n // 10, n)
    source[wrong] = engine[wrong] = (labels[wrong] + 2) % 10
    logits = [(4 * np.eye(10)[classes]).astype(np.float32) for classes in (source, engine)]
    return compare(logits[0], logits[1], labels if labelled else None)


def timing(name: str, ms: float, batch: int = 8) -> Measurement:
    samples = ms * np.random.default_rng(1).lognormal(0, 0.03, 24)
    return Measurement(name, batch, 3, 1, tuple(samples.tolist()))


def row(name: str, precision: str, ms: float, found: AccuracyComparison, **more) -> ReportRow:
    ratio = 800 / ms
    speedup = Speedup(name, "torch", 8, ratio, 0.95 * ratio, 1.05 * ratio)
    return ReportRow(
        name=name, backend="onnxruntime", precision=precision, status="ok", size_bytes=86_567_656,
        accuracy=found, throughput=(timing(name, ms),), speedups=(speedup,),
        graph_digest="ab" * 32, engine_digest="cd" * 32, **more,
    )  # fmt: skip


INT8 = row("INT8 on ONNX Runtime", "int8-fp32", 381, accuracy(12, 7))
FP32 = row("FP32 on ONNX Runtime", "fp32", 700, accuracy(0, 0))
BUILT = ReportRow(
    name="INT8 with FP16 on TensorRT-RTX (sm86, sm89)", backend="tensorrt-rtx",
    precision="int8-fp16", status="built", note="no NVIDIA GPU on this machine",
    size_bytes=45_000_000, targets=("sm86", "sm89"),
)  # fmt: skip
FAILED = ReportRow(
    name="FP16 on OpenVINO", backend="openvino", precision="fp16", status="failed",
    note="the runtime refused node /blocks.3/attn/MatMul",
)  # fmt: skip


def report(*rows: ReportRow, name: str = "vit_base_patch16_224", **changes) -> Report:
    source = SourceDescription(
        name, "timm", "vit_base_patch16_224", {"num_classes": 10}, (224, 224), 3,
        tuple(f"class {i}" for i in range(10)), "ef" * 32, Preprocessing(crop_pct=0.875),
    )  # fmt: skip
    verification = Verification(64, (1, 3), 3.1e-6, 1.0, True)
    plan = Quantization(
        "min-max", 256, ("00" * 32,), tuple(f"/blocks.{i}/mlp/fc1/MatMul" for i in range(12)),
        {"/patch_embed/proj/Conv": "the first layer", "/head/Gemm": "the last layer"},
    )  # fmt: skip
    given = {
        "title": f"{name} at 384x384",
        "created": "2025-01-02T03:04:05+00:00",
        "model": ModelDescription(source, (384, 384), "fp32", 17, "images", "logits"),
        "source_label": "PyTorch eager FP32",
        "native_resolution": (224, 224),
        "native_top1": 0.9051,
        "source_top1": 0.8993,
        "evaluation_images": 10_000,
        "evaluation_root": "data/val",
        "unreadable": ("broken/17.jpg",),
        "verification": verification,
        "quantization": plan,
        "source_throughput": (timing("PyTorch eager FP32", 800),),
        "flips": tuple(
            Flip("INT8 on ONNX Runtime", f"val/cat/{i}.png", thumbnail(), "cat", "cat", "dog")
            for i in range(4)
        ),
        "environment": Environment(
            "Linux 6.1 x86_64", "A CPU @ 2.5 GHz", ("avx2", "avx512_vnni"), 2, 16 * 10**9,
            "3.11.2", {"onnxruntime": "1.20", "numpy": "2.1"},
        ),
        "notes": ("Timed with 2 threads.",),
    }  # fmt: skip
    return Report(**{**given, **changes}, rows=rows)


FULL = report(INT8, FP32, BUILT, FAILED)


class Page(HTMLParser):
    """What a browser would see: tags with attributes, and the text between."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_written_files_read_back(tmp_path: Path) -> None:
    paths = write_report(FULL, tmp_path / "new")
    assert {kind: path.name for kind, path in paths.items()} == {
        "json": "report.json", "md": "report.md", "html": "report.html",
    }  # fmt: skip
    assert read_report(paths["json"]) == FULL
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == sorted(
        p.name for p in paths.values()
    )


def test_text_that_is_no_utf8_is_spelled_out_in_all_files(tmp_path: Path) -> None:
    paths = write_report(replace(FULL, title="x\udce9"), tmp_path)
    assert read_report(paths["json"]).title == "x\\udce9"
    for kind in ("md", "html"):
        assert "x\\udce9" in paths[kind].read_text(encoding="utf-8").replace("\\\\", "\\")


@pytest.mark.parametrize("place", ["", "rows", "environment"])
def test_unknown_keys_are_refused(tmp_path: Path, place: str) -> None:
    path = write_report(FULL, tmp_path)["json"]
    content = json.loads(path.read_text())
    inside = content[place] if place else content
    (inside[0] if place == "rows" else inside)["surprise"] = 1
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match="surprise"):
        read_report(path)


def test_another_schema_version_is_refused(tmp_path: Path) -> None:
    path = write_report(replace(FULL, schema_version=2), tmp_path)["json"]
    with pytest.raises(InputError, match="schema_version 2"):
        read_report(path)


def test_the_table_shows_every_row() -> None:
    header, rows = table_rows(FULL)
    assert header[5:7] == ("ms/image at batch 8", "Speed-up (95 % interval) at batch 8")
    assert all(len(cells) == len(header) for cells in rows)
    source, int8, _, built, failed = rows
    assert source[0] == "PyTorch eager FP32"
    assert int8[:2] == ("INT8 on ONNX Runtime", "86.6")
    assert int8[4].startswith("+0.05 (<= 0.1")
    assert int8[6] == "2.1x (2.0 to 2.2)"
    assert int8[7] == "pass"
    assert built[0] == "INT8 with FP16 on TensorRT-RTX (sm86, sm89)"
    assert built[2:7] == ("–",) * 5  # noqa: RUF001
    assert built[7] == "built: no NVIDIA GPU on this machine"
    assert failed[7] == "failed: the runtime refused node /blocks.3/attn/MatMul"


def test_markdown_holds_failed_and_built_rows_in_one_table() -> None:
    text = to_markdown(replace(FULL, rows=(*FULL.rows, replace(FAILED, note="a | b\n<b>"))))
    first = text[: text.index("## ")]
    table = [line for line in first.splitlines() if line.startswith("|")]
    assert len(table) == 2 + 1 + 5
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table} == {len(table_rows(FULL)[0]) + 1}
    assert "built: no NVIDIA GPU on this machine" in text
    assert "failed: the runtime refused node" in text
    assert "<b>" not in text


def test_verdict_ships_what_is_faster_and_as_good() -> None:
    bound = INT8.accuracy.drop_upper_points if INT8.accuracy else None
    whole = report(INT8, FP32, BUILT)
    assert FULL.verdict() == f"{whole.verdict()} FP16 on OpenVINO failed here."
    assert whole.verdict() == (
        "INT8 on ONNX Runtime is 2.1x (2.0 to 2.2) as fast as PyTorch eager FP32 at batch 8 and "
        f"loses 0.05 points (at most {bound:.2f} with 95 % confidence): ship it."
    )


def test_verdict_says_when_int8_did_not_pay() -> None:
    slow = row("INT8 on ONNX Runtime", "int8-fp32", 900, accuracy(12, 7))
    assert report(slow).verdict().startswith("INT8 on ONNX Runtime did not pay: ")
    both = report(slow, FP32).verdict()
    assert both.startswith("FP32 on ONNX Runtime is 1.1x (1.1 to 1.2) as fast")
    assert "ship it. INT8 did not pay: INT8 on ONNX Runtime is 0.9x" in both


def test_int8_is_said_not_to_pay_only_where_that_is_known() -> None:
    unsure = row("INT8 on ONNX Runtime", "int8-fp32", 100, accuracy(1, 1, 200))
    assert "INT8 was not seen to pay: INT8 on ONNX Runtime is" in report(unsure, FP32).verdict()
    untimed = replace(INT8, throughput=(), speedups=())
    assert "INT8 was not seen to pay: INT8 on ONNX" in report(untimed, FP32).verdict()
    worse = replace(untimed, accuracy=accuracy(300, 0))
    assert "INT8 did not pay: INT8 on ONNX Runtime loses" in report(worse, FP32).verdict()


def test_a_fast_engine_that_lost_accuracy_is_never_shipped() -> None:
    broken = row("int8", "int8-fp32", 100, accuracy(300, 0))
    text = report(broken).verdict()
    assert text.startswith("No engine is good enough: ")
    assert text.endswith("Do not ship.")
    assert report(broken, INT8).verdict() == report(INT8).verdict()


def test_verdict_without_enough_images_or_labels_or_engines() -> None:
    few = row("int8", "int8-fp32", 381, accuracy(0, 0, n=200))
    verdict = report(few).verdict()
    assert verdict.startswith("Inconclusive: about 539 images needed.")
    assert verdict.endswith(" Evaluate again on that many images, or allow more with --max-drop.")
    unlabelled = row("int8", "int8-fp32", 381, accuracy(3, 0, labelled=False))
    assert "agrees with it on 99.97 % of images" in report(unlabelled).verdict()
    assert report(BUILT, FAILED).verdict() == (
        "No engine was compared with PyTorch eager FP32 (1 built here for other machines, "
        "1 failed): nothing is proven yet."
    )
    waiting = replace(BUILT, targets=("cpu",), note="neither evaluated nor timed")
    timed = replace(INT8, accuracy=None)
    assert "(2 not evaluated yet)" in report(waiting, timed).verdict()
    unmeasured = replace(INT8, throughput=(), speedups=())
    assert report(unmeasured).verdict().endswith("the accuracy holds, the speed was not compared.")


def test_html_escapes_what_others_wrote() -> None:
    hostile = replace(INT8, name=HOSTILE, note=HOSTILE, throughput=(timing(HOSTILE, 381),))
    found = to_html(
        report(
            hostile, name=HOSTILE, evaluation_root=HOSTILE, notes=(HOSTILE,),
            flips=(Flip(HOSTILE, f'" onerror="x{HOSTILE}', thumbnail(), HOSTILE, HOSTILE, "a"),),
        )
    )  # fmt: skip
    page = Page(found)
    assert "script" not in [tag for tag, _ in page.tags]
    assert not any(key.startswith("on") for _, attributes in page.tags for key in attributes)
    assert HOSTILE in page.text


def test_html_fetches_nothing_and_can_be_read_by_everyone() -> None:
    text = to_html(FULL)
    page = Page(text)
    urls = re.findall(r"(?:https?:)?//[\w.]+", re.sub(r'xmlns(:\w+)?="[^"]*"', "", text))
    assert urls == []
    assert "<!DOCTYPE svg" not in text
    for tag, attributes in page.tags:
        assert tag not in ("link", "script", "iframe", "object")
        for key in ("src", "href", "xlink:href"):
            value = attributes.get(key)
            assert value is None or value.startswith(("data:image/png;base64,", "#"))
    assert ("html", {"lang": "en"}) in page.tags
    drawn = [attributes for tag, attributes in page.tags if tag == "svg"]
    assert len(drawn) >= 2
    assert all(svg.get("role") == "img" and svg.get("aria-label") for svg in drawn)
    assert all(attributes.get("alt") for tag, attributes in page.tags if tag == "img")
    assert page.text.index(FULL.verdict()) < page.text.index("\nEngines\n")


def test_html_is_the_same_each_time() -> None:
    assert to_html(FULL) == to_html(FULL)


def test_without_matplotlib_the_page_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert PLOTS_LEFT_OUT in Page(to_html(FULL)).text
    without_timings = report(replace(INT8, throughput=()), source_throughput=())
    assert PLOTS_LEFT_OUT not in Page(to_html(without_timings)).text


def test_a_thumbnail_must_be_embedded() -> None:
    with pytest.raises(InputError, match="not embedded"):
        Flip("a", "b.png", "http://example.org/b.png", None, "cat", "dog")


def searched() -> Report:
    """Of an engine that needed two nodes back in float."""
    steps = (
        FallbackStep(0, 1000, 0.951, 1.93, 2.87, "fail", 212.4),
        FallbackStep(1, 1000, 0.982, 0.61, 1.12, "fail", 208.0),
        FallbackStep(2, 1000, 0.996, 0.04, 0.21, "pass", 203.9),
        FallbackStep(2, 1000, 0.995, 0.08, 0.27, "pass", 205.1, held_out=True),
    )
    found = report(row("ONNX Runtime", "int8-fp32", 1.0, accuracy(2, 1)))
    assert found.quantization is not None
    return replace(found, quantization=replace(found.quantization, fallback=steps))


def test_the_search_for_layers_in_float_is_a_table_and_a_plot() -> None:
    page, text = to_html(searched()), to_markdown(searched())
    for shown in (
        "+1.93 (&lt;= 2.87) points",
        "1000 (held out)",
        "212.4",
        "Layers taken back to float",
    ):
        assert shown in page
    assert "| 2 | 1000 (held out) | 99.50 % | +0.08 (&lt;= 0.27) points | 205.1 | pass |" in text
    assert page.count("<svg") == to_html(report(*searched().rows)).count("<svg") + 1
    assert "Layers taken back to float" not in to_html(report(*searched().rows))


def test_control_characters_do_not_reach_a_terminal() -> None:
    written = escape("a\x1b[2Jb\x9bc\td\ne")
    assert written == "a\ufffd\\[2Jb\ufffdc d e"
