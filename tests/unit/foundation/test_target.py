"""`Target`: names of devices and what follows from them."""

from __future__ import annotations

import pytest

from vitdeploy.errors import InputError
from vitdeploy.target import CPU, parse_targets


@pytest.mark.parametrize(
    ("text", "capability"),
    [
        ("sm75", 75),
        ("SM_89", 89),
        ("jetson-orin", 87),
        ("jetson-thor", 110),
        ("T4", 75),
        ("a100", 80),
        ("l4", 89),
        ("h100", 90),
        ("h200", 90),
        ("b200", 100),
        ("rtx-50", 120),
    ],
)
def test_names_mean_their_compute_capability(text: str, capability: int) -> None:
    (target,) = parse_targets(text)
    assert target.compute_capability == capability
    assert target.name == f"sm{capability}"
    assert not target.is_cpu


def test_the_cpu() -> None:
    assert parse_targets(" CPU ") == (CPU,)
    assert CPU.is_cpu
    assert not CPU.builds_in_tensorrt_rtx
    assert not CPU.has_fp32_gemm_in_tensorrt_rtx


def test_several_targets_keep_their_order_and_count_once() -> None:
    targets = parse_targets("sm120, sm86,rtx-30,sm89,")
    assert [target.name for target in targets] == ["sm120", "sm86", "sm89"]


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("sm88", "sm88", "sm89"),
        ("sm", "'sm'", "sm89"),
        ("gpu", "gpu", "jetson-orin"),
        ("sm89,tpu", "tpu", "cpu"),
        ("cpu,sm89", "cannot share", "apart"),
        (" , ", "no target", "--target"),
    ],
)
def test_other_names_are_refused(text: str, said: str, hint: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        parse_targets(text)
    assert hint in str(caught.value.hint)


def test_limits_of_tensorrt_rtx() -> None:
    limits = {
        target.name: (target.builds_in_tensorrt_rtx, target.has_fp32_gemm_in_tensorrt_rtx)
        for target in parse_targets("sm75,sm86,sm87,sm90,sm120")
    }
    assert limits == {
        "sm75": (True, False),
        "sm86": (True, True),
        "sm87": (False, True),
        "sm90": (False, True),
        "sm120": (True, True),
    }
