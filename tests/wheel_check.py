"""Builds the wheel and shows that it holds every module and data file, and works in a fresh environment.

Run by `make wheel`; prints what it did and exits 1 on the first thing that is not so.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("evo", "operators", "mutators", "fitness", "plugins", "archive")
SHIPPED = {".py", ".cu", ".cpp", ".ptx", ".h", ".sql", ".md", ".j2"}


def expected() -> set[str]:
    """Every file of the six source folders, as the wheel must name it; examples are not part of it."""
    names = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*"):
            relative = path.relative_to(ROOT)
            if path.suffix in SHIPPED and path.is_file() and "examples" not in relative.parts:
                names.add(str(relative if package == "evo" else Path("evo") / relative))
    return names | {"evo/py.typed"}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "build", "--wheel", "--outdir", folder, str(ROOT)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        wheel = next(Path(folder).glob("*.whl"))
        held = set(zipfile.ZipFile(wheel).namelist())
        missing = sorted(expected() - held)
        strays = sorted(name for name in held if not name.startswith(("evo/", "evo_kernels-")))
        if missing or strays:
            sys.exit(f"the wheel lacks {missing} and has strays {strays}")
        environment = Path(folder) / "venv"
        venv.create(environment, with_pip=True)
        python = environment / "bin" / "python"
        install: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, "--constraint", ROOT / "constraints.txt", wheel], check=True)
        for words in (["--version"], ["operators", "--json"], ["targets", "--json"]):
            subprocess.run([environment / "bin" / "evo", *words], check=True, cwd=folder)
        sys.stdout.write(f"{wheel.name}: {len(held)} files, installs and runs\n")


if __name__ == "__main__":
    main()
