"""The command line as a whole: errors, exit codes, version, entry points."""

import subprocess
import sys

import pytest

import fedran
from fedran.cli.main import find_commands

COMMANDS = find_commands()


PLANNED = ("--classes", "2", "--in-features", "8", "--rows", "9")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["inspect", "nowhere.fedran"], "nowhere.fedran: no such file"),
        (["inspect", "."], "this is a folder"),
        (["plan", "--bugdet", "3"], "Did you mean '--budget'? (see"),
        (["plan", *PLANNED], "Missing option '--budget'"),
        (["plan", *PLANNED, "--min-group", "0", "--budget", "1"], "positive integer"),
        (["plan", *PLANNED, "--budget", "x"], "such as 2000000"),
        (["nonsense"], "No such command"),
        (["inspct", "x"], "did you mean 'inspect'"),
        (["revise", "x"], "No such command 'revise' (did you mean 'federation revise'?)"),
        (["run", "x.toml"], "No such command 'run' (did you mean 'bench run'?)"),
    ],
)
def test_errors_are_one_line_and_exit_code_2(cli, arguments, words):
    code, _, err = cli(*arguments)
    assert code == 2
    assert words in err
    assert err.startswith("fedran: ")
    assert err.count("\n") == 1


def arguments_of(command):
    """All arguments of a command and its subcommands, with the command's name."""
    for child in getattr(command, "commands", {}).values():
        yield from arguments_of(child)
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            yield command.name, parameter


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_page_fits_80_columns_and_describes_every_argument(cli, name):
    code, out, err = cli(name, "--help")
    assert (code, err) == (0, "")
    assert max(len(line) for line in out.splitlines()) <= 80
    assert "…" not in out
    command = COMMANDS[name].load(name)
    assert command.help.split("\n\n")[0].replace("\n", " ") == COMMANDS[name].help
    assert [(n, p.name) for n, p in arguments_of(command) if not p.help] == []


@pytest.mark.parametrize("arguments", ["--debug inspect nowhere", "inspect nowhere --debug"])
def test_debug_shows_the_traceback(arguments, cli):
    code, _, err = cli(*arguments.split())
    assert code == 2
    assert "Traceback" in err


def test_help_and_version(cli):
    assert all(name in cli("--help")[1] for name in COMMANDS)
    assert cli("--version")[1].strip() == f"fedran {fedran.__version__}"
    assert cli()[0] == 2


def test_unexpected_errors_are_one_line_too(cli, monkeypatch):
    def broken(*_):
        raise RuntimeError("boom\nsecond line")

    monkeypatch.setattr("fedran.cli.inspect.describe", broken)
    code, _, err = cli("inspect", __file__)
    assert code == 2
    assert err.count("\n") == 1
    assert "boom" in err


def test_an_interrupt_exits_with_130(cli, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedran.cli.inspect.describe", stop)
    assert cli("inspect", __file__)[0] == 130


def test_python_m_fedran_is_the_same_command():
    done = subprocess.run(
        [sys.executable, "-m", "fedran", "--version"], capture_output=True, text=True, check=True
    )
    assert fedran.__version__ in done.stdout


def test_core_wire_and_bench_import_without_terminal_libraries():
    code = (
        "import sys; sys.modules['typer'] = sys.modules['rich'] = None\n"
        "import fedran, fedran_bench.run.runner, fedran_bench.methods.registry\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
