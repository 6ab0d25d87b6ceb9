"""The rows of the table: one model per family and source."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Size = tuple[int, int]


@dataclass(frozen=True)
class Row:
    """A family by one model, and the two sizes beside its own.

    `model_kwargs` are the source's own arguments; of a 'transformers:' class
    they are its configuration.
    """

    family: str
    model: str
    other: Size = (288, 288)
    oblong: Size = (256, 320)
    task: str = "classify"
    model_kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """A file name."""
        name = "".join(c if c.isalnum() or c in "-_." else "-" for c in self.model)
        return f"{self.family.replace(' ', '-')}--{name}"


PRECISIONS = ("fp32", "fp16", "int8", "fp8")


def takes(precision: str, size: str) -> bool:
    """Whether there is such a cell: quantized graphs are looked at in the native size alone."""
    return size == "native" or precision in ("fp32", "fp16")


_PATCH14: dict[str, Any] = {"other": (280, 280), "oblong": (252, 322)}

_TINY: dict[str, Any] = {
    "hidden_size": 192,
    "num_hidden_layers": 12,
    "num_attention_heads": 3,
    "image_size": 224,
    "patch_size": 16,
}
_TINY_MLP: dict[str, Any] = {**_TINY, "intermediate_size": 768}
_TINY_14: dict[str, Any] = {**_TINY, "patch_size": 14}
_FACTORY: dict[str, Any] = {
    "image_size": 224,
    "patch_size": 16,
    "dim": 192,
    "depth": 12,
    "heads": 3,
    "mlp_dim": 768,
}

ROWS = (
    Row("vit", "vit_tiny_patch16_224"),
    Row("vit", "vit_base_patch16_224", (384, 384), (384, 512)),
    Row("vit", "vit_small_patch32_224"),
    Row("vit average pooling", "vit_medium_patch16_gap_240"),
    Row("hybrid", "vit_tiny_r_s16_p8_224"),
    Row("hybrid", "vit_base_r50_s16_224"),
    Row("deit", "deit_tiny_patch16_224"),
    Row("deit distilled", "deit_tiny_distilled_patch16_224"),
    Row("deit3", "deit3_small_patch16_224"),
    Row("flexivit", "flexivit_small"),
    Row("beit", "beit_base_patch16_224"),
    Row("beitv2", "beitv2_base_patch16_224"),
    Row("vit_relpos", "vit_relpos_small_patch16_224"),
    Row("vit_srelpos", "vit_srelpos_small_patch16_224"),
    Row("eva02", "eva02_tiny_patch14_224", **_PATCH14),
    Row("dinov2", "vit_small_patch14_dinov2", (280, 280), (252, 322), "features"),
    Row("dinov2 registers", "vit_small_patch14_reg4_dinov2", (280, 280), (252, 322), "features"),
    Row("dinov3", "vit_small_patch16_dinov3", (320, 320), (256, 320), "features"),
    Row("rope", "vit_small_patch16_rope_224"),
    Row("siglip", "vit_base_patch16_siglip_224", task="features"),
    Row("clip", "vit_base_patch32_clip_224"),
    Row("swin", "swin_tiny_patch4_window7_224"),
    Row("swinv2", "swinv2_tiny_window8_256", (320, 320)),
    Row("swinv2_cr", "swinv2_cr_tiny_224"),
    Row("maxvit", "maxvit_tiny_tf_224"),
    Row("maxvit", "maxvit_rmlp_pico_rw_256", (320, 320)),
    Row("coatnet", "coatnet_0_rw_224"),
    Row("hiera", "hiera_tiny_224"),
    Row("levit", "levit_128s"),
    Row("mobilevit", "mobilevit_xxs", (320, 320)),
    Row("mobilevitv2", "mobilevitv2_050", (320, 320)),
    Row("tiny_vit", "tiny_vit_5m_224"),
    Row("pit", "pit_ti_224"),
    Row("convit", "convit_tiny"),
    Row("davit", "davit_tiny"),
    Row("naflexvit", "naflexvit_base_patch16_gap", (256, 256), (256, 320)),
    Row("volo", "volo_d1_224"),
    Row("cait", "cait_xxs24_224"),
    Row("xcit", "xcit_nano_12_p16_224"),
    Row("tnt", "tnt_s_patch16_224"),
    Row("visformer", "visformer_tiny"),
    Row("efficientvit", "efficientvit_m0", (320, 320), (256, 320)),
    Row("vitamin", "vitamin_small_224"),
    Row("samvit", "samvit_base_patch16_224", task="features"),
    Row("test_vit", "test_vit", (192, 192), (160, 224)),
    Row("test_vit", "test_vit2", (256, 256), (256, 320)),
    Row("vit", "torchvision:vit_b_16"),
    Row("vit", "torchvision:vit_b_32"),
    Row("swin", "torchvision:swin_t"),
    Row("swinv2", "torchvision:swin_v2_t"),
    Row("maxvit", "torchvision:maxvit_t", (448, 448), (224, 448)),
    Row("vit", "transformers:ViTForImageClassification", model_kwargs=_TINY_MLP),
    Row("deit", "transformers:DeiTForImageClassification", model_kwargs=_TINY_MLP),
    Row(
        "deit distilled",
        "transformers:DeiTForImageClassificationWithTeacher",
        model_kwargs=_TINY_MLP,
    ),
    Row(
        "beit",
        "transformers:BeitForImageClassification",
        model_kwargs={**_TINY_MLP, "use_relative_position_bias": True},
    ),
    Row(
        "dinov2",
        "transformers:Dinov2ForImageClassification",
        model_kwargs=_TINY_14,
        **_PATCH14,
    ),
    Row("dinov2", "transformers:Dinov2Model", task="features", model_kwargs=_TINY_14, **_PATCH14),
    Row(
        "dinov2 registers",
        "transformers:Dinov2WithRegistersModel",
        task="features",
        model_kwargs=_TINY_14,
        **_PATCH14,
    ),
    Row("dinov3", "transformers:DINOv3ViTModel", task="features", model_kwargs=_TINY_MLP),
    Row("swin", "transformers:SwinForImageClassification"),
    Row(
        "swinv2",
        "transformers:Swinv2ForImageClassification",
        (320, 320),
        model_kwargs={"image_size": 256, "window_size": 8},
    ),
    Row("clip", "transformers:CLIPVisionModel", task="features", model_kwargs=_TINY_MLP),
    Row(
        "clip",
        "transformers:CLIPVisionModelWithProjection",
        task="features",
        model_kwargs={**_TINY_MLP, "projection_dim": 128},
    ),
    Row("siglip", "transformers:SiglipVisionModel", task="features", model_kwargs=_TINY_MLP),
    Row("vit", "vit_pytorch:ViT", model_kwargs=_FACTORY),
    Row("vit", "vit_pytorch.simple_vit:SimpleViT", model_kwargs=_FACTORY),
)
