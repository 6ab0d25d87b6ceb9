"""Records in JSON: strict when read, and what they hold is checked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from artifact_samples import description

from vitdeploy.artifacts.files import from_json, to_json
from vitdeploy.artifacts.onnx_model import ModelDescription, ResolutionRange, Verification
from vitdeploy.errors import InputError


@dataclass(frozen=True)
class Sample:
    name: str
    sizes: tuple[int, ...]
    note: str = ""
    large: bool = False
    share: float = 0.5
    extra: dict[str, Any] = field(default_factory=dict)


RANGE = ResolutionRange((32, 32), (64, 64), (16, 16))
CHECKED = Verification(4, (1, 2), 1e-6, 1.0, True)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every value below `value` with the keys that lead to it."""
    children = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in children:
        yield (*path, key), child
        if isinstance(child, dict | list):
            yield from leaves(child, (*path, key))


class TestJson:
    def test_round_trip(self) -> None:
        whole = description(passes=("a", "b"))
        assert from_json(to_json(whole), ModelDescription, origin="x") == whole

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ('{"name": "a", "sizes": [1], "colour": 3}', "colour"),
            ('{"name": "a"}', "sizes"),
            ('{"name": "a", "sizes": ["many"]}', "sizes"),
            ('{"name": "a", "sizes": 5}', "sizes"),
            ("[1, 2]", "Sample"),
            ("null", "Sample"),
            ('"text"', "Sample"),
            ("3", "Sample"),
            ('{"name": "a", ', "not valid JSON"),
            ("", "not valid JSON"),
            ('{"name": "a", "sizes": ["1"]}', "sizes"),
            ('{"name": "a", "sizes": [1.0]}', "sizes"),
            ('{"name": "a", "sizes": [true]}', "sizes"),
            (f'{{"name": "a", "sizes": [{10**400}]}}', "sizes"),
            ('{"name": "a", "sizes": "12"}', "sizes"),
            ('{"name": "a", "sizes": {"1": 2}}', "sizes"),
            ('{"name": 5, "sizes": []}', "name"),
            ('{"name": "a", "sizes": [], "large": "false"}', "large"),
            ('{"name": "a", "sizes": [], "large": 0}', "large"),
            ('{"name": "a", "sizes": [], "share": "0.5"}', "share"),
            ('{"name": "a", "sizes": [], "share": true}', "share"),
            ('{"name": "a", "sizes": [], "share": NaN}', "nan is not a finite"),
            ('{"name": "a", "sizes": [], "extra": {"deep": [-Infinity]}}', "inf is not a finite"),
            ('{"name": "a", "sizes": [], "share": 1e999}', "inf is not a finite"),
            ('{"name": "a", "sizes": [], "extra": [1]}', "extra"),
            ("[" * 100_000, "not valid JSON"),
            (f'{{"extra": {"[" * 80}{"]" * 80}}}', "nested"),
            ("9" * 5000, "not valid JSON"),
        ],
    )
    def test_what_does_not_fit_is_refused_by_name(self, text: str, said: str) -> None:
        with pytest.raises(InputError, match=said) as caught:
            from_json(text, Sample, origin="here.json")
        assert str(caught.value).startswith("here.json")
        assert caught.value.hint

    def test_whole_numbers_may_stand_for_fractions(self) -> None:
        sample = from_json('{"name": "a", "sizes": [1], "share": 1}', Sample, origin="x")
        assert sample == Sample("a", (1,), share=1.0)
        assert type(sample.share) is float

    @pytest.mark.parametrize("lone", ["\\ud800", "\\udcff"])
    def test_half_surrogate_pairs_are_spelled_out(self, lone: str) -> None:
        text = f'{{"name": "x{lone}y", "sizes": [], "extra": {{"{lone}": ["{lone}"]}}}}'
        sample = from_json(text, Sample, origin="x")
        assert sample.name == f"x{lone}y"
        assert sample.extra == {lone: [lone]}
        assert from_json(to_json(sample), Sample, origin="x") == sample

    def test_whole_pairs_stay(self) -> None:
        sample = Sample("caf\u00e9 \U0001f600", ())
        assert from_json(to_json(sample), Sample, origin="x") == sample

    def test_every_value_of_another_type_is_refused_wherever_it_stands(self) -> None:
        """Each value of a real record in turn becomes something else: refused, or still itself."""
        whole = json.loads(to_json(description(resolution_range=RANGE, verification=CHECKED)))
        tried = 0
        for path, value in leaves(whole):
            for other in (None, True, 7, 0.5, "text", [], [[1]], {"a": 1}):
                changed = json.loads(json.dumps(whole))
                place = changed
                for key in path[:-1]:
                    place = place[key]
                place[path[-1]] = other
                try:
                    read = from_json(json.dumps(changed), ModelDescription, origin="x")
                except InputError:
                    tried += 1
                    continue
                again = json.loads(to_json(read))
                assert again == changed, (path, value, other)
        assert tried > 200

    def test_values_that_are_not_finite_are_never_written(self) -> None:
        with pytest.raises(ValueError, match="JSON"):
            to_json({"drop": float("nan")})


class TestWhatRecordsHold:
    @pytest.mark.parametrize(
        "change",
        [
            {"resolution": (0, 0)},
            {"resolution": (-64, 64)},
            {"opset": 0},
        ],
        ids=str,
    )
    def test_sizes_below_one_are_refused(self, change: dict[str, Any]) -> None:
        with pytest.raises(InputError, match="resolution is"):
            description(**change)

    def test_sources_and_ranges_too(self) -> None:
        source = description().source
        for change in ({"native_resolution": (0, -3)}, {"in_chans": 0}):
            with pytest.raises(InputError, match="native resolution"):
                replace(source, **change)
        for high, step in (((16, 64), (16, 16)), ((64, 64), (0, 16))):
            with pytest.raises(InputError, match="steps of"):
                ResolutionRange((32, 32), high, step)

    def test_the_reason_is_told_with_its_place(self) -> None:
        content = json.loads(to_json(description()))
        content["source"]["preprocessing"]["crop_pct"] = 1e-9
        with pytest.raises(InputError, match=r"crop_pct is 1e-09 @ \$\.source\.preprocessing"):
            from_json(json.dumps(content), ModelDescription, origin="x")
