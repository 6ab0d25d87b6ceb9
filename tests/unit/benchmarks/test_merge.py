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
from vitdeploy.benchmarks.report.merge import (
    MergedReport,
    device_names,
    merge,
    rows_of,
    table_rows,
)
from vitdeploy.benchmarks.report.model import Report, ReportRow
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
    found = [(r[0], r[1], r[-1]) for r in rows]
    assert found[3:] == [
        ("NVIDIA L4", "PyTorch eager fp32", "the source"),
        ("", "FP16 on TensorRT (sm89)", "pass"),
        ("", "INT8 with FP16 on TensorRT (sm89)", "fail"),
        ("Orin (nvgpu)", "PyTorch eager fp32", "the source"),
        ("", "INT8 with FP16 on TensorRT (sm87)", "pass"),
    ]
    assert header[3] == "Top-1"


def test_the_fastest_that_keeps_the_accuracy_is_named_not_the_fastest() -> None:
    verdict = merge([ON_CPU, ON_L4, ON_JETSON]).verdict()
    assert verdict.startswith(
        "Of those that keep the accuracy, FP16 on TensorRT (sm89) is the fastest"
    )
    speed = ON_L4.rows[0].throughput[0].images_per_second()
    assert f"{speed:,.0f} images/s on NVIDIA L4" in verdict
    broken = report({"int8-fp32": (25, accuracy(900, 7))})
    assert "On no device" in merge([broken, replace(broken, environment=L4)]).verdict()


def test_speedups_are_each_devices_own() -> None:
    _, rows = table_rows(merge([ON_CPU, ON_L4]))
    by_engine = {row[1]: row for row in rows}
    on_cpu, on_gpu = (
        float(by_engine[engine][8].split("x")[0])
        for engine in ("INT8 on ONNX Runtime", "FP16 on TensorRT (sm89)")
    )
    assert on_cpu == pytest.approx(80 / 25, rel=0.03)
    assert on_gpu == pytest.approx(80 / 4, rel=0.03)


def test_machines_alike_are_told_apart_by_what_differs_first() -> None:
    newer = replace(CPU, python="3.12.1", packages={"onnxruntime": "1.30"})
    elsewhere = replace(ON_CPU, environment=newer)
    assert device_names([ON_CPU, elsewhere]) == [
        "A CPU @ 2.5 GHz, 4 cores (onnxruntime 1.20, Python 3.11.2)",
        "A CPU @ 2.5 GHz, 4 cores (onnxruntime 1.30, Python 3.12.1)",
    ]
    roomier = replace(CPU, memory_bytes=2 * CPU.memory_bytes)
    later = replace(ON_CPU, environment=roomier, created="2026-09-09T10:11:12+00:00")
    assert device_names([ON_CPU, later])[1] == "A CPU @ 2.5 GHz, 4 cores, 2026-09-09 10:11 UTC"
    assert len(set(device_names([ON_CPU, ON_CPU, ON_CPU]))) == 3


ON_OPENVINO = report(
    {"fp32": (50, accuracy(0, 0)), "int8-fp32": (20, accuracy(9, 7))}, backend="openvino", seed=9,
    created="2026-02-03T00:00:00+00:00",
)  # fmt: skip


class TestOneMachine:
    """Reports of one machine under the same software are of one device."""

    def test_is_one_device_with_the_engines_of_both(self) -> None:
        merged = merge([ON_CPU, ON_L4, ON_OPENVINO])
        assert [device.name for device in merged.devices] == [
            "A CPU @ 2.5 GHz, 4 cores", "NVIDIA L4",
        ]  # fmt: skip
        assert merged.heading().endswith("in 2 environments")
        (rows, _) = (
            [(cells[0], cells[5]) for _, cells in rows_of(device)] for device in merged.devices
        )
        assert [name for name, _ in rows] == [
            "PyTorch eager fp32", "FP32 on ONNX Runtime", "INT8 on ONNX Runtime",
            "PyTorch eager fp32", "FP32 on OpenVINO", "INT8 on OpenVINO",
        ]  # fmt: skip
        assert rows[0] != rows[3], "each run has its own source, against which its speed-ups are"
        for page in (merged_to_markdown(merged), merged_to_html(merged)):
            plain = page.replace("\\", "")
            assert "ONNX Runtime (report of 2026-01-02 03:04 UTC)" in plain
            assert "OpenVINO (report of 2026-02-03 00:00 UTC)" in plain

    def test_an_engine_without_a_digest_is_known_by_its_name(self) -> None:
        known = replace(
            ON_CPU, rows=tuple(replace(r, engine_digest="ab" * 32) for r in ON_CPU.rows)
        )
        later = replace(ON_CPU, created="2026-05-05T00:00:00+00:00")
        for first, second in ((ON_CPU, later), (known, later), (later, known)):
            with pytest.raises(InputError, match="both tell of FP32 on ONNX Runtime"):
                merge([first, second])
        failed = replace(later, rows=tuple(replace(r, status="failed") for r in later.rows))
        (device,) = merge([known, failed]).devices
        names = [row.name for report in device.reports for row in report.rows]
        assert len(set(names)) == 4
        assert not any(name.endswith("engine ") for name in names)

    def test_one_run_has_one_source(self) -> None:
        """Two reports of one benchmark, an engine in each."""
        halves = [replace(ON_CPU, rows=(row,)) for row in ON_CPU.rows]
        (device,) = merge(halves).devices
        assert [cells[0] for _, cells in rows_of(device)] == [
            "PyTorch eager fp32", "FP32 on ONNX Runtime", "INT8 on ONNX Runtime",
        ]  # fmt: skip

    @pytest.mark.parametrize("again", [ON_CPU.rows[1:], ON_OPENVINO.rows + ON_CPU.rows[1:]])
    def test_tells_of_an_engine_once(self, again: tuple[ReportRow, ...]) -> None:
        later = replace(ON_CPU, rows=again, created="2026-09-09")
        with pytest.raises(InputError, match=r"a\.json and c\.json both tell of INT8 on ONNX") as e:
            merge([ON_CPU, ON_L4, later], files=["a.json", "b.json", "c.json"])
        assert "--baseline" in str(e.value.hint)

    def test_tells_builds_of_one_kind_apart(self) -> None:
        builds = [
            replace(
                ON_CPU, created=f"2026-0{i}-01", rows=(replace(ON_CPU.rows[1], engine_digest=d),)
            )
            for i, d in ((1, "ab" * 32), (2, "cd" * 32))
        ]
        (device,) = merge(builds).devices
        names = [row.name for row, _ in rows_of(device) if row is not None]
        assert names == [
            "INT8 on ONNX Runtime, engine abababab", "INT8 on ONNX Runtime, engine cdcdcdcd",
        ]  # fmt: skip

    def test_its_gpu_and_its_cpu_are_two_devices(self) -> None:
        on_its_cpu = replace(ON_CPU, environment=L4)
        assert [device.name for device in merge([ON_L4, on_its_cpu]).devices] == [
            "NVIDIA L4", "Another CPU, 4 cores",
        ]  # fmt: skip


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
    with pytest.raises(InputError, match=r"report 1 and report 3 are the same: vit_tiny") as found:
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
    assert not re.search(r"<(script|link|iframe|img)|(src|href)=\"(?!#)", page)
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


def test_terms_are_explained_once() -> None:
    merged = merge([ON_CPU, ON_L4, ON_JETSON])
    for page in (merged_to_html(merged), merged_to_markdown(merged)):
        assert page.count("Entropy: how varied") == 1
