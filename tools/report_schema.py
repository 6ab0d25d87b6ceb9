"""Write docs/report.schema.json: what report.json and merged.json hold, as JSON Schema.

python tools/report_schema.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from vitdeploy.benchmarks.report.merge import MergedReport
from vitdeploy.benchmarks.report.model import Report

DESTINATION = Path(__file__).parent.parent / "docs" / "report.schema.json"


def schema() -> dict[str, Any]:
    """The schema of both records; keys that it does not name are refused, as by the reader."""
    both: Any = Report | MergedReport
    found = TypeAdapter(both).json_schema()
    for record in found["$defs"].values():
        if "properties" in record:
            record["additionalProperties"] = False
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}


def text() -> str:
    return json.dumps(schema(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    DESTINATION.write_text(text(), encoding="utf-8")
