"""`vitdeploy plan`."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import click

from vitdeploy.cli import console
from vitdeploy.cli.options import PATH, json_option, workspace

Row = tuple[str, str, str]
"""Name, precision and reason of a node."""

_WIDTH = 100
_INDENT = " " * 13
_LAYER = re.compile(r"(?<=\.)\d+(?=[./])")
_AGAIN = re.compile(r"_\d+$")
"""What the exporter adds to the second node of its kind in a module."""


@click.command()
@click.argument("graph", type=PATH, required=False)
@click.option("--int8", is_flag=True, help="Plan for INT8 (the default).")
@click.option("--fp8", is_flag=True, help="Plan for FP8.")
@click.option("--fp32", is_flag=True, help="The rest in FP32 on GPUs too.")
@click.option("--keep", multiple=True, metavar="NODE", help="Leave this node in float.")
@click.option(
    "--attention/--no-attention",
    default=True,
    show_default=True,
    help="Quantize attention products where the target computes them fused.",
)
@click.option(
    "--backend",
    default="auto",
    show_default=True,
    help="openvino, onnxruntime, tensorrt or tensorrt-rtx.",
)
@click.option("--target", help="cpu, sm89, jetson-orin, or several: sm86,sm89,sm120.")
@click.option("--all", "every", is_flag=True, help="A line for each node (JSON has them all too).")
@json_option
def command(graph: Path | None, every: bool, as_json: bool, **options: Any) -> None:
    """Show what would be quantized in GRAPH, and why (default: the newest graph).

    Nothing is run or written. The plan depends on the graph, the options and
    the target; --max-drop of build-engine may take further layers back to float.
    A graph that is quantized already shows the plan it was made by.

    \b
      vitdeploy plan --int8
      vitdeploy plan model.onnx --int8 --target sm89 --backend tensorrt
      vitdeploy plan model.onnx --fp8 --target l4,rtx-50 --json
    """
    from vitdeploy.errors import InputError

    if options["int8"] and options["fp8"]:
        raise click.UsageError("--int8 and --fp8 exclude each other")
    place = workspace(console.progress().note)
    precision = "fp32" if options["int8"] or options["fp8"] else None
    model = place.graph(graph, precision=precision)
    if model is None:
        raise InputError(
            "there is no graph to plan for", hint="name one, or run `vitdeploy export` first"
        )
    quantization = model.description.quantization
    if quantization is None:
        quantized, kept, numbers, rest = _planned(model, options)
    else:
        console.progress().note(f"{model.path.name} is quantized: this is the plan it was made by")
        reasons = quantization.ranges
        quantized = dict.fromkeys(quantization.quantized, f"as written ({len(reasons)} ranges)")
        kept = quantization.kept
        numbers, _, rest = model.description.precision.partition("-")
    rows = [(name, numbers, reason) for name, reason in quantized.items()]
    rows += [(name, rest, reason) for name, reason in kept.items()]
    from vitdeploy.graph.inspection import read_graph

    share = read_graph(model.path).share_of(quantized)
    record = {
        "graph": str(model.path),
        "precision": f"{numbers}-{rest}",
        "share_of_macs": share,
        "nodes": [
            {"name": name, "precision": precision, "reason": reason}
            for name, precision, reason in rows
        ],
    }
    lines = [
        f"{model.path}: {len(quantized)} nodes in {numbers}{console.of_the_work(share)}, "
        f"{len(kept)} in {rest}"
    ]
    lines += _each(rows) if every else _grouped(rows)
    console.emit(as_json, record, "\n".join(lines))


def _each(rows: list[Row]) -> list[str]:
    width = max(len(name) for name, _, _ in rows)
    return [f"  {precision:4}  {name:{width}}  {reason}" for name, precision, reason in rows]


def _grouped(rows: list[Row]) -> list[str]:
    """A paragraph for each reason: how many nodes, and which, layers of one kind together."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, precision, reason in rows:
        groups.setdefault((precision, reason), []).append(name)
    lines = []
    for (precision, reason), names in groups.items():
        lines.append(f"  {precision:4} {len(names):4}  {reason}")
        lines += textwrap.wrap(
            ", ".join(_of_one_kind(names)),
            _WIDTH,
            initial_indent=_INDENT,
            subsequent_indent=_INDENT,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return lines


def _of_one_kind(names: list[str]) -> list[str]:
    """Names that differ in the numbers of their layers alone, as one: 'blocks.0-11.mlp.fc1/MatMul'.

    Where several numbers differ (Swin), 'layers.*.blocks.*.mlp.fc1/MatMul (12)'.
    """
    kinds: dict[str, list[list[int]]] = {}
    for name in names:
        kind = _LAYER.sub("*", _AGAIN.sub("", name))
        kinds.setdefault(kind, []).append([int(number) for number in _LAYER.findall(name)])
    found = []
    for kind, numbers in kinds.items():
        if kind.count("*") == 1:
            found.append(kind.replace("*", _ranges(sorted({layer for (layer,) in numbers}))))
        else:
            found.append(f"{kind} ({len(numbers)})" if len(numbers) > 1 else kind)
    return found


def _ranges(numbers: list[int]) -> str:
    """[0, 1, 2] to '0-2', [0, 1, 2, 5] to '[0-2,5]'."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    text = ",".join(f"{low}" if low == high else f"{low}-{high}" for low, high in spans)
    return text if len(spans) == 1 else f"[{text}]"


def _planned(model: Any, options: Any) -> tuple[dict[str, str], dict[str, str], str, str]:
    """Reasons by node of what is quantized and what is not, and both halves' names."""
    from vitdeploy import api
    from vitdeploy.errors import InputError
    from vitdeploy.target import parse_targets

    targets = None if options["target"] is None else parse_targets(options["target"])
    backend, why = api.choose_backend(options["backend"], targets)
    console.progress().note(f"backend: {backend.name} ({why})")
    planned_for = api.targets_of(backend, targets)
    on_gpu = backend.name.startswith("tensorrt")
    if on_gpu and planned_for[0].is_cpu:
        raise InputError(
            f"{backend.name} is for NVIDIA GPUs, and there is none here to plan for",
            hint="name the GPU, for example --target sm89",
        )

    from vitdeploy.calibration.quantize import QuantizationOptions, planned
    from vitdeploy.graph import files

    wanted = QuantizationOptions(
        numbers="fp8" if options["fp8"] else "int8",
        keep=options["keep"],
        attention=options["attention"],
        targets=planned_for,
        runtime=backend.name,
    )
    found = planned(model, files.load(model), wanted)
    rest = "fp16" if on_gpu and not options["fp32"] else "fp32"
    return found.quantized, found.kept, wanted.numbers, rest
