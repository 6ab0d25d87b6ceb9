"""`Target`: what an engine is made for. Every rule that depends on the device asks it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from vitdeploy.errors import InputError

_ALIASES = {
    "jetson-orin": "sm87",
    "jetson-thor": "sm110",
    "t4": "sm75",
    "a100": "sm80",
    "a10": "sm86",
    "l4": "sm89",
    "h100": "sm90",
    "h200": "sm90",
    "b200": "sm100",
    "rtx-30": "sm86",
    "rtx-40": "sm89",
    "rtx-50": "sm120",
}
_KNOWN = (75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121)
_RTX = frozenset({75, 80, 86, 89, 120, 121})
"""Compute capabilities TensorRT-RTX 1.7 can build for ahead of time."""

_JETSON = frozenset({72, 87, 101, 110})
_AMPERE = 80

_OPSETS = {"tensorrt 10.3": (9, 20), "tensorrt 11": (9, 25)}
"""Which opsets the parser of a version takes, as far as that is known. 10.3's 20 is believed,
not confirmed. TensorRT-RTX 1.7.1 parsed 8 to 27 when tried."""

_INT8_HEADS = (16, 32, 64)
_INT8_TOKENS = 512
"""What TensorRT's fused INT8 attention takes (its best-practices guide, transformers)."""


@dataclass(frozen=True)
class Target:
    """A CPU (`compute_capability` is None) or an NVIDIA GPU of one compute capability.

    `compute_capability` is written as in sm89: 10 x major + minor.
    """

    name: str
    compute_capability: int | None = None

    @property
    def is_cpu(self) -> bool:
        return self.compute_capability is None

    @property
    def builds_in_tensorrt_rtx(self) -> bool:
        return self.compute_capability in _RTX

    @property
    def has_fp32_gemm_in_tensorrt_rtx(self) -> bool:
        """TensorRT-RTX compiles no FP32 matrix product for Turing (measured, 1.7.1)."""
        return self.compute_capability is not None and self.compute_capability >= 80

    @property
    def has_bfloat16(self) -> bool:
        """From Ampere on; Turing has no BF16 arithmetic."""
        return self.compute_capability is not None and self.compute_capability >= 80

    @property
    def is_jetson(self) -> bool:
        """Orin and Thor: the GPU shares the system's memory, and engines belong to the module."""
        return self.compute_capability in _JETSON

    @property
    def has_fp8(self) -> bool:
        """From Ada on."""
        return self.compute_capability is not None and self.compute_capability >= 89

    @property
    def has_hardware_compatibility(self) -> bool:
        """One engine for several GPUs: from Ampere on, and not on a Jetson."""
        number = self.compute_capability
        return number is not None and number >= _AMPERE and not self.is_jetson

    def why_attention_is_float(
        self, numbers: Literal["int8", "fp8"], head_size: int, tokens: int, runtime: str = ""
    ) -> str:
        """Why quantized attention would not be computed fused here; empty where it is.

        TensorRT fuses INT8 attention for heads of 16, 32 or 64 and at most 512
        tokens, FP8 attention from Ada on. Where it is not fused, quantizing
        it makes it slower than FP16. A size of 0 is not known. On CPUs only
        OpenVINO fuses it (docs/decisions/0004-quantization.md has the figures).
        """
        if self.is_cpu:
            return "on a CPU it would double the error for a few percent of speed"
        if numbers == "fp8":
            return "" if self.has_fp8 else f"{self.name} has no FP8"
        if runtime == "tensorrt-rtx":
            return "TensorRT-RTX lists INT8 for weights only"
        if head_size not in _INT8_HEADS:
            return f"INT8 attention is fused for heads of 16, 32 or 64, not of {head_size or '?'}"
        if not 0 < tokens <= _INT8_TOKENS:
            return f"INT8 attention is fused up to {_INT8_TOKENS} tokens, not for {tokens or '?'}"
        return ""


CPU = Target("cpu")


def why_opset_is_refused(opset: int, runtime: str, version: str) -> str:
    """Why a runtime's parser does not take this opset; empty where it does, or is not known.

    `version` is the runtime's own, such as '10.3.0.26'; empty is not known.
    """
    major, _, rest = version.partition(".")
    for known in (f"{runtime} {major}.{rest.partition('.')[0]}", f"{runtime} {major}"):
        if known in _OPSETS:
            least, most = _OPSETS[known]
            if not least <= opset <= most:
                return f"version {version} takes opsets {least} to {most}, not {opset}"
    return ""


def parse_targets(text: str) -> tuple[Target, ...]:
    """'cpu', 'sm89', 'jetson-orin', or several NVIDIA targets as 'sm86,sm89,sm120'.

    Raises InputError for unknown names and for a CPU mixed with GPUs.
    """
    targets = tuple(_parse(part.strip().lower()) for part in text.split(",") if part.strip())
    if not targets:
        raise InputError("no target was given", hint="for example --target cpu or --target sm89")
    if len(targets) > 1 and any(target.is_cpu for target in targets):
        raise InputError("a CPU and a GPU cannot share one engine", hint="build them apart")
    return tuple(dict.fromkeys(targets))


def _parse(name: str) -> Target:
    if name == "cpu":
        return CPU
    match = re.fullmatch(r"sm_?(\d+)", _ALIASES.get(name, name))
    if match and int(match[1]) in _KNOWN:
        return Target(f"sm{match[1]}", int(match[1]))
    generations = [f"sm{number}" for number in _KNOWN]
    near = get_close_matches(name, [*_ALIASES, *generations], n=1)
    raise InputError(
        f"unknown target {name!r}",
        hint=(f"did you mean {near[0]}? " if near else "")
        + f"use cpu, {', '.join(generations)}, or one of {', '.join(_ALIASES)}",
    )
