from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax import rewards
from grpo_jax.latex import one_spelling
from grpo_jax.numerals import numeral


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", Fraction(7)),
        ("-7", Fraction(-7)),
        ("\u22127", Fraction(-7)),  # the minus sign of typography
        ("\u20137", Fraction(-7)),  # an en dash
        ("+7", Fraction(7)),
        ("007", Fraction(7)),
        ("7.", Fraction(7)),
        (".75", Fraction(3, 4)),
        ("0.10", Fraction(1, 10)),
        ("3/4", Fraction(3, 4)),
        ("-3/4", Fraction(-3, 4)),
        ("1.5/3", Fraction(1, 2)),
        (r"\frac{3}{4}", Fraction(3, 4)),
        (r"-\dfrac{3}{4}", Fraction(-3, 4)),
        (r"-\frac{-1}{2}", Fraction(1, 2)),
        (r"\frac{1}{-2}", Fraction(-1, 2)),
        (r"\frac34", Fraction(3, 4)),
        (r"\frac 3 4", Fraction(3, 4)),
        (r"\frac{3}4", Fraction(3, 4)),
        (r"1\frac12", Fraction(3, 2)),
        (r"-1\frac12", Fraction(-3, 2)),
        ("1 1/2", Fraction(3, 2)),
        ("3½", Fraction(7, 2)),
        ("1,000,000", Fraction(10**6)),
        (r"14,\!916", Fraction(14916)),
        (r"111, \! 111", Fraction(111111)),
        ("1{,}000", Fraction(1000)),
        ("14 916", Fraction(14916)),
        (r"14\,916", Fraction(14916)),
        ("1.000,99", Fraction(100099, 100)),
        ("$14,916$", Fraction(14916)),
        (r"\$18", Fraction(18)),
        ("18€", Fraction(18)),
        ("-$18", Fraction(-18)),
        (r"\(\frac{1}{2}\)", Fraction(1, 2)),
        (r"\left(\frac{1}{2}\right)", Fraction(1, 2)),
        ("**7**", Fraction(7)),
        (r"\boxed{ 7 }", Fraction(7)),
        (r"\text{13}", Fraction(13)),
        ("x = 7", Fraction(7)),
        ("1.2e5", Fraction(120000)),
        ("1e-2", Fraction(1, 100)),
        (r"1.2\times 10^{-3}", Fraction(12, 10**4)),
        ("10^{3}", Fraction(1000)),
        (r"16.\overline{6}", Fraction(50, 3)),
        (r"0.1\overline{23}", Fraction(122, 990)),
        ("9007199254740993", Fraction(2**53 + 1)),
        ("", None),
        ("-", None),
        (".", None),
        ("--7", None),
        ("7 2", None),
        ("32, 349", None),
        ("(1,200)", None),
        ("1,22", None),
        ("0,111", None),
        ("1.2.3", None),
        ("1/0", None),
        (r"\frac{1}{0}", None),
        (r"2\frac{5}{3}", None),  # a product, or a slip
        ("0.333...", None),
        ("1e9999", None),
        ("1_000", None),
        ("0x10", None),
        ("\u0667", None),  # seven, in another script's digits
        ("\uff17", None),  # seven, full width
        ("5%", None),
        ("2**10", None),
        ("7!", None),
        ("7x", None),
        ("x^2 = 7 or 8", None),
        ("inf", None),
        ("nan", None),
        ("7 apples", None),
        ("9" * 2000, None),
    ],
)
def test_number_reads_plain_numbers_exactly_and_nothing_else(text, value):
    assert rewards.number(text) == value


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        (r"28\%", 28, "percent"),
        ("28 percentage points", 28, "percent"),
        (r"90^{\circ}", 90, "degree"),
        ("18 cents", 18, "cent"),
        (r"15\,\mathrm{cm}^2", 15, "square centimeter"),
        ("15 m²", 15, "square meter"),
        (r"12\text{ sq. units}", 12, ""),
        (r"60\text{ km/h}", 60, "kilometer per hour"),
        ("5 million dollars", 5_000_000, "dollar"),
        (r"7\text{ distinct values}", 7, "distinct value"),
    ],
)
def test_units_are_brought_to_one_spelling(text, value, unit):
    found = numeral(one_spelling(text))
    assert found is not None
    assert (found.value, found.unit) == (value, unit)


@given(st.integers(), st.integers(0, 12))
@settings(max_examples=50, deadline=None)
def test_grouped_and_decimal_spellings_have_the_value_of_the_digits(n, places):
    assert rewards.number(f"{n:,}") == n
    # Written digit by digit, so no float and no library of decimals takes part.
    digits = str(abs(n)).zfill(places + 1)
    whole, rest = digits[: len(digits) - places], digits[len(digits) - places :]
    text = ("-" if n < 0 else "") + whole + "." + rest
    assert rewards.number(text) == Fraction(n, 10**places)
