"""docs/report.schema.json is of the records as they are, and real records keep it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from report_samples import L4, accuracy, details, report

from tools.report_schema import DESTINATION, schema
from vitdeploy.artifacts.files import to_json
from vitdeploy.benchmarks.report.merge import merge

_TIMED = report({"fp32": (60, accuracy(0, 0)), "int8-fp32": (25, accuracy(9, 7))})
ONE = replace(_TIMED, rows=tuple(replace(row, details=details()) for row in _TIMED.rows))
MANY = merge([ONE, report({"fp16": (4, accuracy(1, 1))}, environment=L4)])
KEPT = json.loads(DESTINATION.read_text(encoding="utf-8"))
VALIDATOR = Draft202012Validator(KEPT)


def keys(of: dict[str, Any]) -> dict[str, Any]:
    """What each record holds, and must hold; wordings differ between versions of pydantic."""
    return {
        name: (sorted(record.get("properties", ())), sorted(record.get("required", ())))
        for name, record in of["$defs"].items()
    }


def test_the_kept_schema_is_of_the_records_as_they_are() -> None:
    assert keys(KEPT) == keys(schema()), "run python tools/report_schema.py"


@pytest.mark.parametrize("record", [ONE, MANY], ids=["one", "many"])
def test_real_records_keep_it(record: Any) -> None:
    content = json.loads(to_json(record))
    assert VALIDATOR.is_valid(content), next(VALIDATOR.iter_errors(content)).message
    assert not VALIDATOR.is_valid({**content, "surprise": 1})
    assert not VALIDATOR.is_valid({k: v for k, v in content.items() if k != "title"})
