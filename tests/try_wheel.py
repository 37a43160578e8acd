"""Build the wheel, install it into a new environment and try it there, away from the checkout.

Run by ``make wheel``. Fails when the wheel lacks a file that the installed package needs, when a
dependency is not declared, or when a command does not start without the extras.
"""

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet")
DATA_FILES = (".html", ".css", ".js", ".typed")
WITHOUT_EXTRAS = """
import sys
import fedran
assert "site-packages" in fedran.__file__, fedran.__file__
assert not {"sklearn", "torch"} & set(sys.modules), "importing fedran loads heavy libraries"
import fedran.bench.run.config, fedran.methods.registry, fedran.data.catalogue
assert "fedran" in fedran.methods.registry.METHODS
fedran.FedRANClassifier(out_features=64)
"""


def run(*command: object, cwd: Path) -> str:
    """The output of a command; its output and exit code are shown if it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        # Threads of BLAS that wait for a busy core would take longer than one thread alone.
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    """Build, install, import, run."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        run(sys.executable, *PIP, "wheel", "--no-deps", "-w", here, ROOT, cwd=here)
        (wheel,) = here.glob("fedran-*.whl")
        venv.create(here / "env", with_pip=True)
        python = here / "env" / "bin" / "python"
        constraints = ("-c", ROOT / "constraints.txt")
        run(python, *PIP, "install", "--no-compile", *constraints, wheel, cwd=here)
        run(python, "-c", WITHOUT_EXTRAS, cwd=here)
        installed = Path(
            run(python, "-c", "import fedran; print(fedran.__path__[0])", cwd=here).strip()
        )
        source = ROOT / "src" / "fedran"
        expected = {p.relative_to(source) for p in source.rglob("*") if p.suffix in DATA_FILES}
        missing = sorted(str(p) for p in expected if not (installed / p).is_file())
        assert not missing, f"files missing from the wheel: {', '.join(missing)}"
        fedran = here / "env" / "bin" / "fedran"
        for arguments in (["--version"], ["--help"], ["run", "--help"], ["federation", "--help"]):
            assert run(fedran, *arguments, cwd=here).strip(), arguments
        demo = run(fedran, "demo", cwd=here)
        assert "FedRAN" in demo, demo
        print(f"{wheel.name}: installed, imported and tried without extras")


if __name__ == "__main__":
    main()
