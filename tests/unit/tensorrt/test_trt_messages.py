"""Every failure text known of TensorRT is translated, with a remedy."""

from __future__ import annotations

import re

import pytest

from vitdeploy.backends.tensorrt.messages import (
    FAILURES,
    Context,
    as_error,
    first_cause,
    is_fatal,
    is_skipped_tactic,
    translate,
)
from vitdeploy.errors import EngineError, InputError, MissingDependencyError

CONTEXT = Context(
    label="TensorRT", install="pip install it", graph="vit.onnx", node="blk/3", operator="Foo"
)

CASES = [
    (
        "IBuilder::buildSerializedNetwork: Error Code 6: API Usage Error (Unable to load library: "
        "libnvinfer_lean.so.1: libnvinfer_lean.so.1: cannot open shared object file: No such file "
        "or directory In Impl at /_src/runtime/dispatch/libLoader.cpp:305)",
        ["lean runtime", "libnvinfer_lean.so.1 is not here"],
        "--version-compat",
    ),
    (
        "IBuilder::buildSerializedNetwork: Error Code 1: Myelin ([myelin_graph.h:1295: "
        "attachExceptionMsgToGraph] MyelinCheckException: graph_jit.cpp:278: CHECK(status == "
        "CUDA_SUCCESS) failed.  In compileGraph at /_src/optimizer/myelin/codeGenerator.cpp:2012)",
        ["needs a GPU to build vit.onnx"],
        "--strip-weights",
    ),
    (
        "ImportError: libnvinfer.so.10: cannot open shared object file: No such file or directory",
        ["libnvinfer.so.10"],
        "pip install it",
    ),
    (
        "ImportError: libnvonnxparser.so.11: cannot open shared object file",
        ["libnvonnxparser.so.11"],
        "pip install it",
    ),
    (
        "ImportError: libtensorrt_rtx.so.1: cannot open shared object file",
        ["libtensorrt_rtx.so.1"],
        "pip install it",
    ),
    ("ModuleNotFoundError: No module named 'tensorrt'", ["not usable here"], "pip install it"),
    (
        "CUDA initialization failure with error: 35\nTypeError: pybind11::init(): factory "
        "function returned nullptr (CUDA driver 0.0, CUDA runtime 13.0)",
        ["no NVIDIA driver", "CUDA driver 0.0"],
        "driver",
    ),
    (
        "Error Code 6: API Usage Error (The engine plan file is not compatible with this version "
        "of TensorRT, expecting library version 10.13.0.35 got 10.3.0.26, please rebuild.)",
        ["built by TensorRT 10.3.0.26, here is 10.13.0.35 "],
        "again",
    ),
    ("Serialization assertion: Version tag does not match.", ["another version"], "again"),
    (
        "The engine plan file is generated on an incompatible device, expecting compute 8.6 got "
        "compute 7.5, please rebuild.",
        ["compute capability 7.5, this one has 8.6 "],
        "target",
    ),
    (
        "Using an engine plan file across different models of devices is not supported",
        ["another model of GPU"],
        "build it again",
    ),
    (
        "Assertion header.magicTag == kEXPECTED_MAGIC_TAG failed.",
        ["not an engine of TensorRT"],
        "backend that built it",
    ),
    ("Assertion plan.header.size == blobSize failed.", ["cut short"], "copy"),
    (
        "Network has dynamic or shape inputs, but no optimization profile has been defined",
        ["no batch range"],
        "smallest:optimal:largest",
    ),
    (
        "Dynamic input tensor input is missing dimensions in profile 0.",
        ["'input'"],
        "export",
    ),
    (
        "Set dimension [9,3,224,224] for tensor pixels does not satisfy any optimization profiles.",
        ["outside the range"],
        "split",
    ),
    (
        "Static dimension mismatch while setting input shape for pixels",
        ["outside the range"],
        "split",
    ),
    (
        "Could not find any implementation for node Foo due to insufficient workspace",
        ["memory"],
        "raise the workspace",
    ),
    ("OutOfMemory (Requested size was 123 bytes)", ["memory"], "lower the largest batch"),
    ("UNSUPPORTED_NODE: false", ["node 'blk/3' (Foo) of vit.onnx is not supported"], "Q/DQ"),
    ("Failed to open file: vit.onnx.data\nINVALID_GRAPH", ["vit.onnx.data"], "beside"),
    ("MODEL_DESERIALIZE_FAILED: Failed to parse the ONNX model.", ["cut short"], "again"),
    ("BuildCanceled", ["cancelled"], "again"),
    ("shiftIsAllZeros(zeroPoint): Non-zero zero point is not supported", ["blk/3"], "quantize"),
    (
        "input has type Int32 but must have type FP8, FP4, Int4, Int8, or UInt8",
        ["int32 bias"],
        "floating point",
    ),
    ("Scale coefficients must all be positive", ["zero or negative"], "calibrate"),
    (
        "UNSUPPORTED_NODE_ATTR: Antialiasing is not supported currently.",
        ["blk/3", "antialiasing"],
        "--dynamic-res",
    ),
    ("Unsupported reduction type", ["scatters"], "one-hot"),
    ("Plugin not found, are the plugin name and version correct?", ["blk/3"], "export"),
    (
        "Cannot compile operation 'embed' for Turing (SM75): FP32 GEMM is not supported",
        ["sm75"],
        "--fp16",
    ),
    (
        "Cannot compile for target(s) sm86, because the model contains HW-specific datatypes: "
        "fp8_e4m3",
        ["fp8_e4m3", "sm86 does not have"],
        "leave those targets out",
    ),
    ("TensorRT supports UINT8 zero_point only on DLA (version >= 3.16)", ["uint8"], "quantize"),
]


@pytest.mark.parametrize(("text", "said", "remedy"), CASES, ids=range(len(CASES)))
def test_text_is_translated_and_still_quoted(text: str, said: list[str], remedy: str) -> None:
    message, hint = translate(text, CONTEXT)
    for part in said:
        assert part in message
    assert remedy in hint
    assert "new to vitdeploy" not in hint
    assert " ".join(text.split())[:60] in message
    assert "{" not in message.split("[")[0]


def test_each_row_is_reached_by_a_case() -> None:
    """So that no row hides behind an earlier one."""
    reached = {
        next(i for i, row in enumerate(FAILURES) if re.search(row.pattern, text, re.DOTALL))
        for text, _, _ in CASES
    }
    assert reached == set(range(len(FAILURES)))


def test_unknown_text_is_quoted_and_asked_for() -> None:
    message, hint = translate("Something {new} broke", CONTEXT)
    assert "Something {new} broke" in message
    assert "report" in hint


def test_without_a_node_the_file_is_named() -> None:
    message, _ = translate("UNSUPPORTED_NODE", Context(label="X", install="", graph="vit.onnx"))
    assert message.startswith("vit.onnx is not supported by X")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("No module named 'tensorrt'", MissingDependencyError),
        ("Failed to open file: x.data", InputError),
        ("BuildCanceled", EngineError),
        ("never seen", EngineError),
    ],
)
def test_kind_decides_the_exit_code(text: str, kind: type[Exception]) -> None:
    assert type(as_error(text, CONTEXT)) is kind


def test_first_error_wins_over_what_follows() -> None:
    lines = [
        'While parsing node number 4 [QuantizeLinear -> "q"]:',
        "--- Begin node ---\nNode name: q",
        "--- End node ---",
        "Scale coefficients must all be positive",
        "CUDA initialization failure with error: 35",
        "cudaError 35",
    ]
    assert first_cause(lines) == "Scale coefficients must all be positive"
    assert first_cause(["CUDA initialization failure with error: 35"]).endswith("35")
    assert first_cause([]) == ""


@pytest.mark.parametrize(
    ("text", "was"),
    [
        (
            "UNSUPPORTED_STATE: Skipping tactic 33 due to insufficient memory on requested size of "
            "629145600 detected for tactic 0xa5a46bfbd719d757.",
            True,
        ),
        (
            "Skipping tactic 3 due to insuficient memory on requested size of 449 detected for "
            "tactic 4.\nTry decreasing the workspace size",
            True,
        ),
        (
            "Tactic Device request: 600MB Available: 302MB. Device memory is insufficient to use "
            "tactic.",
            False,  # comes with one of the others, and would count twice
        ),
    ],
)
def test_skipped_tactics_are_counted_once(text: str, was: bool) -> None:
    assert is_skipped_tactic(text) is was


def test_only_warnings_that_change_numbers_are_fatal() -> None:
    assert is_fatal("UINT8 zero_point only on DLA (version >= 3.16). Defaulting to INT8 instead.")
    assert not is_fatal("The CUDA context changed between createInferBuilder and build")
