"""Search for the nodes that have to stay in float32 until the forecast holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vitdeploy.artifacts.onnx_model import Emulated
from vitdeploy.backends.onnxruntime_ import GraphSession
from vitdeploy.errors import ExportError
from vitdeploy.export import forecast, half_plan
from vitdeploy.export.damage import Damage, WorstFirst
from vitdeploy.export.forecast import Tolerance
from vitdeploy.export.half_plan import Reasons
from vitdeploy.export.passes.half import to_half_types
from vitdeploy.graph import files
from vitdeploy.graph.emulation import SWITCHES, Variant, emulated, rounded_name, switchable
from vitdeploy.graph.half import HalfType, infer_missing_types
from vitdeploy.graph.observation import with_magnitudes
from vitdeploy.graph.rounding import PRODUCTS, RoundingGroup

_MOST_PRODUCTS = 0.5
"""Share of the products (MatMul, Gemm, Conv) in float32 beyond which half precision is no gain."""

_BATCH = 2
"""Inputs in memory at a time: what ONNX Runtime holds between operators is larger than a ViT-B."""


@dataclass(frozen=True)
class Typed:
    """A typed graph, its nodes in float32, what the fused emulation answered, and how near."""

    graph: ir.Model
    kept: Reasons
    answered: NDArray[np.float32]
    fused: Emulated


class HalfSearch:
    """Judges typed forms of one float32 graph on the same inputs.

    `classes`: the output is one logit a class, so that top-1 means something.
    Optimizations of ONNX Runtime stay off: the reference of a Q/DQ graph is
    the graph as it is written.
    """

    def __init__(
        self,
        graph: ir.Model,
        half: HalfType,
        tolerance: Tolerance,
        inputs: NDArray,
        *,
        classes: bool,
    ) -> None:
        half_plan.name_nodes(graph.graph)
        self._graph = infer_missing_types(graph)
        self._groups = half_plan.Groups(self._graph.graph)
        self._half = half
        self._tolerance = tolerance
        self._inputs = inputs
        self._classes = classes
        self._observed = half_plan.observable(graph)
        self._exact, self._largest = self._run_observed(graph, self._observed)
        self.compared(self._exact)

    def typed(self) -> Typed:
        """The typed graph with as few nodes in float32 as its forecast needs.

        Raises ExportError where half of the graph would have to stay in float32.
        """
        found = self.keeping({})
        if self.holds(found.fused):
            return found
        return self._without_the_most_damaging(found)

    def keeping(self, kept: Reasons) -> Typed:
        """The typed graph with `kept` and whatever would overflow in float32; no more is asked."""
        overflowing = half_plan.overflowing(self._graph, self._largest, self._half)
        return self._finite({**overflowing, **half_plan.required(self._graph, self._half), **kept})

    def answers(self, typed: ir.Model, variant: Variant) -> NDArray[np.float32]:
        """The output of an emulation on the search's inputs."""
        return self._run(self._session(emulated(typed, variant)))[0]

    def compared(self, answered: NDArray[np.float32]) -> Emulated:
        """How far an answer is from float32's."""
        return forecast.compared(self._exact, answered, self._tolerance, classes=self._classes)

    def holds(self, found: Emulated) -> bool:
        """Whether a forecast is good enough to ship."""
        return forecast.holds(found, self._tolerance, classes=self._classes)

    def _finite(self, kept: Reasons) -> Typed:
        """Keep more nodes until every value of the fused emulation is finite."""
        while True:
            typed = self._typed(kept)
            model = emulated(typed, "fused")
            rounded = self._rounded_names(model)
            answered, largest = self._run_observed(model, [*rounded])
            broken = {
                rounded[name]
                for name, found in largest.items()
                if np.isfinite(self._largest[rounded[name]]) and not np.isfinite(found)
            }
            if not broken:
                return Typed(typed, kept, answered, self.compared(answered))
            more = half_plan.not_finite(self._graph, broken, kept)
            if not more:
                raise ExportError(
                    f"{min(broken)} is not finite in {self._half.name}, whatever stays in float32",
                    hint="keep this model in fp32",
                )
            kept = {**kept, **more}

    def _rounded_names(self, model: ir.Model) -> dict[str, str]:
        """What to look at in an emulation, with the name of the float32 graph's value.

        A value in float32 may be rounded behind the Cast that others read it through.
        """
        names = {str(value.name) for node in model.graph for value in node.outputs}
        forms = {
            form: name
            for name in self._observed
            for form in (name, rounded_name(name), rounded_name(f"{name}_{self._half.name}"))
        }
        return {form: name for form, name in forms.items() if form in names}

    def _without_the_most_damaging(self, start: Typed) -> Typed:
        """Keep the groups whose rounding moves the output most: 1, 2, 4, ..., then as few as do."""
        errors = np.square(start.answered - self._exact).reshape(len(self._exact), -1).sum(1)
        hardest = np.argsort(-errors)
        damages = self._damages(start, hardest[:1])
        enough, count, failed = False, 1, 0
        while not enough:
            count = self._most_sensible(start.kept, damages.first(count))
            if count == failed:
                raise self._hopeless(start, damages.first(5))
            enough = self._holds_with(self._with(start.kept, damages.first(count)), hardest)
            if not enough:
                failed, count = count, 2 * count
        while count - failed > 1:
            middle = (count + failed) // 2
            if self._holds_with(self._with(start.kept, damages.first(middle)), hardest):
                count = middle
            else:
                failed = middle
        return self._finite(self._with(start.kept, damages.first(count)))

    def _holds_with(self, kept: Reasons, order: NDArray[np.int64]) -> bool:
        """Whether the forecast holds with `kept`; inputs in this order, until one fails."""
        session = self._session(emulated(self._typed(kept), "fused"))
        answered = self._exact.copy()
        for at in range(0, len(order), _BATCH):
            rows = order[at : at + _BATCH]
            answered[rows] = session.run_all(self._inputs[rows])[0]
            if not self.holds(self.compared(answered)):
                return False
        return True

    def _most_sensible(self, kept: Reasons, damages: list[Damage]) -> int:
        """How many of the groups may stay in float32 until too many products do."""
        products = {str(n.name) for n in self._graph.graph if n.op_type in PRODUCTS}
        allowed = _MOST_PRODUCTS * len(products)
        counts = range(len(damages), 0, -1)
        within = (n for n in counts if len(products & {*self._with(kept, damages[:n])}) <= allowed)
        return next(within, 0)

    def _damages(self, start: Typed, rows: NDArray[np.int64]) -> WorstFirst:
        """The groups of the typed graph by their damage to these inputs; for a ranking one does."""
        weights = {
            name: value.const_value
            for name, value in self._graph.graph.initializers.items()
            if value.const_value is not None
        }
        model, groups = switchable(start.graph, weights)
        session = self._session(model)
        spread = float((self._exact - self._exact.mean(0)).std())

        def error(rounding: range) -> float:
            switches = np.isin(np.arange(len(groups)), rounding)
            answered = session.run_all(self._inputs[rows], {SWITCHES: switches})[0]
            found = float(np.sqrt(np.mean((answered - self._exact[rows]) ** 2))) / spread
            return found if np.isfinite(found) else np.inf

        return WorstFirst(groups, error)

    def _with(self, kept: Reasons, damages: list[Damage]) -> Reasons:
        """`kept` and what keeps these groups' values in float32: who answers, who reads."""
        more = dict(kept)
        for group, damage in damages:
            value = self._original(group)
            why = f"rounding {value.name} alone moves the output by {damage:.3g} deviations"
            for name in self._groups.around(value):
                more.setdefault(name, why)
        return more

    def _original(self, group: RoundingGroup) -> ir.Value:
        """The value of the float32 graph that a group of the typed graph rounds."""
        last = group.nodes[-1]
        values = {str(node.name): node.outputs[0] for node in self._graph.graph}
        if str(last.name) in values:
            return values[str(last.name)]
        source = last.inputs[0]  # a Cast that typing put in
        assert source is not None
        named = [*self._graph.graph.inputs, *(v for n in self._graph.graph for v in n.outputs)]
        return next(value for value in named if value.name == source.name)

    def _hopeless(self, start: Typed, damages: list[Damage]) -> ExportError:
        worst = ", ".join(f"{group.nodes[-1].name} ({error:.3g})" for group, error in damages[:5])
        return ExportError(
            f"{self._half.name} does not keep the model's answers "
            f"({forecast.in_words(start.fused)}; needed: cosine "
            f"{self._tolerance.cosine}, agreement {100 * forecast.LEAST_AGREEMENT:.0f} %); "
            f"most to blame, in deviations of the output: {worst}",
            hint="keep this model in fp32"
            + (", or try fp16, which is finer" if self._half.name == "bf16" else ""),
        )

    def _typed(self, kept: Reasons) -> ir.Model:
        return to_half_types(self._graph.clone(), self._half, keep=kept.keys())

    def _run_observed(
        self, model: ir.Model, names: Sequence[str]
    ) -> tuple[NDArray[np.float32], dict[str, float]]:
        """The output, and each value's largest magnitude (NaN where the value holds one)."""
        answered, *numbers = self._run(self._session(with_magnitudes(model, names)))
        largest = np.array([np.max(parts) for parts in numbers[0::2]], np.float64)
        sums = np.array([np.sum(parts) for parts in numbers[1::2]], np.float64)
        magnitudes = np.where(np.isfinite(sums), largest, np.nan)
        return answered, dict(zip(names, map(float, magnitudes), strict=True))

    def _run(self, session: GraphSession) -> list[NDArray[np.float32]]:
        """Every output, run `_BATCH` inputs at a time; one number a batch for observers."""
        starts = range(0, len(self._inputs), _BATCH)
        parts = [session.run_all(self._inputs[at : at + _BATCH]) for at in starts]
        return [
            np.concatenate([np.atleast_1d(p) for p in each]) for each in zip(*parts, strict=True)
        ]

    def _session(self, model: ir.Model) -> GraphSession:
        return GraphSession(files.runnable(model), optimize=False)
