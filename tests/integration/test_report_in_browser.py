"""Reports as a browser shows them: wide, on a phone, in the dark; by the rules of axe-core."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from report_samples import L4, QUIET, accuracy, details, report, timing

from vitdeploy.artifacts.onnx_model import FallbackStep, Quantization
from vitdeploy.benchmarks.report.html import merged_to_html, to_html
from vitdeploy.benchmarks.report.merge import merge
from vitdeploy.benchmarks.report.model import Flip
from vitdeploy.benchmarks.speed.roofline import MachinePeak

_NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, _NAMES)), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="browser: no Chromium on this machine")

PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGA"
    "WjR9awAAAABJRU5ErkJggg=="
)
_PHONE = 390
PROBE = """
const errors = [];
addEventListener('error', event => errors.push(String(event.message)));
document.documentElement.style.width = WIDTH;
axe.run(document).then(found => {
  const limit = document.documentElement.getBoundingClientRect().right + 1;
  const wide = [...document.querySelectorAll('body *')].filter(
    element => !element.closest('.plot, .scroll') && element.getBoundingClientRect().right > limit);
  document.documentElement.dataset.found = JSON.stringify({
    violations: found.violations.map(v => v.id + ': ' + v.nodes.map(n => n.html).join(' ')),
    wide: wide.map(element => element.outerHTML.slice(0, 200)),
    cards: getComputedStyle(document.querySelector('thead')).display === 'none',
    dark: matchMedia('(prefers-color-scheme: dark)').matches, errors});
});
"""


@dataclass(frozen=True)
class Mode:
    window: str
    width: str = "auto"
    flags: tuple[str, ...] = ()


MODES = {
    "wide": Mode("1280,900"),
    # Headless windows are 500 pixels wide at least; the page inside is made narrower.
    "phone": Mode("500,844", f"'{_PHONE}px'"),
    "dark": Mode("1280,900", flags=("--blink-settings=preferredColorScheme=0",)),
}


def page_of_one() -> str:
    timed = report({"fp32": (60, accuracy(0, 0)), "int8-fp32": (25, accuracy(9, 7))})
    steps = (FallbackStep(0, 100, 0.95, 1.9, 2.8, "fail", 212.0),
             FallbackStep(2, 100, 0.99, 0.1, 0.2, "pass", 205.0, held_out=True))  # fmt: skip
    plan = Quantization("min-max", 256, (), ("/blocks.0/fc1",), {"/head": "last"}, fallback=steps)
    return to_html(
        replace(
            timed,
            rows=tuple(replace(row, details=details(row.precision)) for row in timed.rows),
            peak=MachinePeak(100.0, 400.0, 20.0, "ONNX Runtime"),
            source_forms=(timing("PyTorch compiled bf16", 40, QUIET, 1),),
            flips=(Flip("engine", "a.png", PIXEL, "cat", "cat", "dog"),),
            quantization=plan,
            notes=("Timed with 2 threads.",),
        )
    )


def page_of_many() -> str:
    timed = report({"fp32": (60, accuracy(0, 0)), "int8-fp32": (25, accuracy(9, 7))})
    own = replace(timed.rows[1], details=details("int8"))
    on_gpu = report({"fp16": (4, accuracy(90, 1))}, environment=L4, backend="tensorrt",
                    targets=("sm89",))  # fmt: skip
    return merged_to_html(merge([replace(timed, rows=(timed.rows[0], own)), on_gpu]))


PAGES = {"one": page_of_one, "many": page_of_many}


def shown(page: str, mode: Mode, folder: Path) -> dict[str, Any]:
    """What Chromium and axe-core find of `page`, once as it is and once with a probe in it."""
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
               f"--window-size={mode.window}", "--virtual-time-budget=20000", *mode.flags,
               f"--user-data-dir={folder / 'profile'}", "--dump-dom"]  # fmt: skip

    def dumped(name: str, content: str) -> subprocess.CompletedProcess[str]:
        (folder / name).write_text(content, encoding="utf-8")
        address = (folder / name).as_uri()
        return subprocess.run(
            [*command, address], capture_output=True, text=True, timeout=240, check=True
        )

    as_it_is = dumped("page.html", page)
    place = find_spec("axe_core_python")
    assert place is not None
    assert place.submodule_search_locations
    axe = Path(place.submodule_search_locations[0], "axe.min.js").read_text(encoding="utf-8")
    # The page's own policy lets no script run, and so none of ours.
    opened = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    probe = PROBE.replace("WIDTH", mode.width if mode.width != "auto" else "'auto'")
    scripts = f"<script>{axe}</script><script>{probe}</script></body>"
    done = dumped("probed.html", opened.replace("</body>", scripts))
    found = re.search(r'data-found="([^"]*)"', done.stdout)
    assert found, done.stderr[-2000:]
    console = [line for line in as_it_is.stderr.splitlines() if "CONSOLE" in line]
    return {**json.loads(html.unescape(found[1])), "console": console}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("page", PAGES)
def test_a_report_is_for_everyone(page: str, mode: str, tmp_path: Path) -> None:
    found = shown(PAGES[page](), MODES[mode], tmp_path)
    assert found == {
        "violations": [], "wide": [], "cards": mode == "phone", "dark": mode == "dark",
        "errors": [], "console": [],
    }  # fmt: skip


def test_what_is_wrong_with_a_page_is_found(tmp_path: Path) -> None:
    """A picture that nobody describes, pale words, a line too long for a phone, a script."""
    wrong = page_of_many().replace(
        "<main>",
        f'<main><img src="{PIXEL}"><p style="color: #888; background: #999">pale</p>'
        '<p style="width: 700px">long</p><script>lost()</script>',
    )
    found = shown(wrong, MODES["phone"], tmp_path)
    rules = {violation.split(":")[0] for violation in found["violations"]}
    assert {"image-alt", "color-contrast"} <= rules
    assert any("700px" in element for element in found["wide"])
    assert any("Content Security Policy" in line for line in found["console"])
