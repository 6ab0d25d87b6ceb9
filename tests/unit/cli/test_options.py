"""What options take and refuse: every number has bounds, and none of them is NaN."""

from __future__ import annotations

from typing import Any

import click
import pytest
from click.testing import CliRunner

from vitdeploy.cli import evaluate
from vitdeploy.cli.options import (
    LARGEST_BATCH,
    LONGEST_SIDE,
    SEED,
    BatchRange,
    Finite,
    JsonObject,
    Numbers,
    Resolution,
    ResolutionSpan,
)

MANY_DIGITS = "9" * 5000
"""int() refuses to read more than 4300 digits, with a ValueError of its own."""


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Resolution(), "384", (384, 384)),
        (Resolution(), "384x512", (384, 512)),
        (Resolution(), str(LONGEST_SIDE), (LONGEST_SIDE, LONGEST_SIDE)),
        (ResolutionSpan(), "224:384x512", ((224, 224), (384, 512))),
        (BatchRange(), "8", (8, 8, 8)),
        (BatchRange(), "1:8:64", (1, 8, 64)),
        (BatchRange(), f"1:1:{LARGEST_BATCH}", (1, 1, LARGEST_BATCH)),
        (Numbers(int), "1,8,32", (1, 8, 32)),
        (Numbers(int, most=8), "8", (8,)),
        (Numbers(float), "0.5,1", (0.5, 1.0)),
        (Numbers(float, zero=True, most=1), "0,0.485,1", (0.0, 0.485, 1.0)),
        (Finite(0, 1), "0.25", 0.25),
        (Finite(min=1), "1e3", 1000.0),
        (SEED, "0", 0),
        (SEED, str(2**32 - 1), 2**32 - 1),
        (JsonObject(), '{"a": 6, "b": [1.5, {"c": null}]}', {"a": 6, "b": [1.5, {"c": None}]}),
    ],
)  # fmt: skip
def test_taken(kind: click.ParamType, text: str, value: Any) -> None:
    assert kind.convert(text, None, None) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *(
            (Resolution(), text)
            for text in ("0", "-1", "384x", "1x2x3", "big", "", "3.5", "nan", MANY_DIGITS,
                         str(LONGEST_SIDE + 1), f"32x{MANY_DIGITS}", "1²")
        ),
        *((ResolutionSpan(), text) for text in ("224", "1:2:3", f"224:{MANY_DIGITS}")),
        *(
            (BatchRange(), text)
            for text in ("0", "8:1", "8:4:16", "1:2:", MANY_DIGITS, f"1:8:{MANY_DIGITS}",
                         str(LARGEST_BATCH + 1), "1²")
        ),
        *(
            (Numbers(int, most=8192), text)
            for text in ("", "1,", "0", "-1", "1.5", "8193", "32,99999999999999", MANY_DIGITS)
        ),
        *(
            (Numbers(float), text)
            for text in ("inf", "inf,1", "nan", "1,nan", "-inf", "0", "1e400", MANY_DIGITS)
        ),
        *((Numbers(float, zero=True, most=1), text) for text in ("nan", "123.675", "-0.1", "inf")),
        *((Finite(0, 1), text) for text in ("nan", "-nan", "inf", "1.5", "-0.1", "x")),
        *((Finite(min=0, min_open=True), text) for text in ("nan", "inf", "1e400", "0")),
        *((SEED, text) for text in ("-1", str(2**32), "1" + 23 * "0", "1e3", MANY_DIGITS)),
        *(
            (JsonObject(), text)
            for text in ("[1]", "null", "{", '{"drop_rate": NaN}', '{"a": [Infinity]}',
                         '{"a": -Infinity}', '{"a": 1e999}', "[" * 100_000, '{"a":' * 100_000,
                         f'{{"a": {MANY_DIGITS}}}')
        ),
    ],
)  # fmt: skip
def test_refused_in_one_short_line(kind: click.ParamType, text: str) -> None:
    with pytest.raises(click.BadParameter) as caught:
        kind.convert(text, None, None)
    # click's own types quote the whole value; a terminal wraps that, and ours stay short.
    own = type(kind).__module__.startswith("vitdeploy") and not isinstance(kind, Finite)
    assert not own or len(caught.value.message) < 200


@pytest.mark.parametrize("option", [["--json"], ["--save-reference", "a.npz"]])
def test_what_holds_one_result_is_refused_for_several_engines(option: list[str]) -> None:
    done = CliRunner().invoke(evaluate.command, ["a.engine", "b.engine", *option])
    assert done.exit_code == 2
    assert "are for one engine at a time" in done.output
