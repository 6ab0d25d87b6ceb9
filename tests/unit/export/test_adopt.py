"""Adopting: files of other exporters become artifacts, for any batch, proved equal."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from foreign_graphs import (
    CLASSES,
    FLAGS,
    MEAN,
    SIZE,
    STD,
    Exporting,
    changed,
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
from vitdeploy.errors import InputError
from vitdeploy.export.adopting.adopt import AdoptOptions, PreprocessingFlags, adopt
from vitdeploy.graph import files
from vitdeploy.graph.recognition import recognise
from vitdeploy.preprocessing import Preprocessing, Size

LIMIT = 1e-5


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


def _weights_in_nodes(proto: onnx.ModelProto) -> None:
    nodes = [
        onnx.helper.make_node("Constant", [], [tensor.name], value=tensor)
        for tensor in proto.graph.initializer
    ]
    del proto.graph.initializer[:]
    for node in nodes:
        proto.graph.node.insert(0, node)


def _weights_as_inputs(proto: onnx.ModelProto) -> None:
    """As files of IR version 3 list them; without names of nodes, which are optional."""
    for tensor in proto.graph.initializer:
        sides = list(tensor.dims)
        value = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, sides)
        proto.graph.input.append(value)
    for node in proto.graph.node:
        node.name = ""


def _long_domain(proto: onnx.ModelProto) -> None:
    proto.opset_import[0].domain = "ai.onnx"
    for node in proto.graph.node:
        node.domain = "ai.onnx"


def _weights_behind_transpose(proto: onnx.ModelProto) -> None:
    """The head's weight is stored the other way round, behind Identity and Transpose."""
    (weight,) = (t for t in proto.graph.initializer if t.name == "head.weight")
    turned = onnx.numpy_helper.to_array(weight).T.copy()
    weight.CopyFrom(onnx.numpy_helper.from_array(turned, "stored"))
    same = onnx.helper.make_node("Identity", ["stored"], ["same"])
    back = onnx.helper.make_node("Transpose", ["same"], ["head.weight"], perm=[1, 0])
    proto.graph.node.insert(0, back)
    proto.graph.node.insert(0, same)


@pytest.mark.parametrize(
    "written", [_weights_in_nodes, _weights_as_inputs, _long_domain, _weights_behind_transpose]
)
def test_however_the_same_graph_is_written(
    written: Callable[[onnx.ModelProto], None], fixed: Path, adopted: OnnxModel, tmp_path: Path
) -> None:
    copy = adopt(changed(fixed, written, tmp_path), tmp_path, FLAGS)
    assert operators(files.load(copy)) == operators(files.load(adopted))
    require_any_batch(fixed, copy)


def test_weights_beside_the_file(fixed: Path, adopted: OnnxModel, tmp_path: Path) -> None:
    path = tmp_path / "split.onnx"
    onnx.save(
        onnx.load(fixed), path, save_as_external_data=True, location="w.bin", size_threshold=100
    )
    first = adopt(path, tmp_path, FLAGS)
    require_any_batch(fixed, first)
    (tmp_path / "w.bin").unlink()
    with pytest.raises(InputError, match=r"w\.bin"):
        adopt(path, tmp_path, FLAGS)


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


def test_what_was_recognised_is_in_the_written_file(adopted: OnnxModel) -> None:
    model = files.load(adopted)
    assert operators(model)["LayerNormalization"] == 5
    found = recognise(model)
    assert (len(found.linears), len(found.attentions), found.others) == (9, 2, {})
