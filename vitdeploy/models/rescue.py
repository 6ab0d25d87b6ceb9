"""Scripts that re-save what is never loaded here: pickled code, TorchScript, LoRA adapters.

A checkpoint can hold any Python object, and loading one runs its code. The user
who trusts a file runs the script printed, in the environment the file came from.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from vitdeploy.errors import InputError, first_line


def code_refused(path: Path, error: Exception) -> InputError:
    """The error for a file that weights-only loading refuses, with the script that re-saves it."""
    output = path.with_suffix(".safetensors")
    script = _RESAVE.format(path=str(path), output=str(output))
    found = re.search(r"Unsupported (?:global|class|operand)[^\n]*", str(error))
    reason = found.group(0) if found else first_line(error)
    return InputError(
        f"checkpoint {path} cannot be read: {reason}",
        hint="it is damaged, or holds pickled code, which is never run here. Where you trust the "
        f"file, re-save it where its code can be imported, and give {output}:\n{script}",
    )


def lora_refused(path: Path) -> InputError:
    """The error for a LoRA adapter, with the script that merges it into its base model."""
    folder = path if path.is_dir() else path.parent
    config = _adapter_config(folder)
    base = str(config.get("base_model_name_or_path") or "BASE_MODEL")
    merged = folder.with_name(f"{folder.resolve().name}-merged")
    mapping = config.get("auto_mapping") or {}
    name = str(mapping.get("base_model_class") or "AutoModelForImageClassification")
    if not name.isidentifier():
        name = "AutoModelForImageClassification"
    script = _MERGE.format(base=base, folder=str(folder), merged=str(merged), base_class=name)
    return InputError(
        f"{path} holds a LoRA adapter, not a model",
        hint=f"merge it into its base model {base} (pip install peft transformers), "
        f"and give the folder {merged}:\n{script}",
    )


def _adapter_config(folder: Path) -> dict[str, Any]:
    path = folder / "adapter_config.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, json.JSONDecodeError, UnicodeDecodeError):
        return {}  # the script then holds a placeholder, which its text names
    return content if isinstance(content, dict) else {}


_RESAVE = """\
python - <<'EOF'
import torch
from safetensors.torch import save_file
path = {path!r}
try:
    content = torch.load(path, map_location="cpu", weights_only=False)
except RuntimeError:
    content = torch.jit.load(path, map_location="cpu")
if isinstance(content, dict):
    for key in ("state_dict_ema", "model_ema", "ema", "state_dict", "model"):
        if key in content:
            content = content[key]
            break
state = content.state_dict() if hasattr(content, "state_dict") else content
tensors = {{k: v.detach().clone().contiguous() for k, v in state.items() if torch.is_tensor(v)}}
save_file(tensors, {output!r})
EOF"""

_MERGE = """\
python - <<'EOF'
from peft import PeftModel
from transformers import AutoImageProcessor, {base_class}
base = {base_class}.from_pretrained({base!r})
merged = PeftModel.from_pretrained(base, {folder!r}).merge_and_unload()
merged.save_pretrained({merged!r})
try:
    AutoImageProcessor.from_pretrained({base!r}).save_pretrained({merged!r})
except (OSError, ValueError):
    print("the base model has no image processor: give --mean and --std")
EOF"""
