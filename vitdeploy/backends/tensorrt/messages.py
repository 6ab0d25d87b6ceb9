"""TensorRT's failure texts, and what to say instead.

Matched by pattern, because the wording varies by version. Collected from
TensorRT 10.3 to 11.4 and TensorRT-RTX 1.7.1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from vitdeploy.errors import EngineError, InputError, MissingDependencyError, VitDeployError

_EXPORT_AGAIN = "quantize with `vitdeploy export --int8`, which writes what TensorRT accepts"
_LONGEST_QUOTE = 400


@dataclass(frozen=True, kw_only=True)
class Context:
    """Where a failure happened: the product, how to install it, the file and the node."""

    label: str
    install: str
    graph: str
    node: str = ""
    operator: str = ""

    @property
    def where(self) -> str:
        """'node 'head' (QLinearMatMul) of model.onnx', or the file alone."""
        if not self.operator:
            return self.graph
        return f"node {self.node!r} ({self.operator}) of {self.graph}"


@dataclass(frozen=True)
class Failure:
    """One row: a pattern, the sentence, the remedy; named groups fill the braces."""

    pattern: str
    say: str
    remedy: str
    error: type[VitDeployError] = EngineError


FAILURES = (
    Failure(
        r"(?P<library>libnvinfer_lean[\w.-]*)",
        "{label} builds version-compatible engines with a lean runtime, and {library} is not here",
        "install it (pip install tensorrt-lean-cu12, or apt install libnvinfer-lean10), "
        "or leave out --version-compat",
        MissingDependencyError,
    ),
    Failure(
        r"graph_jit\.cpp.*CUDA_SUCCESS",
        "{label} needs a GPU to build {graph} in this way",
        "leave out --strip-weights and --refit, or build on a machine with a GPU",
        MissingDependencyError,
    ),
    Failure(
        r"(?P<library>lib[\w.-]+): cannot open shared object file",
        "{label}'s bindings are here, its library {library} is not",
        "install the libraries too: {install}",
        MissingDependencyError,
    ),
    Failure(
        r"No module named|ImportError",
        "{label} is not usable here",
        "{install}",
        MissingDependencyError,
    ),
    Failure(
        r"CUDA initialization failure with error: (?P<code>\d+)|factory function returned nullptr",
        "{label} found no NVIDIA driver, or one older than its CUDA runtime",
        "install or update the NVIDIA driver; where there is no GPU, "
        "use --backend tensorrt-rtx --target sm89",
        MissingDependencyError,
    ),
    Failure(
        r"not compatible with this version of TensorRT, expecting library version "
        r"(?P<here>[\w.]+) got (?P<built>[\w.]+?)\.?(?=[,\s]|$)",
        "{graph} was built by {label} {built}, here is {here}",
        "build the engine again with the version that runs it",
    ),
    Failure(
        r"Version tag does not match",
        "{graph} was built by another version of {label}",
        "build the engine again with the version that runs it",
    ),
    Failure(
        r"incompatible device, expecting compute (?P<here>[\d.]+) got compute (?P<built>[\d.]+\d)",
        "{graph} was built for a GPU of compute capability {built}, this one has {here}",
        "build the engine on the target, or for it",
    ),
    Failure(
        r"engine plan file across different models of devices",
        "{graph} was built on another model of GPU",
        "it runs, perhaps slower: build it again here for the best speed",
    ),
    Failure(
        r"magicTag == kEXPECTED_MAGIC_TAG",
        "{graph} is not an engine of {label}",
        "load it with the backend that built it: TensorRT and TensorRT-RTX read only their own",
    ),
    Failure(
        r"header\.size == blobSize|plan\.header\.size",
        "{graph} is cut short",
        "copy the engine again; the copy is incomplete",
    ),
    Failure(
        r"no optimization profile has been defined",
        "{graph} has a dynamic input and the build got no batch range",
        "give the batch as smallest:optimal:largest",
    ),
    Failure(
        r"input tensor (?P<tensor>\S+) is missing dimensions in profile",
        "the input {tensor!r} of {graph} got no range; vitdeploy builds graphs with one input",
        "export the model again",
    ),
    Failure(
        r"does not satisfy any optimization profiles|Static dimension mismatch while setting input",
        "the batch is outside the range {graph} was built for",
        "split the batch, or build the engine again with a wider range",
        InputError,
    ),
    Failure(
        r"insufficient workspace|OutOfMemory|Requested size was",
        "{label} ran out of memory while building {graph}",
        "raise the workspace or lower the largest batch",
    ),
    Failure(
        r"Antialiasing is not supported",
        "{where} resizes with antialiasing, which {label} does not have",
        "export at a fixed resolution, or with --dynamic-res, which resamples by matrices",
    ),
    Failure(
        r"Unsupported reduction type",
        "{where} scatters with a reduction, which {label} does not have",
        "export the model again with vitdeploy, which writes a one-hot product instead",
    ),
    Failure(
        r"UINT8 zero_point only on DLA",
        "{where} quantizes to uint8, which {label} would silently read as int8",
        _EXPORT_AGAIN,
    ),
    Failure(
        r"shiftIsAllZeros|Non-zero zero point",
        "{where} is quantized with a zero point other than 0; {label} takes int8 with 0 only",
        _EXPORT_AGAIN,
    ),
    Failure(
        r"has type Int32 but must have type",
        "{where} dequantizes an int32 bias, which {label} does not take",
        "keep the bias in floating point: " + _EXPORT_AGAIN,
    ),
    Failure(
        r"Scale coefficients must all be positive|scaleAllPositive",
        "{where} has a scale that is zero or negative",
        "calibrate on more images: a scale of zero comes from a tensor that never moved",
    ),
    Failure(
        r"Turing \(SM75\): FP32 GEMM is not supported",
        "{label} has no FP32 matrix product for sm75, and {graph} needs one",
        "export with --fp16 or as int8-fp16, or leave sm75 out",
    ),
    Failure(
        r"Cannot compile for target\(s\) (?P<targets>[\w, ]+?),? because .*"
        r"datatypes: (?P<type>\w+)",
        "{graph} uses {type}, which {targets} does not have",
        "leave those targets out, or export in another precision",
    ),
    Failure(
        r"Failed to open file: (?P<file>[^\n]+)",
        "the weights of {graph} are missing: {file}",
        "copy the data file beside the model",
        InputError,
    ),
    Failure(
        r"MODEL_DESERIALIZE_FAILED",
        "{graph} is not an ONNX graph, or is cut short",
        "copy or export it again",
        InputError,
    ),
    Failure(
        r"[Pp]lugin not found|getPluginCreator|Unable to find plugin",
        "{where} is not an operator of ONNX that {label} knows",
        "export the model again with vitdeploy; do not build from a graph that ONNX Runtime saved",
    ),
    Failure(
        r"UNSUPPORTED_NODE",
        "{where} is not supported by {label}",
        "export the model again with vitdeploy; quantize with Q/DQ pairs, not QLinear operators",
    ),
    Failure(r"BuildCanceled", "the build of {graph} was cancelled", "start it again"),
)
_UNTRANSLATED = Failure(
    "", "{label} refused {where}", "this text is new to vitdeploy: please report it with the graph"
)
_PARSER_FRAME = re.compile(r"While parsing node number|--- (Begin|End) node ---")


def translate(text: str, context: Context) -> tuple[str, str]:
    """What to say about TensorRT's `text`, and the remedy. The text itself is quoted.

    >>> context = Context(label="TensorRT", install="", graph="vit.engine")
    >>> translate("Assertion plan.header.size == blobSize failed", context)[1]
    'copy the engine again; the copy is incomplete'
    """
    row, fields = _find(text)
    values = {
        "label": context.label,
        "install": context.install,
        "graph": context.graph,
        "where": context.where,
        **fields,
    }
    quote = " ".join(text.split())[:_LONGEST_QUOTE]
    said = row.say.format_map(values)
    return f"{said} [{quote}]" if quote else said, row.remedy.format_map(values)


def as_error(text: str, context: Context) -> VitDeployError:
    """The error to raise for TensorRT's `text`, with the remedy as its hint."""
    said, remedy = translate(text, context)
    return _find(text)[0].error(said, hint=remedy)


def first_cause(errors: Sequence[str]) -> str:
    """The first logged error that says why.

    Later ones follow from it; on a host without a GPU a line with cudaError 35
    comes last and says nothing. The parser's frames around a node are left out.
    """
    return next((text for text in errors if not _PARSER_FRAME.search(text)), "")


def is_fatal(warning: str) -> bool:
    """Whether TensorRT only warns where the engine would compute something else."""
    return "UINT8 zero_point only on DLA" in warning


def is_skipped_tactic(warning: str) -> bool:
    """Whether TensorRT says that it tried a kernel no further for want of memory."""
    return re.search(r"[Ss]kipping tactic", warning) is not None


def is_of_another_model(warning: str) -> bool:
    """Whether an engine was built on another model of GPU than runs it: slower, but it runs."""
    return "across different models of devices" in warning


def _find(text: str) -> tuple[Failure, dict[str, str]]:
    for row in FAILURES:
        match = re.search(row.pattern, text, re.DOTALL)
        if match:
            return row, {name: value or "" for name, value in match.groupdict().items()}
    return _UNTRANSLATED, {}
