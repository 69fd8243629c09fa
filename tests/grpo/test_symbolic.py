"""The process that compares expressions: exact, bounded, and safe to share."""

import concurrent.futures
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from grpo_jax import rewards, symbolic, symbolic_worker

ROOT = pathlib.Path(__file__).parents[2]
# The first 120 digits of pi, which agree with it further than any tolerance.
PI = (
    "31415926535897932384626433832795028841971693993751058209749445923078164062862089986"
    "2803482534211706798214808651328230664"
)
SLOW = r"(x+y+z+u+v+w)^{19}", r"(x+y+z+u+v+w)^{18}(x+y+z+u+v+w+1)"
SYMBOLIC = [
    ("x^2+4x+3", "(x+1)(x+3)", True),
    ("x^2+4x+3", "(x+1)(x+2)", False),
    (r"2\sqrt{3}", r"\sqrt{12}", True),
    (r"2\sqrt{3}", r"\sqrt{13}", False),
    ("4", r"\sqrt{16}", True),
    ("10", r"\binom52", True),
    ("1000", "10^3 + 0", True),
    ("1/3", r"\frac{1}{6}+\frac{1}{6}", True),
]


def grade_all(cases):
    """Verdicts of boxed answers; at module level so that processes can be sent it."""
    return [rewards.grade(rf"\boxed{{{a}}}", g) for g, a, _ in cases]


def agree(verdicts, cases):
    return [(v.correct, v.error) for v in verdicts] == [(c, None) for *_, c in cases]


@pytest.fixture
def fresh():
    """A worker of its own, closed afterwards."""
    worker = symbolic.Worker()
    yield worker
    worker.close()


def test_expressions_are_compared_exactly():
    assert agree(grade_all(SYMBOLIC), SYMBOLIC)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\pi", "3.14159265358979"),
        (r"\pi", rf"\frac{{{PI}}}{{10^{{119}}}}"),
        (rf"\frac{{{PI}}}{{10^{{119}}}}", r"\pi"),
        (r"2\pi", rf"\frac{{2 \cdot {PI}}}{{10^{{119}}}}"),
        (r"\frac{1}{3}", r"\sqrt{0.1111111111111111}"),
        ("2", r"\sqrt{4.0000001}"),
        ("1000000", r"\sqrt{1000000.0000001^2}"),
        (r"\sqrt{2}", "1.414213562373095"),
        ("x", "1.0000000001x"),
        # Ramanujan's constant is within 1e-12 of an integer.
        ("262537412640768744", r"e^{\pi\sqrt{163}}"),
        (r"e^{\pi\sqrt{163}}", "262537412640768744"),
    ],
)
def test_agreement_to_many_digits_is_not_equality(gold, answer):
    assert rewards.grade(rf"\boxed{{{answer}}}", gold) == (False, answer, None)


def test_threads_share_one_worker(fresh):
    def ask(case):
        gold, answer, correct = case
        ours, theirs = symbolic.latex(gold), symbolic.latex(answer)
        return fresh.equal(ours, theirs, 30.0)[0] is correct

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        assert all(threads.map(ask, SYMBOLIC * 4))


def test_grading_works_in_threads_where_signals_do_not():
    def run(_):
        rewards._judge.cache_clear()
        return agree(grade_all(SYMBOLIC), SYMBOLIC)

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        assert all(threads.map(run, range(8)))


FORKED = """
import os
from grpo_jax import rewards
assert rewards.grade(r"\\boxed{2y}", "y+y").correct
child = os.fork()
if child == 0:
    rewards._judge.cache_clear()
    os._exit(0 if rewards.grade(r"\\boxed{2y}", "y+y").correct else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert rewards.grade(r"\\boxed{3y}", "y+2y").correct
"""


def test_a_forked_process_has_a_worker_of_its_own():
    # In a process of its own, since forking one whose JAX has threads may hang.
    done = subprocess.run([sys.executable, "-c", FORKED], cwd=ROOT, timeout=120)
    assert done.returncode == 0


def test_a_spawned_process_grades():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert agree(pool.apply(grade_all, (SYMBOLIC[:3],)), SYMBOLIC[:3])


def test_what_takes_too_long_is_an_error_and_the_next_answer_is_graded(monkeypatch):
    monkeypatch.setattr(symbolic, "LIMIT_SECONDS", 0.2)
    assert rewards.grade(r"\boxed{2a}", "a+a").correct  # started
    start = time.perf_counter()
    verdict = rewards.grade(rf"\boxed{{{SLOW[1]}}}", SLOW[0])
    assert time.perf_counter() - start < 1.5
    assert verdict.error == "no verdict within 0.2 s"
    assert not verdict.correct
    # The start of the next worker takes longer than the limit and is not charged.
    assert rewards.grade(r"\boxed{3a}", "2a+a") == (True, "3a", None)


def test_a_list_has_one_limit_in_all_and_not_one_for_each_element(monkeypatch):
    asked = []

    class Fake:
        def equal(self, gold, answer, seconds):
            asked.append(seconds)
            return False, 1.0

    monkeypatch.setattr(symbolic, "worker", lambda pid: Fake())
    ask = symbolic.within(2.5)
    assert not ask("x", "y")
    assert not ask("x", "y")
    assert asked == [2.5, 1.5]


def test_a_killed_worker_is_an_error_once_and_then_another_one(fresh):
    assert fresh.equal("x+x", "2x", 30.0)[0]
    os.kill(fresh._process.pid, signal.SIGKILL)
    fresh._process.wait()
    assert fresh.equal("x+x", "2x", 30.0)[0]
    os.kill(fresh._process.pid, signal.SIGSTOP)  # hangs
    with pytest.raises(symbolic.Failure, match="no verdict within"):
        fresh.equal("x+x", "2x", 0.1)
    assert fresh.equal("x+x", "2x", 30.0)[0]


def test_a_fault_in_the_worker_is_an_error_and_no_verdict(fresh):
    with pytest.raises(symbolic.Failure, match="cannot read the gold"):
        fresh.equal("[5", "5", 30.0)
    assert fresh.equal("x+x", "2x", 30.0)[0]


def test_the_worker_ignores_interrupts_and_ends_with_its_input(fresh):
    assert fresh.equal("x+x", "2x", 30.0)[0]
    process = fresh._process
    process.send_signal(signal.SIGINT)
    assert fresh.equal("x+x", "3x-x", 30.0)[0]
    assert fresh._process is process
    process.stdin.close()
    assert process.wait(10) == 0


def test_the_memory_of_the_worker_is_bounded(fresh):
    assert fresh.equal("x+x", "2x", 30.0)[0]
    limits = pathlib.Path(f"/proc/{fresh._process.pid}/limits").read_text()
    assert f"{symbolic_worker.MEMORY_BYTES} " in limits


def test_the_worker_ends_with_its_parent_even_where_a_fork_holds_its_pipe():
    code = (
        "from grpo_jax import symbolic; import os, signal, time\n"
        "w = symbolic.worker(os.getpid()); w.equal('x', 'x', 30.0)\n"
        "if os.fork() == 0: os.close(1); os.close(2); time.sleep(6); os._exit(0)\n"
        "print(w._process.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT
    )
    worker = int(done.stdout)
    for _ in range(50):
        status = pathlib.Path(f"/proc/{worker}/stat")
        if not status.exists() or status.read_text().split()[2] == "Z":
            return
        time.sleep(0.1)
    pytest.fail("the worker outlived its parent by five seconds")


@pytest.mark.parametrize(
    "code",
    [
        "import sys; from grpo_jax import symbolic_worker, symbolic\n"
        "sys.exit('jax' in sys.modules)",
        "from grpo_jax import symbolic_worker; symbolic_worker._prepare()\n"
        "import sympy\n"
        "try: sympy.sympify('1+1')\n"
        "except ValueError: raise SystemExit(0)\n"
        "raise SystemExit(1)",
    ],
    ids=["jax", "eval"],
)
def test_the_worker_has_neither_jax_nor_a_way_to_evaluate_text(code):
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "1 + 1", "x.y", "open('/etc/passwd')", "1e5", "(1)", "9**9"],
)
def test_the_parser_of_python_reads_digits_and_names_only(text):
    with pytest.raises(ValueError, match="evaluated as code"):
        symbolic_worker.read_digits(text)
    assert symbolic_worker.read_digits("12") == 12
    assert str(symbolic_worker.read_digits("0.25")) == "1/4"


def test_latex_is_compared_without_evaluating_text(monkeypatch):
    parser = pytest.importorskip("sympy.parsing.sympy_parser")
    pytest.importorskip("sympy.physics.units")  # names its units at import
    monkeypatch.setattr(parser, "parse_expr", symbolic_worker.read_digits)
    monkeypatch.setattr(parser, "eval_expr", symbolic_worker.refuse)
    for gold, answer, correct in SYMBOLIC:
        ours, theirs = symbolic.latex(gold), symbolic.latex(answer)
        assert symbolic_worker.equal(ours, theirs) is correct
    for code in ("__import__('os')", "exec(1)", r"\operatorname{eval}(1)"):
        assert symbolic_worker.equal("x+1", code) is False


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("2.5x", r"(\frac{25}{10})x"),
        ("x^.5", r"x^{(\frac{5}{10})}"),
        ("2^10", "2^{10}"),
        (r"\frac12", r"\frac{1}{2}"),
        (r"\sqrt2", r"\sqrt{2}"),
        ("2*sqrt(3)", r"2\cdot \sqrt{3}"),
        ("1,234x", "1234x"),
        ("9^9^9", None),
        ("2^{3^4}", None),
        ("e^{x^2}", "e^{x^{2}}"),
        ("10^{99999}", None),
        ("3!!", None),
        ("(n+1)!", "(n+1)!"),
        ("(9!)!", None),
        ("--7", None),
        ("x" * 500, None),
        ("é", None),
    ],
)
def test_answers_are_screened_and_written_for_the_parser(text, latex):
    assert symbolic.latex(text) == latex
