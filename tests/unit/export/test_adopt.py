"""Adopting: files of other exporters become artifacts, for any batch, proved equal."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from foreign_graphs import (
    CLASSES,
    SIZE,
    Exporting,
    checked,
    export,
    images,
    one_by_one,
    operators,
    plain_vit,
    relative_error,
    run,
    timm_vit,
    torchvision_vit,
    transformers_vit,
)
from torch import nn
from transformers import ViTImageProcessor

from vitdeploy.artifacts.onnx_model import OnnxModel, read_onnx_model
from vitdeploy.errors import ExportError, InputError
from vitdeploy.export.adopting import adopt as adopting
from vitdeploy.export.adopting import open_batch
from vitdeploy.export.adopting.adopt import AdoptOptions, PreprocessingFlags, adopt
from vitdeploy.graph import files
from vitdeploy.graph.recognition import recognise
from vitdeploy.preprocessing import Preprocessing, Size

LIMIT = 1e-5
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)
FLAGS = AdoptOptions(preprocessing=PreprocessingFlags(mean=MEAN, std=STD))


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Exported with one image, as `torch.onnx.export` does when told nothing else."""
    return export(timm_vit(), tmp_path_factory.mktemp("fixed") / "my vit.onnx", Exporting(14))


@pytest.fixture(scope="module")
def adopted(fixed: Path, tmp_path_factory: pytest.TempPathFactory) -> OnnxModel:
    return adopt(fixed, tmp_path_factory.mktemp("adopted"), FLAGS)


def require_any_batch(original: Path, copy: OnnxModel, size: Size = SIZE) -> None:
    """At batch 1, 2 and 5 the copy answers what the file answers to each image."""
    batch = images(8, size)
    expected = one_by_one(original, batch)
    parts = [run(copy.path, part) for part in np.split(batch, [1, 3])]
    assert relative_error(np.concatenate(parts), expected) <= LIMIT


def changed(path: Path, change: Callable[[onnx.ModelProto], None], folder: Path) -> Path:
    proto = onnx.load(path)
    change(proto)
    target = folder / "changed.onnx"
    onnx.save(proto, target)
    return target


def test_a_file_becomes_an_artifact_like_any_other(fixed: Path, adopted: OnnxModel) -> None:
    read = read_onnx_model(adopted.path)
    assert read == adopted
    description = read.description
    assert description.precision == "fp32"
    assert description.resolution == SIZE
    assert description.opset == 20
    assert description.passes == ("normal_form[20]", "open_batch[1]")
    assert description.output == "logits"
    assert "pytorch" in description.producer
    source = description.source
    assert source.name == "my vit"
    assert source.library == "onnx"
    assert source.in_chans == 3
    assert source.labels == tuple(map(str, range(CLASSES)))
    assert source.preprocessing == Preprocessing(mean=MEAN, std=STD)
    assert source.weights_digest == description.parent_digest
    check = description.verification
    assert check is not None
    assert (check.images, check.batch_sizes, check.agreement) == (8, (1, 2, 5), 1.0)
    assert check.max_error <= LIMIT
    checked(files.load(adopted))


def test_two_files_of_other_weights_are_two_models(fixed: Path, tmp_path: Path) -> None:
    def scaled(proto: onnx.ModelProto) -> None:
        (head,) = (t for t in proto.graph.initializer if t.name == "head.bias")
        head.raw_data = (2 * np.frombuffer(head.raw_data, np.float32)).tobytes()

    first = adopt(fixed, tmp_path, FLAGS)
    second = adopt(changed(fixed, scaled, tmp_path), tmp_path, replace(FLAGS, name="my vit"))
    digests = {m.description.source.weights_digest for m in (first, second)}
    assert len(digests) == len({first.path, second.path}) == 2


BATCHES: dict[str, tuple[Callable[[], nn.Module], Exporting, Size]] = {
    "one image": (timm_vit, Exporting(14), SIZE),
    "four images": (timm_vit, Exporting(17, batch=4), SIZE),
    "four images, attention written out": (plain_vit, Exporting(12, batch=4), SIZE),
    "one image, the newer exporter": (timm_vit, Exporting(18, dynamo=True), SIZE),
    "tokens before the batch": (torchvision_vit, Exporting(14), (32, 32)),
    "tokens before a batch of three": (torchvision_vit, Exporting(14, batch=3), (32, 32)),
    "three Linear": (transformers_vit, Exporting(14), SIZE),
    "a learned query": (lambda: timm_vit("vit_base_patch16_siglip_224"), Exporting(14), SIZE),
    "registers": (
        lambda: timm_vit("vit_small_patch14_reg4_dinov2", patch_size=16),
        Exporting(17, batch=2),
        SIZE,
    ),
    "windows": (
        lambda: timm_vit(
            "swin_tiny_patch4_window7_224",
            img_size=64,
            window_size=4,
            embed_dim=24,
            depths=(2,),
            num_heads=(2,),
            depth=None,
        ),
        Exporting(14, batch=2),
        (64, 64),
    ),
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_fixed_batch_is_opened(name: str, tmp_path: Path) -> None:
    make, how, size = BATCHES[name]
    path = export(make(), tmp_path / "vit.onnx", how, size=size)
    copy = adopt(path, tmp_path, FLAGS)
    assert copy.description.passes[-1] == f"open_batch[{how.batch}]"
    batch = images(8, size)
    copies = [np.repeat(image[None], how.batch, axis=0) for image in batch]
    expected = np.stack([run(path, each)[0] for each in copies])
    parts = [run(copy.path, part) for part in np.split(batch, [1, 3])]
    assert relative_error(np.concatenate(parts), expected) <= LIMIT


def test_a_batch_that_is_open_in_name_only_is_opened(fixed: Path, tmp_path: Path) -> None:
    """The input says 'batch', and one image stands in every Reshape behind it."""

    def rename(proto: onnx.ModelProto) -> None:
        proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
        proto.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "batch"

    path = changed(fixed, rename, tmp_path)
    copy = adopt(path, tmp_path, FLAGS)
    assert copy.description.passes == ("normal_form[20]", "open_batch[1]")
    require_any_batch(fixed, copy)


def test_an_open_batch_stays_open(tmp_path: Path) -> None:
    path = export(timm_vit(), tmp_path / "vit.onnx", Exporting(17, dynamic=True))
    copy = adopt(path, tmp_path, FLAGS)
    assert copy.description.passes == ("normal_form[20]",)
    require_any_batch(path, copy)


def test_channels_last_as_tensorflow_exports_them(fixed: Path, tmp_path: Path) -> None:
    def turn(proto: onnx.ModelProto) -> None:
        shape = proto.graph.input[0].type.tensor_type.shape
        for dim, side in zip(shape.dim, (1, *SIZE, 3), strict=True):
            dim.dim_value = side
        turned = onnx.helper.make_node("Transpose", ["images"], ["turned"], perm=[0, 3, 1, 2])
        for node in proto.graph.node:
            node.input[:] = ["turned" if name == "images" else name for name in node.input]
        proto.graph.node.insert(0, turned)

    copy = adopt(changed(fixed, turn, tmp_path), tmp_path, FLAGS)
    model = files.load(copy)
    assert list(model.graph.inputs[0].shape or ())[1:] == [3, *SIZE]
    assert model.graph.inputs[0].uses()[0].node.op_type == "Conv", "both turns are gone"
    require_any_batch(fixed, copy)


def test_any_size_takes_the_one_it_is_given(tmp_path: Path) -> None:
    how = Exporting(14, dynamic=True)
    path = export(transformers_vit("sdpa"), tmp_path / "vit.onnx", how, dynamic_size=True)
    with pytest.raises(InputError, match="any size") as raised:
        adopt(path, tmp_path, FLAGS)
    assert "--res" in str(raised.value.hint)
    copy = adopt(path, tmp_path, replace(FLAGS, resolution=SIZE))
    assert copy.description.resolution == SIZE
    require_any_batch(path, copy)
    with pytest.raises(InputError, match="does not run"):
        adopt(path, tmp_path, replace(FLAGS, resolution=(64, 64)))


def test_several_outputs_need_a_name(tmp_path: Path) -> None:
    names = ("last_hidden_state", "pooler_output")
    how = Exporting(14)
    path = export(transformers_vit(head=False), tmp_path / "vit.onnx", how, outputs=names)
    with pytest.raises(InputError, match="several outputs: last_hidden_state, pooler_output"):
        adopt(path, tmp_path, FLAGS)
    tokens = adopt(path, tmp_path, replace(FLAGS, answer="last_hidden_state"))
    assert tokens.description.output == "tokens"
    assert tokens.description.source.task == "features"
    assert tokens.description.source.labels == ()
    batch = images(3)
    answered = run(tokens.path, batch)
    assert answered.shape == (3, 7, 48)
    assert relative_error(answered, one_by_one(path, batch)) <= LIMIT
    pooled = adopt(path, tmp_path, replace(FLAGS, answer="pooler_output", task="features"))
    assert pooled.description.output == "features"
    assert relative_error(run(pooled.path, batch), one_by_one(path, batch, output=1)) <= LIMIT


def test_preprocessing_comes_from_the_file_beside_it_and_flags_go_first(
    fixed: Path, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(fixed.read_bytes())
    height, width = SIZE
    size = {"height": height, "width": width}
    ViTImageProcessor(size=size, image_mean=MEAN, image_std=STD).save_pretrained(tmp_path)
    names = {str(i): f"class {i}" for i in range(CLASSES)}
    (tmp_path / "config.json").write_text(json.dumps({"id2label": names}))
    source = adopt(path, tmp_path).description.source
    assert source.preprocessing == Preprocessing(
        mean=MEAN, std=STD, interpolation="bilinear", crop_mode="squash"
    )
    assert source.labels == tuple(names.values())
    flags = PreprocessingFlags(interpolation="lanczos")
    options = AdoptOptions(preprocessing=flags, labels=tuple("abcdefg"))
    source = adopt(path, tmp_path, options).description.source
    assert source.preprocessing.interpolation == "lanczos"
    assert source.preprocessing.mean == MEAN
    assert source.labels == tuple("abcdefg")
    with pytest.raises(InputError, match="2 labels were given for 7 classes"):
        adopt(path, tmp_path, replace(options, labels=("a", "b")))


def test_preprocessing_is_never_guessed(fixed: Path, tmp_path: Path) -> None:
    for flags in (PreprocessingFlags(), PreprocessingFlags(mean=MEAN)):
        with pytest.raises(InputError, match="nothing says how images become") as raised:
            adopt(fixed, tmp_path, AdoptOptions(preprocessing=flags))
        assert "--mean and --std" in str(raised.value.hint)
    gray = AdoptOptions(preprocessing=PreprocessingFlags(mean=(0.5,), std=(0.5,)))
    with pytest.raises(InputError, match="3 channels, and mean and std are of 1"):
        adopt(fixed, tmp_path, gray)
    assert not list(tmp_path.iterdir())


def test_another_size_than_the_graph_has_is_refused(fixed: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="takes 32x48 alone"):
        adopt(fixed, tmp_path, replace(FLAGS, resolution=(64, 64)))


def test_vitdeploys_own_graphs_are_used_as_they_are(adopted: OnnxModel, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="written by vitdeploy") as raised:
        adopt(adopted.path, tmp_path, FLAGS)
    assert "use it as it is" in str(raised.value.hint)


def _as_half(proto: onnx.ModelProto) -> None:
    proto.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16


def _half_inside(proto: onnx.ModelProto) -> None:
    first = proto.graph.node[0]
    there = onnx.helper.make_node("Cast", ["images"], ["half"], to=onnx.TensorProto.FLOAT16)
    back = onnx.helper.make_node("Cast", ["half"], ["back"], to=onnx.TensorProto.FLOAT)
    for node in proto.graph.node:
        node.input[:] = ["back" if name == "images" else name for name in node.input]
    assert first is proto.graph.node[0]
    proto.graph.node.insert(0, back)
    proto.graph.node.insert(0, there)


def _quantized(proto: onnx.ModelProto) -> None:
    scale = onnx.numpy_helper.from_array(np.float32(0.1), "scale")
    zero = onnx.numpy_helper.from_array(np.int8(0), "zero")
    proto.graph.initializer.extend([scale, zero])
    answer = proto.graph.output[0].name
    proto.graph.node[-1].output[0] = "float"
    proto.graph.node.append(
        onnx.helper.make_node("QuantizeLinear", ["float", "scale", "zero"], ["q"])
    )
    proto.graph.node.append(
        onnx.helper.make_node("DequantizeLinear", ["q", "scale", "zero"], [answer])
    )


def _second_input(proto: onnx.ModelProto) -> None:
    kind = onnx.TensorProto.INT64
    proto.graph.input.append(onnx.helper.make_tensor_value_info("attention_mask", kind, [1, 7]))


def _flat_input(proto: onnx.ModelProto) -> None:
    del proto.graph.input[0].type.tensor_type.shape.dim[1:]


def _of_one_runtime(proto: onnx.ModelProto) -> None:
    proto.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    (node,) = [n for n in proto.graph.node if n.op_type == "Conv"]
    node.domain, node.op_type = "com.microsoft", "NhwcConv"


def _resampled(proto: onnx.ModelProto) -> None:
    scales = onnx.numpy_helper.from_array(np.array([1, 1, 1, 1], np.float32), "scales")
    proto.graph.initializer.append(scales)
    for node in proto.graph.node:
        node.input[:] = ["resized" if name == "images" else name for name in node.input]
    resize = onnx.helper.make_node("Resize", ["images", "", "scales"], ["resized"], mode="cubic")
    proto.graph.node.insert(0, resize)


def _branching(proto: onnx.ModelProto) -> None:
    answer = proto.graph.output[0]
    proto.graph.node[-1].output[0] = "before"
    for name in ("positive", "negative"):
        value = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        op = "Identity" if name == "positive" else "Neg"
        node = onnx.helper.make_node(op, ["before"], [name])
        graph = onnx.helper.make_graph([node], name, [], [value])
        if name == "positive":
            then = graph
    total = onnx.helper.make_node("ReduceMax", ["before"], ["total"], keepdims=0)
    asked = onnx.helper.make_node("Cast", ["total"], ["asked"], to=onnx.TensorProto.BOOL)
    branch = onnx.helper.make_node(
        "If", ["asked"], [answer.name], then_branch=then, else_branch=graph
    )
    proto.graph.node.extend([total, asked, branch])


REFUSED = {
    "float16": (_as_half, "takes float16, not float32", "in float32"),
    "float16 inside": (_half_inside, "computes in float16", "--fp16"),
    "quantized": (_quantized, "quantized already", "float32 graph it was made from"),
    "a mask beside the images": (_second_input, "takes 2 inputs", "vision tower"),
    "no images": (_flat_input, "which are not images", "(batch, channels, height, width)"),
    "one runtime's operators": (_of_one_runtime, "com.microsoft.NhwcConv", "before a runtime"),
    "Resize": (_resampled, "resamples or branches while it runs (Resize)", "one size"),
    "If": (_branching, "resamples or branches while it runs (If)", "one size"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_taken_in_is_refused_with_a_remedy(
    name: str, fixed: Path, tmp_path: Path
) -> None:
    change, said, remedy = REFUSED[name]
    path = changed(fixed, change, tmp_path)
    with pytest.raises(InputError) as raised:
        adopt(path, tmp_path / "out", FLAGS)
    assert said in str(raised.value)
    assert remedy in str(raised.value.hint)
    assert not (tmp_path / "out").exists()


def test_a_batch_that_is_mixed_cannot_be_opened(tmp_path: Path) -> None:
    class Mixed(nn.Module):
        """Answers relative to the mean over the batch."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = timm_vit()

        def forward(self, x):  # type: ignore[no-untyped-def]
            y = self.inner(x)
            return y - 0.5 * y.mean(0, keepdim=True)

    path = export(Mixed().eval(), tmp_path / "mixed.onnx", Exporting(14, batch=2))
    with pytest.raises(
        ExportError, match=r"cannot be opened at /ReduceMean.*across images"
    ) as raised:
        adopt(path, tmp_path, FLAGS)
    assert "dynamic batch" in str(raised.value.hint)


DEFECTS = {
    "a class token for one image alone": (
        "_repeated",
        lambda graph, node, index, array, axis: node.inputs[index],
    ),
    "the batch kept in every Reshape": ("_open", lambda *given: None),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_batch_opened_wrongly_is_caught(
    name: str, fixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attribute, defect = DEFECTS[name]
    monkeypatch.setattr(open_batch, attribute, defect)
    with pytest.raises(ExportError, match=r"batch of 2|at batch 2"):
        adopt(fixed, tmp_path / "out", FLAGS)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("part", ["LayerNormalization", "MatMul", "Softmax"])
def test_a_copy_that_computes_otherwise_is_not_written(
    part: str, fixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = adopting.normal_form

    def wrong(model: ir.Model, *, opset: int) -> ir.Model:
        model = right(model, opset=opset)
        node = next(node for node in model.graph if node.op_type == part)
        if part == "LayerNormalization":
            node.attributes["epsilon"] = ir.AttrFloat32("epsilon", 1e-3)
        elif part == "Softmax":
            node.attributes["axis"] = ir.AttrInt64("axis", -2)
        else:
            weight = node.inputs[1]
            assert weight is not None
            assert weight.const_value is not None
            scaled = weight.const_value.numpy() * np.float32(1.001)
            weight.const_value = ir.Tensor(scaled, name=weight.name)
        return model

    monkeypatch.setattr(adopting, "normal_form", wrong)
    with pytest.raises(ExportError, match="differs from the file"):
        adopt(fixed, tmp_path / "out", FLAGS)
    assert not (tmp_path / "out").exists()


def test_answers_that_hardly_vary_prove_nothing(fixed: Path, tmp_path: Path) -> None:
    def silenced(proto: onnx.ModelProto) -> None:
        for tensor in proto.graph.initializer:
            if tensor.name == "head.weight":
                tensor.raw_data = bytes(len(tensor.raw_data))

    with pytest.raises(ExportError, match="nearly the same for every image"):
        adopt(changed(fixed, silenced, tmp_path), tmp_path / "out", FLAGS)


def test_what_was_recognised_is_in_the_written_file(adopted: OnnxModel) -> None:
    model = files.load(adopted)
    assert operators(model)["LayerNormalization"] == 5
    found = recognise(model)
    assert (len(found.linears), len(found.attentions), found.others) == (9, 2, {})
