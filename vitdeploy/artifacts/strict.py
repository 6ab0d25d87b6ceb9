"""Records from JSON and TOML as they are written: no value is turned into another type.

cattrs by itself makes True of "false", 5 of "5", and three labels of "abc".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import cattrs

from vitdeploy.errors import VitDeployError, spelled_out

AnyConverter = TypeVar("AnyConverter", bound=cattrs.Converter)
Record = TypeVar("Record")

_LARGEST = 2**64 - 1

DEEPEST = 64
"""No record of ours is a quarter as deep; a deeper one is made to exhaust the stack."""


def without_coercion(converter: AnyConverter) -> AnyConverter:
    """`converter`, which from now on refuses values of another type than the record's."""
    for kind in (bool, int, str):
        converter.register_structure_hook(kind, _exactly)
    converter.register_structure_hook(float, _number)

    @converter.register_structure_hook_factory(lambda kind: get_origin(kind) is tuple)
    def for_tuples(kind: Any) -> Callable[[Any, Any], tuple[Any, ...]]:
        kinds = get_args(kind)

        def from_list(value: Any, _: Any) -> tuple[Any, ...]:
            if not isinstance(value, list):
                raise TypeError(f"{value!r} is no list")
            wanted = kinds[:1] * len(value) if kinds[-1] is Ellipsis else kinds
            return tuple(
                converter.structure(item, item_kind)
                for item, item_kind in zip(value, wanted, strict=True)
            )

        return from_list

    @converter.register_structure_hook_factory(lambda kind: len(_by_own_kind(kind)) > 1)
    def for_records_of_several_kinds(kind: Any) -> Callable[[Any, Any], Any]:
        records, may_be_none = _by_own_kind(kind), type(None) in get_args(kind)

        def by_kind(value: Any, _: Any) -> Any:
            if value is None and may_be_none:
                return None
            named = value.get("kind") if isinstance(value, dict) else None
            if named not in records:
                raise TypeError(f"kind {named!r} is none of {', '.join(records)}")
            return converter.structure(value, records[named])

        return by_kind

    return converter


def _by_own_kind(union: Any) -> dict[str, Any]:
    """The records of a union by the default of their field `kind`; nothing where one has none.

    cattrs tells them apart by fields that only one has, which says nothing of a damaged file.
    """
    records = [kind for kind in get_args(union) if kind is not type(None)]
    if get_origin(union) not in (Union, UnionType) or not all(map(is_dataclass, records)):
        return {}
    found = {str(f.default): kind for kind in records for f in fields(kind) if f.name == "kind"}
    return found if len(found) == len(records) else {}


def structured(converter: cattrs.Converter, content: Any, kind: type[Record]) -> Record:
    """The record that plain values describe. ValueError with every reason where they do not."""
    try:
        return converter.structure(content, kind)
    except cattrs.BaseValidationError as error:
        reasons = cattrs.transform_error(error, format_exception=_in_words)
        raise ValueError("; ".join(reasons)) from error


def plain_content(value: Any, depth: int = 0) -> Any:
    """Parsed JSON or TOML with text that can be written again.

    Half surrogate pairs are spelled out. Raises ValueError for numbers that
    are not finite and for nesting below `DEEPEST`.
    """
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    if not isinstance(value, dict | list):
        return value
    if depth == DEEPEST:
        raise ValueError(f"values are nested more than {DEEPEST} deep")
    if isinstance(value, list):
        return [plain_content(item, depth + 1) for item in value]
    return {printable(key): plain_content(item, depth + 1) for key, item in value.items()}


def printable(name: str) -> str:
    """A name that every file and terminal takes: what UTF-8 cannot hold is spelled out, and so
    is what would move a terminal's cursor or turn the order of what is read.

    A file called b'caf\\xe9' is 'caf\\udce9' to Python, and becomes 'caf\\\\udce9' here. Line
    ends and tabs stay.
    """
    shown = name if name.isascii() else name.encode("utf-8", "backslashreplace").decode()
    return spelled_out(shown)


def _exactly(value: Any, kind: type[Any]) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is no {kind.__name__}")
    if kind is int and abs(value) > _LARGEST:
        raise TypeError("a number of more than 64 bits")
    return value


def _number(value: Any, _: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError(f"{value!r} is no number")
    return float(value)


def _in_words(error: BaseException, kind: type[Any] | None) -> str:
    if isinstance(error, VitDeployError):
        return str(error)
    return cattrs.v.format_exception(error, kind)
