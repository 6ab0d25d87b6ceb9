"""Build, judge and time the engines of this kit; the report to bring back is results.zip."""

import sys
from pathlib import Path

try:
    from vitdeploy.cli import main
except ImportError as error:
    sys.exit(
        f"error: vitdeploy is not installed for {sys.executable}: {error}\n"
        " hint: run `sh run.sh`, or pip install -r requirements.txt and the device's runtime"
    )

# TensorRT builds, and cold starts are measured, in processes of their own.
if __name__ == "__main__":
    sys.argv[1:1] = ["run-kit", str(Path(__file__).resolve().parent)]
    main()
