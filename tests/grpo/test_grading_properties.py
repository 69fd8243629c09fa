"""Invariances of grading, and every rendering of a random number."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax import rewards

FEW = settings(max_examples=60, deadline=None)
rationals = st.builds(Fraction, st.integers(-(10**9), 10**9), st.integers(1, 10**4))
small = st.builds(Fraction, st.integers(-9999, 9999), st.integers(1, 99))


def right(answer, gold):
    verdict = rewards.grade(rf"so $\boxed{{{answer}}}$.", gold)
    assert verdict.error is None
    return verdict.correct


LONGEST = 200  # digits of a period


def digits(value):
    """Long division: digits before the point, before the period, and the period.

    The period is cut off where it is too long to be written.
    """
    whole, rest = divmod(abs(value.numerator), value.denominator)
    seen, out = {}, ""
    while rest and rest not in seen and len(out) < 2 * LONGEST:
        seen[rest] = len(out)
        digit, rest = divmod(rest * 10, value.denominator)
        out += str(digit)
    start = seen.get(rest, 0) if rest else len(out)
    return str(whole), out[:start], out[start:]


def renderings(value):
    """One number in the ways that models and golds write it."""
    n, d, sign = abs(value.numerator), value.denominator, "-" if value < 0 else ""
    yield f"{value.numerator}/{d}"
    yield rf"\frac{{{value.numerator}}}{{{d}}}"
    yield rf"{sign}\dfrac{{{2 * n}}}{{{2 * d}}}"
    yield rf"x = {sign}\tfrac{{{n}}}{{{d}}}"
    yield rf"\frac{{{-value.numerator}}}{{{-d}}}"
    yield rf"\frac{{{n:,}}}{{{d}}}" if not sign else rf"-\frac{{{n:,}}}{{{d}}}"
    percent = 100 * value
    yield rf"\frac{{{percent.numerator}}}{{{percent.denominator}}}\%"
    if d > 1 and n > d:
        yield rf"{sign}{n // d}\frac{{{n % d}}}{{{d}}}"
        yield f"{sign}{n // d} {n % d}/{d}"
    whole, fixed, period = digits(value)
    if d == 1:
        yield f"{value.numerator:,}"
        yield f"{sign}{n:,}".replace(",", r",\!")
        yield f"{sign}{n:,}".replace(",", " ")
        yield rf"\text{{{value.numerator}}}"
    if not period:
        decimal = f"{sign}{whole}.{fixed}0"
        yield decimal
        yield rf"{sign}{whole}{fixed}\times 10^{{-{len(fixed)}}}"
        yield f"{sign}{whole}{fixed}e-{len(fixed)}"
        yield rf"{sign}\${whole}.{fixed}0"
    elif len(period) < LONGEST:
        yield rf"{sign}{whole}.{fixed}\overline{{{period}}}"


@given(rationals, st.integers(1, 10**6))
@FEW
def test_every_rendering_of_a_number_is_accepted_and_of_another_never(value, step):
    gold = str(value)
    other = value + Fraction(step, 10**6 + 3)  # a prime: not a hundredth either
    for answer in renderings(value):
        assert right(answer, gold), answer
    for answer in renderings(other):
        assert not right(answer, gold), answer


@given(small)
@settings(max_examples=25, deadline=None)
def test_every_rendering_is_accepted_for_every_other_as_gold(value):
    spelt = [r for r in renderings(value) if "%" not in r and "$" not in r]
    for gold in spelt:
        for answer in spelt:
            assert right(answer, gold), (answer, gold)


@given(rationals)
@FEW
def test_a_rounded_decimal_never_equals_a_fraction_without_an_end(value):
    whole, fixed, period = digits(value)
    sign = "-" if value < 0 else ""
    if period:
        rounded = f"{sign}{whole}.{fixed}{(period * 40)[:40]}"
        assert not right(rounded, str(value))


@given(st.integers(2**53, 2**70))
@FEW
def test_neighbours_beyond_the_reach_of_floats_differ(n):
    assert right(str(n), f"{n:,}")
    assert not right(str(n + 1), str(n))
    assert not right(f"{n}.0000000000000001", str(n))


SPELLINGS = {
    "spaces": lambda s: s.replace("{", "{ ").replace("}", " }"),
    "thin spaces": lambda s: rf"\, {s}\;",
    "dollars": lambda s: f"${s}$",
    "display": lambda s: rf"\[ {s} \]",
    "round brackets": lambda s: rf"\left( {s} \right)",
    "dfrac": lambda s: s.replace(r"\frac", r"\dfrac"),
    "tfrac": lambda s: s.replace(r"\frac", r"\tfrac"),
    "negative space": lambda s: rf"\!{s}\!",
    "units": lambda s: rf"{s}\text{{ cm}}",
    "square units": lambda s: rf"{s}\,\mathrm{{cm}}^2",
    "name": lambda s: f"x = {s}",
    "full stop": lambda s: s + ".",
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@given(value=small)
@settings(max_examples=20, deadline=None)
def test_grading_does_not_depend_on_how_an_answer_is_dressed(spelling, value):
    plain = rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
    dressed = SPELLINGS[spelling](plain)
    assert right(dressed, str(value))
    assert not right(dressed, str(value + 1))


@pytest.mark.parametrize("spelling", ["spaces", "thin spaces", "dollars", "dfrac"])
@pytest.mark.parametrize(
    ("gold", "wrong"),
    [
        (r"\frac{\sqrt{3}}{2}", r"\frac{\sqrt{2}}{2}"),
        (r"\left(\frac{1}{2}, 3\right)", r"\left(3, \frac{1}{2}\right)"),
        (r"[0, \frac{1}{2})", r"(0, \frac{1}{2})"),
        (r"x^{2} - \frac{1}{4}", r"x^{2} + \frac{1}{4}"),
    ],
)
def test_expressions_do_not_depend_on_how_they_are_dressed(spelling, gold, wrong):
    assert right(SPELLINGS[spelling](gold), gold)
    assert not right(SPELLINGS[spelling](wrong), gold)


@given(st.lists(small, min_size=2, max_size=4, unique=True), st.randoms())
@settings(max_examples=25, deadline=None)
def test_lists_are_unordered_and_tuples_are_not(values, random):
    spelt = [rf"\frac{{{v.numerator}}}{{{v.denominator}}}" for v in values]
    mixed = random.sample(spelt, len(spelt))
    assert right(", ".join(mixed), ", ".join(map(str, values)))
    assert right(rf"\{{{', '.join(mixed)}\}}", ", ".join(spelt))
    as_tuple = right(f"({', '.join(mixed)})", rf"\left({', '.join(spelt)}\right)")
    assert as_tuple is (mixed == spelt)
    assert not right(", ".join(mixed[1:]), ", ".join(spelt))
