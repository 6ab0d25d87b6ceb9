"""What a report shows of engines beside accuracy and turns: each figure, in each face."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

import pytest
from report_samples import QUIET, accuracy, details, report, timing

from vitdeploy.artifacts.files import from_json, to_json
from vitdeploy.backends import registry
from vitdeploy.benchmarks import naming
from vitdeploy.benchmarks.report import figures, wording
from vitdeploy.benchmarks.report.html import to_html
from vitdeploy.benchmarks.report.markdown import escape, table_rows, to_markdown
from vitdeploy.benchmarks.report.model import Report, SpeedDetails
from vitdeploy.benchmarks.speed.machine import Conditions
from vitdeploy.benchmarks.speed.roofline import MachinePeak

HOSTILE = "<script>alert(1)</script>|"
_TIMED = report({"fp32": (60, accuracy(0, 0)), "int8-fp32": (25, accuracy(9, 7))})
FULL = replace(
    _TIMED,
    rows=(
        replace(_TIMED.rows[0], details=details("fp32", 20.0)),
        replace(_TIMED.rows[1], details=details("int8", 10.0)),
    ),
    peak=MachinePeak(100.0, 400.0, 20.0, "ONNX Runtime"),
    conditions=(Conditions(2, (0, 1), load_average=0.31),) * 2,
    source_forms=(timing("PyTorch compiled bf16", 40, QUIET, 1),),
)


def text_of(page: str) -> str:
    return unescape(re.sub(r"<[^>]+>", "", page))


SHOWN = {
    "single-stream": "10 ms (",
    "multi-stream": "400 of 8, by vitdeploy; timings did not settle",
    "knee": "has its knee at batch 4 (400 images/s): up to batch 16 larger ones gain less than 5 %",
    "sweep": "1: 100, 2: 200, 4: 400, 8: 400, 16: 400",
    "server": "70 queries/s",
    "rates": "50 (held), 100 (too many late), 70 (held)",
    "bound": "50 ms",
    "roofline": "61 % (compute)",
    "peak memory": "412 MB",
    "of the engine": "330 MB",
    "energy": "0.215 J, 31 W",
    "whose energy": "energy by CPU package (RAPL); other work on it counts too",
    "fair": "1.42x (1.40 to 1.45) as fast as PyTorch compiled bf16",
    "files": "From files to answers",
    "payoff": "paid, 2.39x",
    "peak": "peak by ONNX Runtime: 100 GMAC/s float32, 400 GMAC/s int8; copying 20 GB/s",
    "conditions": "2 threads on cores 0, 1; governor not readable; clock not readable; load 0.31",
    "other form": "the source in another form",
}


@pytest.mark.parametrize("what", SHOWN)
def test_every_figure_stands_in_every_face(what: str) -> None:
    shown = SHOWN[what]
    assert shown in text_of(to_html(FULL))
    assert escape(shown) in to_markdown(FULL)


def test_what_was_not_measured_has_no_table() -> None:
    nothing = {"throughput": (), "accuracy": None}
    found = replace(_TIMED, rows=tuple(replace(row, **nothing) for row in _TIMED.rows))
    assert figures.sections(found) == []
    only_memory = SpeedDetails(memory=details().memory)
    (section,) = figures.sections(
        replace(found, rows=(replace(found.rows[0], details=only_memory), found.rows[1]))
    )
    assert section.header == ("Engine", "Batch", "Peak memory", "Engine and runtime")
    assert section.rows == (("FP32 on ONNX Runtime", "8", "412 MB", "330 MB"),)


def test_did_int8_pay_puts_precisions_side_by_side() -> None:
    section = figures.payoff(FULL)
    assert section.header == ("Figure", "FP32", "INT8", "Paid")
    by_figure = {row[0].removeprefix("ONNX Runtime, "): row[1:] for row in section.rows}
    assert by_figure["offline throughput"][:2] == (
        "200 images/s at batch 4", "400 images/s at batch 4",
    )  # fmt: skip
    assert by_figure["peak memory"][:2] == ("412 MB at batch 8",) * 2
    assert by_figure["ms/image at batch 8"][2].startswith("yes, 2.39x")
    assert section.findings[0].startswith("ONNX Runtime at batch 8: INT8 paid, 2.39x")


def test_a_slower_int8_is_said_not_to_pay() -> None:
    slow = report({"fp32": (25, accuracy(0, 0)), "int8-fp32": (60, accuracy(9, 7))})
    by_figure = {
        row[0].removeprefix("ONNX Runtime, "): row[1:] for row in figures.payoff(slow).rows
    }
    assert by_figure["ms/image at batch 8"][2].startswith("no, 0.4")


def test_without_int8_there_is_nothing_to_pay() -> None:
    assert figures.payoff(report({"fp32": (60, None)})).rows == ()


def unsettled(found: Report) -> Report:
    return replace(found, rows=tuple(replace(row, stable=False) for row in found.rows))


def test_timings_that_did_not_settle_are_never_shipped() -> None:
    assert FULL.verdict().endswith("ship it.")
    assert FULL.tone() == "pass"
    found = unsettled(FULL)
    assert "ship it" not in found.verdict()
    assert "(timings did not settle)" in found.verdict()
    assert found.verdict().endswith("the speed is not known. Time it again.")
    assert found.tone() == "inconclusive"
    assert 'class="verdict inconclusive"' in to_html(found)
    paid = figures.payoff(found)
    assert "INT8 is not known to pay (timings did not settle), 2." in paid.findings[0]
    assert paid.rows[0][-1].startswith("not known, timings did not settle, 2.")
    slow = unsettled(report({"fp32": (25, accuracy(0, 0)), "int8-fp32": (60, accuracy(9, 7))}))
    assert "ship it" not in slow.verdict()
    assert "INT8 was not seen to pay" in slow.verdict()


def test_an_engine_that_lost_too_much_is_not_shipped_for_unsettled_timings() -> None:
    broken = unsettled(report({"int8-fp32": (25, accuracy(300, 0))}))
    assert broken.verdict().endswith("Do not ship.")
    assert broken.tone() == "fail"


def test_throughput_over_the_batch_is_drawn_once_it_is_known_at_two() -> None:
    assert "Images/s over the batch size" not in to_html(_TIMED)
    more = timing("int8", 3, QUIET, 1, batch=1)
    row = replace(_TIMED.rows[1], throughput=(more, *_TIMED.rows[1].throughput))
    found = replace(_TIMED, rows=(row,))
    (sweep,) = figures.timed_sweeps(found)
    assert [point[0] for point in sweep.points] == [1, 8]
    assert places_of_sweeps(to_html(found)) == ["Latency and throughput"]


def test_a_sweep_of_one_engine_after_another_is_not_drawn_among_the_same_rounds() -> None:
    assert places_of_sweeps(to_html(FULL)) == ["Throughput over the batch"]
    assert "in the same rounds" not in section_of(to_html(FULL), "Throughput over the batch")


def sections_of(page: str) -> list[str]:
    return page.split("<h2")[1:]


def section_of(page: str, title: str) -> str:
    (found,) = [each for each in sections_of(page) if f">{title}</h2>" in each]
    return found


def places_of_sweeps(page: str) -> list[str]:
    """The headings of the sections that draw throughput over the batch size."""
    return [
        re.search(r">([^<]*)</h2>", each)[1]  # pyright: ignore[reportOptionalSubscript]
        for each in sections_of(page)
        if re.search(r'<svg [^>]*aria-label="Images a second over the batch', each)
    ]


def test_names_from_outside_are_escaped_in_tables() -> None:
    row = replace(FULL.rows[1], name=HOSTILE, backend=HOSTILE, precision=HOSTILE)
    twin = replace(row, details=details(HOSTILE))
    hostile = replace(FULL, rows=(row, twin), source_forms=(timing(HOSTILE, 40, QUIET, 1),))
    assert "<script" not in to_html(hostile)
    assert "<script" not in to_markdown(hostile)
    assert HOSTILE in text_of(to_html(hostile))
    widths = {len(re.findall(r"(?<!\\)\|", line)) for line in to_markdown(hostile).splitlines()
              if line.startswith("| Engine")}  # fmt: skip
    assert widths >= {len(table_rows(hostile)[0]) + 1}


def test_the_record_reads_back() -> None:
    assert from_json(to_json(FULL), Report, origin="x") == FULL


def test_every_runtime_has_a_name_that_people_use() -> None:
    titles = {name: naming.backend_title(name) for name in registry.names()}
    assert all(title != name for name, title in titles.items()), titles
    assert len(set(titles.values())) == len(titles)
    assert naming.backend_title("anothers") == "anothers"


def test_terms_are_explained_where_they_stand_and_nowhere_else() -> None:
    for page in (to_html(FULL), to_markdown(FULL).replace("\\", "")):
        for term in ("Entropy: how varied", "one-sided bound", "exact p: how likely", "(ECE): how"):
            assert page.count(term) == 1
    unlabelled = report({"fp32": (60, None), "int8-fp32": (25, None)})
    assert "(ECE)" not in to_html(unlabelled)
    told = set(dict(accuracy(9, 7).facts()))
    assert set(wording.TERMS) <= told, "a term is explained by the name of its figure"
