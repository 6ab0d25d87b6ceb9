"""The options of `build-engine` that ONNX Runtime or OpenVINO alone take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from vitdeploy.cli.options import Command

if TYPE_CHECKING:
    from vitdeploy.backends.base import BuildOptions

_OPTIONS = [
    click.option(
        "--device",
        default="cpu",
        show_default=True,
        help="cuda or tensorrt (ONNX Runtime); gpu, gpu.1 or npu (OpenVINO). No other device "
        "takes its place.",
    ),
    click.option(
        "--hint",
        type=click.Choice(["latency", "throughput"]),
        default="latency",
        show_default=True,
        help="Throughput answers a batch in several requests at once (OpenVINO).",
    ),
    click.option(
        "--graph-optimization",
        type=click.Choice(["none", "basic", "extended", "all"]),
        default="all",
        show_default=True,
        help="ONNX Runtime's level.",
    ),
    click.option(
        "--affinity",
        default="",
        help="Cores of threads 2, 3, ... as ONNX Runtime writes them, from 1: '2;3;4'.",
    ),
]


def runtime_options(command: Command) -> Command:
    """--device and what belongs to it. The command takes them as `**options`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def with_runtime_options(how: BuildOptions, options: dict[str, Any]) -> BuildOptions:
    """`how` with what `runtime_options` added; each runtime refuses the other's."""
    from dataclasses import replace

    from vitdeploy.backends.options import OnnxRuntimeOptions, OpenVinoOptions

    device = options["device"].lower()
    on_nvidia = device in ("cuda", "tensorrt")
    return replace(
        how,
        onnxruntime=OnnxRuntimeOptions(
            device=device if on_nvidia else "cpu",
            graph_optimization=options["graph_optimization"],
            affinity=options["affinity"],
        ),
        openvino=OpenVinoOptions(
            device="CPU" if on_nvidia else device.upper(),
            hint=options["hint"],
        ),
    )
