"""Compiled programs kept on disk, so that a second start of a run compiles nothing.

XLA's persistent cache lies under the user's cache, beside fetched models. What is in it
changes no number: it holds the programs that would be compiled again.
"""

import hashlib
import pathlib
import platform
import sys
import tempfile
import warnings

import jax

from grpo_jax.models import known

MOST_BYTES = 1 << 30  # some hundred runs; the oldest programs go first


def keep_programs(wanted: bool) -> None:
    """Compiles through the user's cache from here on, or through none.

    A directory that the user gave to JAX (`JAX_COMPILATION_CACHE_DIR`) is used as it
    is. A cache that cannot be written costs one line on standard error and no run;
    nor does an entry that is damaged, which is compiled again.

    Args:
      wanted: False compiles everything anew, even where JAX was given a directory.
    """
    if not wanted:
        jax.config.update("jax_compilation_cache_dir", None)
        return
    place = jax.config.values["jax_compilation_cache_dir"]
    if not place:
        path = directory()
        try:
            path.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=path).close()
            prune(path, most=MOST_BYTES)
        except OSError as fault:
            print(
                f"warning: compiled programs cannot be kept in {path}"
                f" ({fault.strerror}), so every start compiles; set GRPO_JAX_CACHE to"
                " another directory, or run.compilation_cache=false",
                file=sys.stderr,
            )
            return
        jax.config.update("jax_compilation_cache_dir", str(path))
    # The many small programs of a start take as long as the few large ones.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    # JAX compiles what it cannot read or write, and says so once for every program.
    warnings.filterwarnings(
        "ignore", message="Error (reading|writing) persistent compilation cache entry"
    )


def directory() -> pathlib.Path:
    """Returns where programs of this machine are kept, whether or not it is there.

    A cache directory may be shared by machines, and a program for one processor may
    use instructions that another lacks.
    """
    digest = hashlib.sha256(_processor().encode()).hexdigest()
    return known.cache_root() / "xla" / digest[:12]


def _processor() -> str:
    """The instruction set, and the name where the system tells no more."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    flags = sorted({x for x in lines if x.startswith(("flags", "Features"))})
    return "\n".join([platform.machine(), *(flags or [platform.processor()])])


def prune(path: pathlib.Path, *, most: int) -> None:
    """Removes the oldest files of a directory until it holds at most `most` bytes."""
    found = []
    for file in path.iterdir():
        try:
            status = file.stat()
        except FileNotFoundError:
            continue  # another process prunes at the same time
        if file.is_file():
            found.append((status.st_mtime_ns, status.st_size, file))
    excess = sum(size for _, size, _ in found) - most
    for _, size, file in sorted(found):
        if excess <= 0:
            return
        file.unlink(missing_ok=True)
        excess -= size
