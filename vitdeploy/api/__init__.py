"""The stages as Python functions: train, export, build, evaluate, benchmark, report.

Each takes and returns artifacts; the command line is a thin face over them.
What a stage needs is imported when its name is first used: a device that only
runs engines needs neither PyTorch nor timm, and a command that refuses its
arguments has loaded no library that it would not have used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitdeploy.api.engines import build_engine as build_engine
    from vitdeploy.api.engines import check_options as check_options
    from vitdeploy.api.engines import choose_backend as choose_backend
    from vitdeploy.api.engines import load_engine as load_engine
    from vitdeploy.api.engines import targets_of as targets_of
    from vitdeploy.api.evidence import benchmark as benchmark
    from vitdeploy.api.evidence import report as report
    from vitdeploy.api.judging import Baseline as Baseline
    from vitdeploy.api.judging import Criterion as Criterion
    from vitdeploy.api.judging import baseline_from_reference as baseline_from_reference
    from vitdeploy.api.judging import baseline_from_source as baseline_from_source
    from vitdeploy.api.judging import evaluate as evaluate
    from vitdeploy.api.judging import require_unseen as require_unseen
    from vitdeploy.api.machine import Diagnosis as Diagnosis
    from vitdeploy.api.machine import doctor as doctor
    from vitdeploy.api.sources import export as export
    from vitdeploy.api.sources import load_model as load_model
    from vitdeploy.api.sources import needs_torch as needs_torch
    from vitdeploy.api.sources import relabelled as relabelled
    from vitdeploy.api.sources import require_same_source as require_same_source
    from vitdeploy.api.sources import starting_point as starting_point
    from vitdeploy.api.sources import train as train
    from vitdeploy.backends.selftest.run import selftest as selftest
    from vitdeploy.benchmarks.accuracy.forecasting import forecast as forecast
    from vitdeploy.calibration.precision import PrecisionRequest as PrecisionRequest
    from vitdeploy.calibration.precision import with_precision as with_precision
    from vitdeploy.prediction import predict as predict

_NAMES = {
    "vitdeploy.api.sources": (
        "needs_torch",
        "load_model",
        "starting_point",
        "train",
        "export",
        "relabelled",
        "require_same_source",
    ),
    "vitdeploy.calibration.precision": ("PrecisionRequest", "with_precision"),
    "vitdeploy.api.engines": (
        "choose_backend",
        "targets_of",
        "check_options",
        "build_engine",
        "load_engine",
    ),
    "vitdeploy.api.judging": (
        "Baseline",
        "Criterion",
        "baseline_from_source",
        "baseline_from_reference",
        "require_unseen",
        "evaluate",
    ),
    "vitdeploy.benchmarks.accuracy.forecasting": ("forecast",),
    "vitdeploy.api.evidence": ("benchmark", "report"),
    "vitdeploy.prediction": ("predict",),
    "vitdeploy.backends.selftest.run": ("selftest",),
    "vitdeploy.api.machine": ("Diagnosis", "doctor"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(_MODULES)
