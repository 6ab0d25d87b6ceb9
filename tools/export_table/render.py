"""Cells to a page."""

from __future__ import annotations

from typing import Any

from tools.export_table.rows import PRECISIONS, ROWS, Row, takes

Cell = dict[str, Any]

MOST_ERROR = 1e-4
LEAST_COSINE = 0.999
LEAST_AGREEMENT = 0.99
LEAST_WRONG = 1e-2
"""A wrong resampling must be off by a hundred times what is allowed."""

LEAST_QUANTIZED_AGREEMENT = 0.9
"""What INT8 and FP8 keep of random weights; below it a graph has lost its answers."""

_SIZES = ("native", "other", "oblong")
_COLUMNS = tuple(
    (size, precision) for precision in PRECISIONS for size in _SIZES if takes(precision, size)
)

_HEAD = """# Families, sources and sizes

Each cell was exported, run and built by `python -m tools.export_table run`; its figures stand in
`docs/export-table/`, one file a cell, with the versions they were taken with. Each starts from a
state dict of the native size, whose weights are random (no hub was in reach) and made such that a
mistake is seen:

- positions and tables of biases have unit deviation or more, LayerScale is around 0.5, the last
  norms of residual branches around 0.15, the ends of convolutional branches 0.3; queries and keys
  have unit gain (see `tools/export_table/weights.py`);
- statistics of batch norms are those of the images, the variance of a channel at least half of the
  channels' mean (cells of CoAtNet, `maxvit_tiny_tf_224`, LeViT, TinyViT, XCiT, Visformer,
  EfficientViT and ViTamin were taken without that half and without the 0.3: harder weights);
- classifiers are ridge regressions from the model's own features to the ten classes of the 32
  images, so that answers vary between images and are decided, as those of trained models.

What is measured, on the 32 images, in deviations of PyTorch's answers *between images* (a constant
that all images share hides nothing):

- **fp32**: the largest difference between ONNX Runtime and PyTorch (at most 1e-4 is green). In
  brackets, where ONNX Runtime's own sums over long groups were further off than that: its figure;
  the one before it is then of ONNX's reference implementation.
- **fp16**: the typed graph under the fused emulation against PyTorch: smallest cosine and top-1
  agreement, of feature towers agreement of the nearest neighbour (at least 0.999 and 99 %), where
  the best leads the second by more than FP16's noise (0.016 deviations); nodes kept in float32 in
  brackets.
- **int8**, **fp8** (native size): the int8-fp16 and fp8-fp16 graphs for a GPU, calibrated on 64
  other images, under the same emulation: smallest cosine and top-1 agreement; layers and products
  that are quantized in brackets. Random weights are harder than trained ones, so these forecast no
  trained model's accuracy (`docs/quantization.md` does); below 90 % is not green. FP8 rounds
  coarser than INT8 and shows it most where layers are many and narrow (XCiT, TNT).
- **RTX**: TensorRT-RTX built these graphs (no GPU needed): fp32 and int8 for SM86, SM89 and SM120,
  fp16 for SM75 too, fp8 for SM89 and SM120.
- **wrong**: the smallest error a wrong resampling (nearest, aligned corners, transposed grid) would
  have made; it must be far above 1e-4. Empty where nothing is resampled.
- **cannot**: refused before tracing, for the reason below the table.

"""


def rendered(cells: list[Cell]) -> str:
    """The page. Cells of rows that no longer exist are left out."""
    by_place = {(c["family"], c["model"], c["size"], c["precision"]): c for c in cells}
    lines = [_HEAD, _header()]
    bad: list[str] = []
    for row in ROWS:
        lines.append(_line(row, by_place, bad))
    lines += ["", *_definitions(by_place)]
    cannot = [
        f"- {_name(cell)}: {cell['error']}"
        for row in ROWS
        for size in _SIZES
        if (cell := by_place.get((row.family, row.model, size, "fp32"))) is not None
        and cell.get("before_tracing")
    ]
    if cannot:
        lines += ["", "## Sizes that a family does not take", "", *cannot]
    if bad:
        lines += ["", "## Not green", "", *(f"- {entry}" for entry in bad)]
    return "\n".join(lines) + "\n"


def _header() -> str:
    titles = ["family", "model"]
    titles += [*(" ".join(column) for column in _COLUMNS), "RTX", "wrong"]
    return f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}"


def _line(row: Row, cells: dict[tuple[str, str, str, str], Cell], bad: list[str]) -> str:
    parts = [row.family, f"`{row.model}`"]
    found = []
    for size, precision in _COLUMNS:
        cell = cells.get((row.family, row.model, size, precision))
        parts.append("not run" if cell is None else _figure(cell, bad))
        if cell is not None and "error" not in cell:
            found.append(cell)
    parts += [_builds(found, bad), _wrong(found, bad)]
    return f"| {' | '.join(parts)} |"


def _name(cell: Cell) -> str:
    size = "x".join(map(str, cell.get("resolution", [cell["size"]])))
    return f"{cell['family']} `{cell['model']}` {size} {cell['precision']}"


def _figure(cell: Cell, bad: list[str]) -> str:
    if cell.get("before_tracing"):
        return "cannot"
    if "error" in cell:
        bad.append(f"{_name(cell)}: {cell['error']}")
        return "refused"
    held = f" ({', '.join(cell['operators'])})" if cell["operators"] else ""
    if held:
        bad.append(f"{_name(cell)}: the graph holds {held.strip()}")
    if cell["precision"] == "fp32":
        if not cell["max_error"] <= MOST_ERROR:
            bad.append(f"{_name(cell)}: differs by {cell['max_error']:.1e}")
        runtimes = cell.get("runtime_error")
        return f"{cell['max_error']:.0e}{f' [{runtimes:.0e}]' if runtimes else ''}{held}"
    if cell["precision"] == "fp16":
        good = cell["cosine"] >= LEAST_COSINE and cell["agreement"] >= LEAST_AGREEMENT
        figure, counted = f"{cell['cosine']:.5f}", cell["kept_float32"]
    else:
        good = cell["agreement"] >= LEAST_QUANTIZED_AGREEMENT
        figure, counted = f"{cell['cosine']:.3f}", cell["quantized"]
    if not good:
        bad.append(f"{_name(cell)}: cosine {cell['cosine']:.4f}, agreement {cell['agreement']:.1%}")
    return f"{figure}, {cell['agreement']:.0%}{f' [{counted}]' if counted else ''}{held}"


def _builds(found: list[Cell], bad: list[str]) -> str:
    refused = [cell for cell in found if "error" in cell["builds"]]
    bad += [f"{_name(cell)}: TensorRT-RTX: {cell['builds']['error']}" for cell in refused]
    if not found:
        return "-"
    return f"{len(found) - len(refused)} of {len(found)}"


def _wrong(found: list[Cell], bad: list[str]) -> str:
    errors = {
        (cell["size"], how): error for cell in found for how, error in cell.get("wrong", {}).items()
    }
    if not errors:
        return ""
    for (size, how), error in errors.items():
        if not error >= LEAST_WRONG:
            bad.append(f"{_name(found[0])}: {how} at {size} is off by {error:.1e} only")
    return f"{min(errors.values()):.2g}"


def _definitions(cells: dict[tuple[str, str, str, str], Cell]) -> list[str]:
    lines = [
        "## How positions come to another size",
        "",
        "| family | model | positions |",
        "|---|---|---|",
    ]
    for row in ROWS:
        cell = cells.get((row.family, row.model, "oblong", "fp32"))
        if cell is not None and "error" not in cell:
            lines.append(f"| {row.family} | `{row.model}` | {cell['positions']} |")
    return lines
