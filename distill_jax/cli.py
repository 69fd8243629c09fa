"""The console script `grpo-jax`: a subcommand's module is imported when called."""

import importlib
import os
import sys
from collections.abc import Sequence
from types import MappingProxyType

INTERRUPTED = 130
BROKEN_PIPE = 141  # as a shell counts a process that SIGPIPE ended
COMMANDS = MappingProxyType(
    {
        "train": ("grpo_jax.train", "one method on one model; resumes its run"),
        "compare": ("grpo_jax.compare", "the arms of a study at matched compute"),
        "evaluate": ("grpo_jax.evaluate", "a model's accuracy, pass@k and maj@k"),
        "data": ("grpo_jax.data", "counts, hashes and lengths of problems"),
        "get": ("grpo_jax.get", "fetch a small real model"),
        "export": ("grpo_jax.export", "a run's latest checkpoint as an HF directory"),
    }
)


def usage() -> str:
    """Returns the help text."""
    lines = "\n".join(f"  {name:8} {text}" for name, (_, text) in COMMANDS.items())
    return (
        "usage: grpo-jax COMMAND [ARGUMENTS]\n\n"
        f"{lines}\n\ngrpo-jax COMMAND --help says what a command takes"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a subcommand; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0 if words else 2
    if words[0] not in COMMANDS:
        known = ", ".join(COMMANDS)
        print(
            f"error: {words[0]!r} is not a command; use one of {known}", file=sys.stderr
        )
        return 2
    # Not news: nothing here needs torch.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    module = importlib.import_module(COMMANDS[words[0]][0])
    try:
        code = module.main(words[1:])
    except KeyboardInterrupt:
        print("interrupted; the same command begins again", file=sys.stderr)
        code = INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has enough; the rest must not fail at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    if code == INTERRUPTED:
        # A compilation that goes on in a thread crashes the interpreter's own end.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
