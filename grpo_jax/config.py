"""Configuration files: one place that reads, checks and writes them.

`load` returns a frozen `Config`; what it refuses it refuses in one line. The options
themselves are in `grpo_jax.config_schema`.
"""

import dataclasses
import difflib
import json
import math
import pathlib
import tomllib
import typing
from collections.abc import Sequence
from typing import Any

from grpo_jax.config_checks import check as check
from grpo_jax.config_schema import Config as Config

_WORDS = {int: "an integer", float: "a number", bool: "true or false", str: "text"}
_WORDS |= {dict: "a table", list: "a list"}
_BOUNDS = {
    "low": ("at least", lambda value, bound: value >= bound),
    "high": ("at most", lambda value, bound: value <= bound),
    "above": ("above", lambda value, bound: value > bound),
    "below": ("below", lambda value, bound: value < bound),
}


def load(
    path: str | pathlib.Path, overrides: Sequence[str] = (), *, prefix: str = ""
) -> Config:
    """Reads a TOML file, applies overrides, checks the whole.

    Args:
      path: the file; its name without suffix is the config name in `run.dir`.
      overrides: `section.field=value`, later ones win; the value is TOML, or bare
        text.
      prefix: before the config name in `run.dir`.

    Raises:
      ValueError: the file or an override is wrong; one line that says what was seen,
        the rule and the remedy.
    """
    path = pathlib.Path(path)
    table = read_table(path, overrides)
    if "study" in table:
        raise ValueError(
            f"{path} is a study, with [study]; run it with `grpo-jax compare`, or give"
            " a file without [study] and [arms]"
        )
    config = from_table(table)
    if not config.run.dir:
        named = f"runs/{prefix}{path.stem}-seed{config.seed}"
        run = dataclasses.replace(config.run, dir=named)
        config = dataclasses.replace(config, run=run)
    return config


def read_table(path: pathlib.Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Returns what a TOML file says once overrides are applied, unchecked.

    Raises:
      ValueError: the file cannot be read or is no TOML, or an override is none.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path}: no such configuration file") from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path}: not TOML: {error}") from error
    for override in overrides:
        _override(table, override)
    return table


def from_table(table: dict[str, Any]) -> Config:
    """Builds and checks a configuration from nested tables, defaults elsewhere."""
    config = _build(Config, table, "")
    check(config)
    return config


def to_toml(config: Config) -> str:
    """Writes every option; `load` of the text gives an equal configuration."""
    lines, tables = [], []
    for name, value in _fields(config):
        if not dataclasses.is_dataclass(value):
            lines.append(f"{name} = {_toml(value)}")
            continue
        tables.append(f"\n[{name}]")
        # A table of its own would swallow the plain options written after it.
        tables += [f"{key} = {_toml(entry)}" for key, entry in _fields(value)]
    return "\n".join(lines + tables) + "\n"


def flat(config: Config) -> dict[str, Any]:
    """Returns every option by its dotted name."""
    options: dict[str, Any] = {}
    for name, value in _fields(config):
        if dataclasses.is_dataclass(value):
            options |= {f"{name}.{key}": entry for key, entry in _fields(value)}
        else:
            options[name] = value
    return options


def differences(a: Config, b: Config) -> list[str]:
    """Returns the dotted names of the options that differ."""
    left, right = flat(a), flat(b)
    return [name for name in left if left[name] != right[name]]


def _fields(section: Any) -> list[tuple[str, Any]]:
    return [(f.name, getattr(section, f.name)) for f in dataclasses.fields(section)]


def _build(cls: type, table: Any, prefix: str) -> Any:
    """Makes one section; `prefix` is empty for the whole and `section.` inside."""
    if not isinstance(table, dict):
        raise ValueError(
            f"{prefix[:-1]}={table!r} is {_kind(table)}; a section is a table, such as"
            f" [{prefix[:-1]}]"
        )
    fields = {field.name: field for field in dataclasses.fields(cls)}
    wanted = typing.get_type_hints(cls)
    values = {}
    for key, value in table.items():
        if key not in fields:
            raise ValueError(_unknown(cls, key, prefix))
        name = prefix + key
        if dataclasses.is_dataclass(wanted[key]):
            values[key] = _build(wanted[key], value, f"{name}.")
        else:
            values[key] = _value(name, value, wanted[key], fields[key].metadata)
    return cls(**values)


def _unknown(cls: type, key: str, prefix: str) -> str:
    """The message for a key that is no option, with the nearest that is one."""
    own = [field.name for field in dataclasses.fields(cls)]
    near = difflib.get_close_matches(key, own, n=1)
    elsewhere = [n for n in flat(Config()) if n.rpartition(".")[2] == key]
    hints = [prefix + n for n in near] or elsewhere
    hints = hints or [prefix + n for n in difflib.get_close_matches(key, own, 1, 0)]
    name = prefix + (key if key.isidentifier() else repr(key))
    kind = "option" if prefix else "section or option"
    return f"{name} is no {kind}; did you mean {' or '.join(hints)}?"


def _value(name: str, value: Any, wanted: type, rule: Any) -> Any:
    """One option, checked against its type and its rule."""
    if wanted is float and type(value) is int:
        value = float(value)
    if type(value) is not wanted:
        raise ValueError(
            f"{name}={value!r} is {_kind(value)}; it must be {_WORDS[wanted]}"
        )
    if wanted is dict:
        for key, entry in value.items():
            _scalar(f"{name}.{key}", entry)
        return dict(value)
    if wanted is list:
        return list(value)
    if wanted is float and not math.isfinite(value):
        raise ValueError(f"{name}={value!r} must be a finite number")
    choices = rule.get("choices")
    if choices and value not in choices:
        near = difflib.get_close_matches(value, choices, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        shown = ", ".join(choice or "empty" for choice in choices)
        raise ValueError(f"{name}={value!r} must be one of {shown}{hint}")
    for word, (text, holds) in _BOUNDS.items():
        bound = rule.get(word)
        if bound is not None and not holds(value, bound):
            raise ValueError(f"{name}={value!r} must be {text} {bound}")
    return value


def _scalar(name: str, value: Any) -> None:
    """Refuses in a free table what a generator cannot take or TOML cannot hold."""
    for entry in value if type(value) is list else [value]:
        if type(entry) not in (int, float, bool, str):
            raise ValueError(
                f"{name}={value!r} is {_kind(value)}; it must be a number, text, true"
                " or false, or a list of them"
            )


def _kind(value: Any) -> str:
    return _WORDS.get(type(value), f"a {type(value).__name__}")


def _override(table: dict[str, Any], override: str) -> None:
    """Writes `section.field=value` into nested tables."""
    name, equals, text = override.partition("=")
    parts = [part.strip() for part in name.split(".")]
    if not equals or not all(parts):
        raise ValueError(
            f"{override!r} is no override; write section.field=value, such as"
            " sampling.group_size=8"
        )
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    default = flat(Config()).get(".".join(parts))
    if isinstance(default, str) and not isinstance(value, str):
        value = text.strip()  # a directory may be called 2024
    for depth, part in enumerate(parts[:-1], start=1):
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ValueError(f"{override!r}: {'.'.join(parts[:depth])} is no section")
    table[parts[-1]] = value


def _toml(value: Any) -> str:
    """One value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for surrogate pairs and the delete character.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        pairs = ", ".join(f"{_toml(k)} = {_toml(v)}" for k, v in value.items())
        return f"{{{pairs}}}"
    return repr(value)
