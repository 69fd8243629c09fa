"""Every notebook runs as committed, carries no outputs and defines no formula."""

import ast
import inspect
import os
import pathlib

import nbformat
import pytest
from nbclient import NotebookClient

from grpo_jax import credit, losses

ROOT = pathlib.Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SECONDS = 180  # of a slow machine; each is meant to take less than a minute


def read(path):
    return nbformat.read(path, as_version=4)


def code(notebook):
    """The Python of each code cell, without the lines that only IPython reads."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            lines = cell.source.splitlines()
            yield "\n".join(x for x in lines if not x.lstrip().startswith(("%", "!")))


def exported(*modules):
    """Names of the public functions that the modules define."""
    return {
        name
        for module in modules
        for name, value in inspect.getmembers(module, inspect.isfunction)
        if not name.startswith("_") and value.__module__.startswith("grpo_jax.")
    }


def defined(source):
    """Names that a cell binds by def, class or assignment; imports are no such."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_committed_notebooks_are_valid_and_hold_no_outputs(path):
    notebook = read(path)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == [], cell.id
            assert cell.execution_count is None, cell.id
        assert not cell.get("attachments"), cell.id
    assert "widgets" not in notebook.metadata


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebooks_import_the_formulas_and_define_none(path):
    library = exported(losses, credit)
    assert {"clipped_surrogate", "kl_k3", "per_token", "centred"} <= library
    for source in code(read(path)):
        assert library.isdisjoint(defined(source)), source


def test_the_rule_on_definitions_sees_each_way_to_bind_a_name():
    for source in (
        "def kl_k1(x): ...",
        "kl_k1 = abs",
        "class kl_k1: ...",
        "a = (kl_k1 := 1)",
    ):
        assert "kl_k1" in set(defined(source)), source
    for source in ("from grpo_jax.losses import kl_k1", "y = losses.kl_k1(x, x)"):
        assert "kl_k1" not in set(defined(source)), source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebooks_run_and_draw(path):
    notebook = read(path)
    # As Jupyter does, in the notebook's own folder; the clone need not be installed.
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        resources={"metadata": {"path": str(path.parent)}},
    )
    search = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    client.execute(env=os.environ | {"PYTHONPATH": search.strip(os.pathsep)})
    shown = [x for cell in notebook.cells for x in cell.get("outputs", [])]
    # With ipywidgets the pictures, and any error, lie inside a widget.
    for widget in (client.widget_state or {}).values():
        shown += widget.get("outputs", [])
    assert any("image/png" in x.get("data", {}) for x in shown)
    for output in shown:
        assert output["output_type"] != "error", output
        assert "Warning:" not in output.get("text", ""), output
