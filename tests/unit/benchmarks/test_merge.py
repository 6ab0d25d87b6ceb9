"""Reports of several devices as one; what cannot be compared is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from report_samples import CPU, JETSON, L4, accuracy, details, report

from vitdeploy.artifacts.files import from_json
from vitdeploy.benchmarks.report.html import merged_to_html
from vitdeploy.benchmarks.report.markdown import merged_to_markdown
from vitdeploy.benchmarks.report.merge import MergedReport, device_names, merge, table_rows
from vitdeploy.benchmarks.report.model import Report
from vitdeploy.benchmarks.report.write import write_merged
from vitdeploy.benchmarks.speed.machine import Conditions
from vitdeploy.errors import InputError

ON_CPU = report({"fp32": (60, accuracy(0, 0)), "int8-fp32": (25, accuracy(9, 7))})
ON_L4 = report(
    {"fp16": (4, accuracy(1, 1)), "int8-fp16": (2, accuracy(200, 10))},
    environment=L4, backend="tensorrt", targets=("sm89",), created="2026-02-03T00:00:00+00:00",
)  # fmt: skip
ON_JETSON = report(
    {"int8-fp16": (12, accuracy(8, 9))},
    environment=JETSON, backend="tensorrt", targets=("sm87",), source_throughput=(),
)  # fmt: skip


def test_devices_stand_side_by_side_each_named_for_what_it_is() -> None:
    merged = merge([ON_CPU, ON_L4, ON_JETSON], created="2026-03-04")
    assert [d.name for d in merged.devices] == [
        "A CPU @ 2.5 GHz, 4 cores", "NVIDIA L4", "Orin (nvgpu)",
    ]  # fmt: skip
    header, rows = table_rows(merged)
    assert len(rows) == 3 + 2 + 2 + 1
    found = [(r[0], r[1], r[2], r[-1]) for r in rows]
    assert ("NVIDIA L4", "TensorRT", "int8-fp16", "fail") in found
    assert ("Orin (nvgpu)", "TensorRT", "int8-fp16", "pass") in found
    assert header[4] == "Top-1"


def test_the_fastest_that_keeps_the_accuracy_is_named_not_the_fastest() -> None:
    verdict = merge([ON_CPU, ON_L4, ON_JETSON]).verdict()
    assert verdict.startswith("Of those that keep the accuracy, FP16 on TensorRT on NVIDIA L4 is")
    speed = ON_L4.rows[0].throughput[0].images_per_second()
    assert f"{speed:,.0f} images/s" in verdict
    broken = report({"int8-fp32": (25, accuracy(900, 7))})
    assert "On no device" in merge([broken, replace(broken, created="later")]).verdict()


def test_speedups_are_each_devices_own() -> None:
    _, rows = table_rows(merge([ON_CPU, ON_L4]))
    by_engine = {(r[0], r[2]): r for r in rows if r[1] != "PyTorch eager fp32"}
    on_cpu, on_gpu = (
        float(by_engine[key][9].split("x")[0])
        for key in (("A CPU @ 2.5 GHz, 4 cores", "int8-fp32"), ("NVIDIA L4", "fp16"))
    )
    assert on_cpu == pytest.approx(80 / 25, rel=0.03)
    assert on_gpu == pytest.approx(80 / 4, rel=0.03)


def test_one_machine_twice_is_told_apart_by_what_differs_first() -> None:
    other = report({"fp32": (60, None)}, backend="openvino")
    names = device_names([ON_CPU, other])
    assert names == [
        "A CPU @ 2.5 GHz, 4 cores with ONNX Runtime", "A CPU @ 2.5 GHz, 4 cores with OpenVINO",
    ]  # fmt: skip
    again = replace(ON_CPU, created="2026-09-09")
    assert device_names([ON_CPU, again])[1] == "A CPU @ 2.5 GHz, 4 cores, 2026-09-09"
    newer = replace(CPU, python="3.12.1", packages={"onnxruntime": "1.30"})
    elsewhere = replace(ON_CPU, environment=newer)
    assert device_names([ON_CPU, elsewhere, other]) == [
        "A CPU @ 2.5 GHz, 4 cores with ONNX Runtime (onnxruntime 1.20, Python 3.11.2)",
        "A CPU @ 2.5 GHz, 4 cores with ONNX Runtime (onnxruntime 1.30, Python 3.12.1)",
        "A CPU @ 2.5 GHz, 4 cores with OpenVINO",
    ]
    assert len(set(device_names([ON_CPU, ON_CPU, ON_CPU]))) == 3


def changed_model(**changes: object) -> Report:
    model = replace(ON_CPU.model, **changes)  # pyright: ignore[reportArgumentType]
    return replace(ON_CPU, model=model)


def changed_source(**changes: object) -> Report:
    source = replace(ON_CPU.model.source, **changes)  # pyright: ignore[reportArgumentType]
    return replace(ON_CPU, model=replace(ON_CPU.model, source=source))


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (changed_source(weights_digest="00" * 32), "weights differ, efefefef and 00000000"),
        (changed_model(resolution=(384, 384)), "resolution differ, 224x224 and 384x384"),
        (changed_model(output="features"), "output differ"),
        (
            changed_source(preprocessing=replace(ON_CPU.model.source.preprocessing, crop_pct=0.9)),
            "preprocessing differ",
        ),
        (replace(ON_CPU, images_digest="34" * 32), "images differ"),
        (replace(ON_CPU, images_digest="", evaluation_images=4999), "number of images differ"),
    ],
    ids=["weights", "resolution", "output", "preprocessing", "images", "number"],
)
def test_what_cannot_be_compared_is_not_merged(other: Report, what: str) -> None:
    with pytest.raises(InputError, match=what):
        merge([ON_CPU, other])


def test_a_device_that_was_only_timed_may_join() -> None:
    timed = report({"fp32": (60, None)}, images_digest="", evaluation_images=0, environment=L4)
    assert len(merge([ON_CPU, timed]).devices) == 2


def test_without_the_source_speeds_are_against_the_first_engine() -> None:
    """Stored outputs are no timing: the verdict names what was timed."""
    untimed = replace(ON_CPU, source_throughput=(), source_label="PyTorch (stored outputs)")
    first = replace(untimed.rows[1].speedups[0], baseline="ONNX Runtime fp32")
    rows = (untimed.rows[0], replace(untimed.rows[1], speedups=(first,)))
    verdict = replace(untimed, rows=rows).verdict()
    assert "as fast as ONNX Runtime fp32" in verdict
    assert "stored outputs" not in verdict
    assert "as fast as PyTorch eager fp32" in ON_CPU.verdict()


def test_one_report_is_nothing_to_merge() -> None:
    with pytest.raises(InputError, match="1 report"):
        merge([ON_CPU])


@pytest.mark.parametrize("twin", [ON_CPU, replace(ON_CPU)], ids=["file", "content"])
def test_a_report_does_not_merge_with_itself(twin: Report) -> None:
    with pytest.raises(
        InputError, match=r"reports 1 and 3 are one and the same: vit_tiny"
    ) as found:
        merge([ON_CPU, ON_L4, twin])
    assert found.value.hint == "give each report once"


def test_unsettled_timings_are_said_in_the_verdict_of_all() -> None:
    merged = merge([ON_CPU, ON_JETSON])
    assert merged.tone() == "pass"
    assert "settle" not in merged.verdict()
    drifted = replace(ON_CPU, rows=tuple(replace(row, stable=False) for row in ON_CPU.rows))
    merged = merge([drifted, replace(ON_JETSON, rows=())])
    assert merged.verdict().endswith("Its timings did not settle: time it again.")
    assert merged.tone() == "inconclusive"


def test_the_page_fetches_nothing_and_holds_every_device() -> None:
    row = replace(ON_CPU.rows[1], details=details("int8"))
    seen = (Conditions(1, (0, 1), load_average=0.5), Conditions(1, (0, 1), load_average=0.7))
    first = replace(ON_CPU, rows=(ON_CPU.rows[0], row), conditions=seen)
    merged = merge([first, ON_L4])
    page = merged_to_html(merged)
    assert not re.search(r"<(script|link|iframe|img)|(src|href)=", page)
    assert "clock not readable; load 0.70" in page
    for shown in ("NVIDIA L4</h2>", "A CPU @ 2.5 GHz, 4 cores</h2>", "single-stream", "412 MB",
                  merged.verdict().split(":")[0], "Accuracy against the source"):  # fmt: skip
        assert shown in page


def test_it_is_written_escaped_and_reads_back(tmp_path: Path) -> None:
    hostile = replace(ON_CPU, environment=replace(CPU, cpu="<script>|x", cores=1))
    merged = merge([ON_L4, hostile])
    written = write_merged(merged, tmp_path)
    text = written["json"].read_text(encoding="utf-8")
    assert from_json(text, MergedReport, origin="x") == merged
    page = written["md"].read_text(encoding="utf-8")
    assert page == merged_to_markdown(merged)
    assert "<script>" not in page
    assert "&lt;script&gt;\\|x, 1 core" in page
    assert "## NVIDIA L4" in page
    assert "<script" not in written["html"].read_text(encoding="utf-8")
    assert written["html"].name == "merged.html"
