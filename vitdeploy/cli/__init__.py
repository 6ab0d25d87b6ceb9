"""The command line: one module a command, loaded only when it is called.

`vitdeploy --help` imports click and nothing else, so it answers at once.
"""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
import traceback
from types import FrameType

import click

from vitdeploy import __version__
from vitdeploy.cli import streams
from vitdeploy.errors import InputError, VitDeployError, one_line

_COMMANDS = {
    "demo": ("demo", "Take the embedded model all the way, offline, in about a minute."),
    "train": ("train", "Fine-tune or train a ViT on an image folder."),
    "export": ("export", "PyTorch to a verified ONNX graph, at any resolution."),
    "adopt": ("adopt", "An ONNX graph of another exporter, taken in and proved equal."),
    "calibrate": ("calibrate", "Choose the images that INT8 ranges come from; examine them."),
    "plan": ("plan", "Which nodes would be quantized for a target, which not, and why."),
    "build-engine": ("build_engine", "A graph to FP32, FP16, INT8 or FP8 engines for a device."),
    "evaluate": ("evaluate", "Judge an engine against its source on the same images."),
    "diagnose": ("diagnose", "Where an engine loses its source's answers: stage, then layer."),
    "benchmark": ("benchmark", "Time engines interleaved with their source."),
    "predict": ("predict", "Labels and scores of images, from any engine or graph."),
    "package": ("package", "Pack graphs, images and answers for a device that builds itself."),
    "run-kit": ("run_kit", "On the device: build, judge and time what was packed."),
    "report": ("report", "Write the findings as JSON, Markdown and HTML."),
    "inspect": ("inspect", "What a graph or engine holds; its positions before and after."),
    "selftest": ("selftest", "Whether a backend works on this machine: build, compare, time."),
    "doctor": ("doctor", "What this machine can do, and what is missing."),
}
_INTERRUPTED = 130
_BUG = 70
_MACHINES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
"""Errors of the disk itself, which carry no file's name when a write fails."""


class LazyGroup(click.Group):
    """A group that knows its commands' one-line helps without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"vitdeploy.cli.{_COMMANDS[cmd_name][0]}")
        return module.command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in _COMMANDS:
            from difflib import get_close_matches

            near = get_close_matches(args[0], list(_COMMANDS), n=1)
            raise InputError(
                f"there is no command {args[0]!r}",
                hint=f"did you mean {near[0]}?" if near else "vitdeploy --help lists them",
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands, in the order of the work"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="vitdeploy")
@click.pass_context
def cli(context: click.Context) -> None:
    """Take a Vision Transformer from PyTorch to the engine that runs it best,
    at any resolution, and prove that nothing was lost on the way.

    What a command is not told comes from vitdeploy.toml in this folder and from
    the newest artifact of the same model; it says what it picked.

    Exit codes: 0 done, 2 usage or input, 3 a dependency or device is missing,
    4 export, 5 calibration, 6 engine, 7 measurement unstable, 10 a gate failed,
    11 inconclusive, 70 our bug, 130 interrupted.
    """
    if context.invoked_subcommand is None:
        # click itself does this too, with a code that depends on its version.
        click.echo(context.get_help())
        context.exit(InputError.exit_code)


def main() -> None:
    """Run the command line and exit with the code of what happened."""
    _heed_interrupts()
    streams.prepare()
    try:
        _require_working_folder()
        code = cli.main(standalone_mode=False)
        streams.flush()
    except (click.Abort, KeyboardInterrupt):
        # An interrupt that passed through exec() of a string, as PyTorch's tracing does, makes
        # CPython end by the signal whatever code we exit with; running another one clears that.
        exec("")
        code = _say(
            "interrupted; nothing half-written was left behind",
            "run it again; `vitdeploy train` goes on after the last epoch with --resume",
            _INTERRUPTED,
        )
    except click.ClickException as error:
        code = _say(error.format_message(), _usage_hint(error), InputError.exit_code)
    except VitDeployError as error:
        code = _say(one_line(str(error)), error.hint, error.exit_code, error.label)
    except Exception as error:  # noqa: BLE001 - shown whole, with the exit code that says so
        code = _unforeseen(error)
    sys.exit(code if isinstance(code, int) else 0)


def _require_working_folder() -> None:
    """Raise InputError where the folder we were started in is gone: libraries only crash there."""
    try:
        os.getcwd()  # noqa: PTH109 - Path.cwd() is the same call
    except OSError as error:
        raise InputError(
            f"the working folder cannot be used: {error.strerror or error}",
            hint="cd into a folder that exists",
        ) from error


def _unforeseen(error: Exception) -> int:
    """What no stage turned into an error of ours: the machine's limits, or a bug."""
    if _is_out_of_memory(error):
        return _say(
            "there is not enough memory for this",
            "give a smaller --batch or --res, or a smaller model",
            InputError.exit_code,
        )
    if isinstance(error, OSError) and (error.filename is not None or error.errno in _MACHINES):
        where = "" if error.filename is None else f"{one_line(str(error.filename))}: "
        return _say(
            f"{where}{error.strerror or error}",
            "check the path, its permissions and the disk",
            InputError.exit_code,
        )
    traceback.print_exception(error)
    return _say("this is a bug of vitdeploy", "report it with the lines above", _BUG)


def _is_out_of_memory(error: Exception) -> bool:
    """PyTorch has no MemoryError: on a CPU a RuntimeError says so, on a GPU a type of its own."""
    told = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    return told or isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def _say(message: str, hint: str | None, code: int, label: str = "error") -> int:
    click.echo(f"{label}: {message}", err=True)
    if hint:  # it may be a script of several lines
        lines = [one_line(line) for line in hint.split("\n")]
        click.echo(" hint: " + "\n".join(lines), err=True)
    return code


def _usage_hint(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    path = "vitdeploy" if context is None else context.command_path
    return f"`{path} --help` lists what it takes"


def _heed_interrupts() -> None:
    """Let the first interrupt end the work, and none disturb the cleaning up that follows."""
    signals = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as shells start jobs behind `&`
        signals.append(signal.SIGINT)

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for each in signals:
            # A handler of ours would be taken back while the interpreter ends.
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    for each in signals:
        signal.signal(each, interrupt)
