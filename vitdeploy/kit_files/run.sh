#!/bin/sh
# An environment beside the kit, with the system's own packages in sight: JetPack's TensorRT is one.
# RUNTIME names what else to install: RUNTIME=cpu, openvino, tensorrt-rtx, or (JetPack 6) none.
set -eu
cd "$(dirname "$0")"
if [ -e /etc/nv_tegra_release ]; then
    : "${RUNTIME:=none}"
else
    : "${RUNTIME:=cpu}"
fi
python="${PYTHON:-python3}"
if [ ! -x .venv/bin/python ]; then
    "$python" -m venv --system-site-packages .venv
fi
requirement="$(cat requirements.txt)"
if [ "$RUNTIME" != none ]; then
    requirement="vitdeploy[$RUNTIME]${requirement#vitdeploy}"
fi
options=""
if [ -d wheels ]; then options="--find-links wheels"; fi
if [ -f constraints.txt ]; then options="$options --constraint constraints.txt"; fi
# shellcheck disable=SC2086
.venv/bin/python -m pip install --quiet $options "$requirement" ${MORE:-}
exec .venv/bin/python run_kit.py "$@"
