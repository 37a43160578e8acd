"""Size and import time of the package with each extra: ``python benchmarks/footprint.py``.

Installs the checkout into a new environment per extra and writes the table of docs/install.md. It
needs uv and a package index, and downloads about 2 GB where nothing is cached.
"""

from __future__ import annotations

import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "install.md"
BEGIN, END = "<!-- footprint: begin -->\n", "<!-- footprint: end -->"
EXTRAS = {
    "": ("fedran", "import fedran; fedran.Aggregator"),
    "images": ("Pillow", "import PIL.Image"),
    "torch": ("PyTorch, transformers", "import torch"),
    "efficientnet": ("PyTorch, a backbone with weights", "import torch"),
    "onnx": ("onnxruntime, onnx", "import onnxruntime"),
    "parquet": ("pyarrow", "import pyarrow.parquet"),
    "dicom": ("pydicom, Pillow", "import pydicom"),
    "text": ("PyTorch, transformers", "import torch"),
    "bench": ("matplotlib, Jinja2", "import matplotlib.figure"),
    "flower": ("Flower", "import flwr"),
}
"""What an extra brings, and the import whose time is measured."""


def run(*command: object) -> None:
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)


def megabytes(folder: Path) -> float:
    """The size of all files below a folder, without compiled bytecode."""
    files = (path for path in folder.rglob("*") if path.suffix != ".pyc")
    return sum(p.stat().st_size for p in files if p.is_file() and not p.is_symlink()) / 1e6


def processor_seconds() -> float:
    """Of all commands so far; other programs on the machine hardly change it."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def measure(extra: str, uv: str, folder: Path) -> tuple[float, int, float]:
    """Megabytes and packages of a new environment, and the median seconds of the import."""
    env = folder / (extra or "base")
    run(uv, "venv", "--quiet", "--python", sys.executable, env)
    what = f"{ROOT}[{extra}]" if extra else ROOT
    constraints = ("-c", ROOT / "constraints.txt")
    run(uv, "pip", "install", "--quiet", "--python", env / "bin" / "python", *constraints, what)
    (packages,) = env.glob("lib/python*/site-packages")
    seconds = []
    for _ in range(6):
        start = processor_seconds()
        run(env / "bin" / "python", "-c", EXTRAS[extra][1])
        seconds.append(processor_seconds() - start)
    size, count = megabytes(packages), len(list(packages.glob("*.dist-info")))
    shutil.rmtree(env)
    return size, count, statistics.median(seconds[1:])  # the first import writes bytecode


def main() -> None:
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    rows = ["| extra | brings | packages | MB | import | seconds |", "|---|---|---:|---:|---|---:|"]
    with tempfile.TemporaryDirectory() as folder:
        for extra, (brings, code) in EXTRAS.items():
            size, count, seconds = measure(extra, uv, Path(folder))
            name = f"`{extra}`" if extra else "none"
            module = code.split()[1].rstrip(";")
            rows.append(
                f"| {name} | {brings} | {count} | {size:.0f} | `{module}` | {seconds:.2f} |"
            )
            print(rows[-1], flush=True)
    rows.append(
        f"\nProduced by `python benchmarks/footprint.py` on {date.today()}: Python "
        f"{platform.python_version()}, Linux {platform.machine()}, the versions of "
        "constraints.txt. MB are those of all installed packages together, without bytecode. "
        "Seconds are processor time of `python -c` with the import, the median of five."
    )
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + "\n" + "\n".join(rows) + "\n\n" + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
