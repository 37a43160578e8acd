"""Build sdist and wheel, install the wheel into new environments and try it there.

Run by ``make wheel``. The wheel is built from the sdist, so both are complete. It is tried with
every Python of the classifiers that is installed here; for the others a line says that they were
not tried. Fails when the wheel lacks a file that the installed package needs, when a dependency is
not declared, or when a command does not start without the extras.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA_FILES = (".html", ".css", ".js", ".toml", ".typed")
START_SECONDS = 0.5
"""Of the processor, because other programs may run at the same time."""
WITHOUT_EXTRAS = """
import os
import sys
import fedran
assert "site-packages" in fedran.__file__, fedran.__file__
fedran.Aggregator, fedran.summarize, fedran.encode
assert not {"sklearn", "torch"} & set(sys.modules), "importing fedran loads heavy libraries"
import fedran_bench.run.config, fedran_bench.methods.registry, fedran.data.catalogue
assert "fedran" in fedran_bench.methods.registry.METHODS
X = [[0.0, 1.0], [1.0, 0.0]] * 5
assert fedran.FedRANClassifier(out_features=64).fit(X, ["a", "b"] * 5).score(X, ["a", "b"] * 5) == 1
print(os.path.dirname(fedran.__path__[0]))
"""
PROCESSOR_SECONDS = """
import resource, subprocess, sys
subprocess.run([sys.argv[1], "--version"], check=True, capture_output=True)
spent = resource.getrusage(resource.RUSAGE_CHILDREN)
print(spent.ru_utime + spent.ru_stime)
"""


def run(*command: object, cwd: Path) -> str:
    """The output of a command; its output and exit code are shown if it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        # Threads of BLAS that wait for a busy core would take longer than one thread alone.
        env={**os.environ, "OMP_NUM_THREADS": "1", "UV_PYTHON_DOWNLOADS": "never"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def find_python(version: str) -> Path | None:
    """An interpreter of this version: this one, on the path, or one that pyenv installed."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [sys.executable, shutil.which(f"python{version}")]
    for path in [*found, *pyenv.glob(f"{version}.*/bin/python")]:
        if path is not None:
            said = subprocess.run([path, "--version"], capture_output=True, text=True)
            if re.match(rf"Python {version}\.", said.stdout):
                return Path(path)
    return None


def find_uv(here: Path) -> Path:
    """The program uv, which builds and installs; from the package index if it is not here."""
    found = shutil.which("uv") or Path(sys.executable).with_name("uv")
    if Path(found).is_file():
        return Path(found)
    constraint = ("-c", ROOT / "constraints.txt")
    target = ("--target", here / "uv")
    run(sys.executable, "-m", "pip", "install", "--quiet", *constraint, *target, "uv", cwd=here)
    return here / "uv" / "bin" / "uv"


def try_wheel(uv: Path, wheel: Path, python: Path, env: Path, *, demo: bool) -> str:
    """Install into a new environment, import, run commands. Returns the time of ``--version``.

    The demo and the help pages take seconds, so one version of Python runs them.
    """
    here = env.parent
    run(uv, "venv", "--quiet", "--python", python, env, cwd=here)
    where = ("--python", env / "bin" / "python")
    constraints = ("-c", ROOT / "constraints.txt")
    run(uv, "pip", "install", "--quiet", *where, *constraints, wheel, cwd=here)
    installed = Path(run(env / "bin" / "python", "-c", WITHOUT_EXTRAS, cwd=here).strip())
    source = ROOT / "src"
    expected = {
        path.relative_to(source)
        for package in ("fedran", "fedran_bench")
        for path in (source / package).rglob("*")
        if path.suffix in DATA_FILES
    }
    missing = sorted(str(p) for p in expected if not (installed / p).is_file())
    assert not missing, f"files missing from the wheel: {', '.join(missing)}"
    fedran = env / "bin" / "fedran"
    if demo:
        for arguments in (["--help"], ["bench", "run", "--help"], ["federation", "--help"]):
            assert run(fedran, *arguments, cwd=here).strip(), arguments
        assert "FedRAN" in run(fedran, "demo", cwd=here)
    seconds = float(run(env / "bin" / "python", "-c", PROCESSOR_SECONDS, fedran, cwd=here))
    assert seconds < START_SECONDS, f"fedran --version takes {seconds:.2f} s"
    return f"{seconds:.2f} s"


def main() -> None:
    """Build, then try the wheel with every Python that the classifiers claim."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    claimed = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert claimed, "the classifiers name no version of Python"
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        uv = find_uv(here)
        run(uv, "build", "--quiet", "--python", sys.executable, "-o", here, ROOT, cwd=here)
        (wheel,), (sdist,) = here.glob("fedran-*.whl"), here.glob("fedran-*.tar.gz")
        with tarfile.open(sdist) as archive:
            names = {name.partition("/")[2] for name in archive.getnames()}
        absent = {"LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff"} - names
        assert not absent, f"files missing from the sdist: {', '.join(sorted(absent))}"
        tried: list[str] = []
        for version in claimed:
            python = find_python(version)
            if python is None:
                print(f"Python {version}: not installed here, so the wheel was not tried with it")
                continue
            start = try_wheel(uv, wheel, python, here / f"env-{version}", demo=not tried)
            tried.append(version)
            print(f"Python {version}: {wheel.name} installed, imported and tried; {start} to start")
        assert tried, "none of the claimed versions of Python is installed here"


if __name__ == "__main__":
    main()
