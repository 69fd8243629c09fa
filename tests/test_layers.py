"""Imports point one way, and few places may do what many must not."""

import ast
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
ALLOWED = {
    "budgets": {"budgets"},
    "grpo_jax": {"grpo_jax", "budgets"},
    "distill_jax": {"distill_jax", "grpo_jax", "budgets"},
}
FILES = [p for package in ALLOWED for p in sorted((ROOT / package).rglob("*.py"))]


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{a.name}" for a in node.names)


@pytest.mark.parametrize("package", ALLOWED)
def test_packages_import_only_what_lies_below(package):
    for path in (ROOT / package).rglob("*.py"):
        for name in imports(path):
            top = name.split(".")[0]
            assert top not in set(ALLOWED) - ALLOWED[package], f"{path} imports {name}"
            if package == "budgets":
                assert top not in {"jax", "flax", "optax"}, f"{path} imports {name}"


def test_only_the_metering_reaches_the_engines_programs():
    """Whoever runs the engine pays: nobody else may call its compiled program."""
    engine = {"meter.py", "rollout.py", "resident.py", "slots.py", "engine.py"}
    calls = (
        "rollout.generate",
        "slots.run(",
        "Engine(",
        "Resident(",
        "decoding.advance(",
    )
    for path in FILES:
        if path.name not in engine:
            text = path.read_text()
            for call in calls:
                assert call not in text, f"{path} calls {call}"


def test_methods_and_the_loop_do_not_import_the_engine():
    engine = ("rollout", "meter", "resident", "slots", "engine", "decoding")
    for name in ("methods", "objectives", "selection", "credit", "loop", "losses"):
        found = set(imports(ROOT / "grpo_jax" / f"{name}.py"))
        assert not found & {f"grpo_jax.{module}" for module in engine}, name


def test_fold_in_is_called_in_one_file():
    for path in FILES:
        if path.name != "keys.py":
            assert "fold_in" not in path.read_text(), path


def test_library_code_compiles_in_the_wiring_only():
    wiring = {"engine.py", "meter.py", "learner.py", "states.py", "tensors.py"}
    wiring |= {"kernel.py"}
    for path in FILES:
        if path.name not in wiring:
            assert "jax.jit" not in path.read_text(), path


def test_every_option_is_read_somewhere():
    from grpo_jax import config

    text = "\n".join(p.read_text() for p in FILES if not p.name.startswith("config"))
    for name in config.flat(config.Config()):
        field = name.rpartition(".")[2]
        assert f".{field}" in text or f'"{field}"' in text, f"nothing reads {name}"


def test_importing_every_module_initialises_no_device():
    modules = [
        ".".join(p.relative_to(ROOT).with_suffix("").parts)
        for p in FILES
        if p.name != "__init__.py"
    ]
    code = (
        "import importlib\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge.backends_are_initialized()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("package", ALLOWED)
def test_package_inits_import_no_jax(package):
    code = f"import sys, {package}; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_the_cli_imports_no_subcommand_before_it_is_called():
    code = (
        "import sys, distill_jax.cli as c; c.main(['--help']);"
        "assert not {'jax', 'grpo_jax.train'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_loop_run_fits_on_a_screen():
    tree = ast.parse((ROOT / "grpo_jax" / "loop.py").read_text())
    run = next(n for n in tree.body if getattr(n, "name", "") == "run")
    body = run.body[1:]  # after the docstring
    assert body[-1].end_lineno - body[0].lineno + 1 <= 30


def test_names_that_outside_code_relies_on():
    script = ROOT.parent / "shared" / "checks" / "api_names.py"
    if not script.exists():
        pytest.skip("../shared/checks is absent")
    done = subprocess.run(
        [sys.executable, str(script), "--upto", "matched-compute"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-500:]
