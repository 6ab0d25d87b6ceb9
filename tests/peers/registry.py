"""Who is compared. Each peer is a module with `quantize(prepared, folder) -> Path`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A quantizer with its settings.

    `module` and `function` are looked up in the child process alone, which
    imports the peer's library. `packages` are those whose versions are
    recorded. `setting` says how it is called.
    """

    key: str
    title: str
    module: str
    function: str
    packages: tuple[str, ...]
    setting: str


PEERS = {
    peer.key: peer
    for peer in (
        Peer(
            key="float",
            title="float (nothing quantized)",
            module="tests.peers.float_",
            function="copy",
            packages=(),
            setting="the file itself",
        ),
        Peer(
            key="vitdeploy",
            title="vitdeploy",
            module="tests.peers.vitdeploy_",
            function="quantize",
            packages=("vitdeploy",),
            setting="`build-engine --int8` as it is, calibration from image files",
        ),
        Peer(
            key="ort-static",
            title="ONNX Runtime static, default",
            module="tests.peers.onnxruntime_",
            function="static",
            packages=("onnxruntime",),
            setting="`quant_pre_process`, then `quantize_static` with no option changed",
        ),
        Peer(
            key="ort-linear",
            title="ONNX Runtime static, Linear only",
            module="tests.peers.onnxruntime_",
            function="linear_only",
            packages=("onnxruntime",),
            setting="`quantize_static` on the inputs of MatMul with constant weights alone, "
            "symmetric, weights per channel",
        ),
        Peer(
            key="ort-dynamic",
            title="ONNX Runtime dynamic",
            module="tests.peers.onnxruntime_",
            function="dynamic",
            packages=("onnxruntime",),
            setting="`quant_pre_process`, then `quantize_dynamic` with no option changed",
        ),
        Peer(
            key="nncf-onnx",
            title="NNCF, ONNX",
            module="tests.peers.nncf_",
            function="quantize_onnx",
            packages=("nncf", "onnxruntime"),
            setting="`nncf.quantize(model_type=TRANSFORMER)` on the ONNX model",
        ),
        Peer(
            key="nncf-symmetric",
            title="NNCF, ONNX, symmetric",
            module="tests.peers.nncf_",
            function="quantize_onnx_symmetric",
            packages=("nncf", "onnxruntime"),
            setting="the same with `preset=PERFORMANCE`, as TensorRT takes symmetric int8 alone",
        ),
        Peer(
            key="nncf-openvino",
            title="NNCF, OpenVINO",
            module="tests.peers.nncf_",
            function="quantize_openvino",
            packages=("nncf", "openvino"),
            setting="`nncf.quantize(model_type=TRANSFORMER)` on the OpenVINO model",
        ),
        Peer(
            key="modelopt",
            title="NVIDIA Model Optimizer",
            module="tests.peers.modelopt_",
            function="quantize",
            packages=("nvidia-modelopt", "onnxruntime"),
            setting='`modelopt.onnx.quantization.quantize(quantize_mode="int8")`, calibrated '
            'on the CPU, `high_precision_dtype="fp32"` so that CPUs run it; all else as it is',
        ),
    )
}
