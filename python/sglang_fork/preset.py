# SPDX-License-Identifier: Apache-2.0
"""Presets: one TOML file a model and setup, read and checked here.

A preset states the model, the hardware, the flags and environment variables of its launch command, and where
each of them comes from. ``base`` names another preset whose tables it inherits; ``[on.<machine>]`` holds what
changes on other hardware.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sglang_fork.errors import ForkError

FOLDER = Path(__file__).parent / "presets"
MODES = ("auto", "on", "off")
# What a source may name: a line of a seed, a version pin, upstream's file, or a user's report.
SOURCE_KINDS = ("seed ", "pin: ", "upstream: ", "report: ")

Value = bool | int | float | str | tuple[str, ...]


@dataclass(frozen=True)
class Setting:
    """A value and the place that it comes from."""

    value: Value
    source: str

    def words(self) -> list[str]:
        """The value as command-line words; a switch has none."""
        if isinstance(self.value, bool):
            return []
        if isinstance(self.value, tuple):
            return list(self.value)
        return [str(self.value)]


@dataclass(frozen=True)
class Model:
    path: str
    revision: str
    variable: str
    source: str
    note: str = ""


@dataclass(frozen=True)
class Hardware:
    """What the preset runs on. ``gpus`` counts all nodes; ``memory_gib`` is one GPU's."""

    name: str
    isas: tuple[str, ...]
    gpus: int
    memory_gib: float
    source: str
    nodes: int = 1
    unified: bool = False

    @property
    def gpus_per_node(self) -> int:
        return self.gpus // self.nodes


@dataclass(frozen=True)
class Megakernel:
    """``mode`` is auto, on or off. ``slots`` is None where the spec's own default list runs."""

    mode: str
    source: str
    slots: str | None = None


@dataclass(frozen=True)
class Weights:
    """Storage formats that the memory estimate reads, for experts and for everything else."""

    config: str
    experts: str
    dense: str
    draft: str
    host_tables: bool = False


@dataclass(frozen=True)
class Preset:
    name: str
    title: str
    family: str
    architecture: str
    quantized: str
    model: Model
    hardware: Hardware
    megakernel: Megakernel
    weights: Weights
    env: Mapping[str, Setting]
    flags: Mapping[str, Setting]
    draft: Mapping[str, Setting]
    machines: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    machine: str = ""

    @property
    def native(self) -> bool:
        """Whether SGLang reads the model in Mistral's own format (params.json) rather than config.json."""
        return self.architecture.startswith("Mistral")

    def on(self, machine: str) -> Preset:
        """This preset as it runs on another machine that it lists."""
        if machine not in self.machines:
            known = ", ".join(sorted(self.machines)) or "none"
            raise ForkError(f"{self.name} has no variant for {machine}", f"variants: {known}")
        tables = self.machines[machine]
        drop = set(tables.get("drop", ()))

        def merged(name: str) -> dict[str, Setting]:
            kept = {k: v for k, v in getattr(self, name).items() if k not in drop}
            return kept | _settings(tables.get(name, {}), f"{self.name} on {machine}: {name}")

        return replace(
            self,
            machine=machine,
            title=tables.get("title", self.title),
            model=Model(**(_plain(self.model) | tables.get("model", {})))
            if "model" in tables
            else self.model,
            hardware=_hardware(tables["hardware"]) if "hardware" in tables else self.hardware,
            megakernel=_megakernel(tables["megakernel"]) if "megakernel" in tables else self.megakernel,
            weights=Weights(**(_plain(self.weights) | tables.get("weights", {}))),
            env=merged("env"),
            flags=merged("flags"),
            draft=merged("draft"),
        )


def names() -> list[str]:
    """The names of all presets, sorted without regard to case."""
    return sorted((p.name.removesuffix(".toml") for p in FOLDER.glob("*.toml")), key=str.lower)


def find(name: str) -> str | None:
    """The preset's name as its file spells it, whatever case the user typed; None where there is none."""
    return {known.lower(): known for known in names()}.get(name.lower())


def load(name: str) -> Preset:
    """Read and check one preset; a ForkError names the file and the field that is wrong."""
    try:
        return _preset(name, _tables(name))
    except (KeyError, TypeError, ValueError) as error:
        raise ForkError(f"preset {name} is malformed: {error}", f"see {FOLDER / (name + '.toml')}") from error


def _tables(name: str, seen: tuple[str, ...] = ()) -> dict[str, Any]:
    if name in seen:
        raise ValueError(f"base presets form a ring: {' -> '.join((*seen, name))}")
    path = FOLDER / f"{name}.toml"
    try:
        tables = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise ForkError(f"no preset {name}", "./sglang.sh list shows all") from None
    base = tables.pop("base", None)
    return tables if base is None else _overlaid(_tables(base, (*seen, name)), tables)


def _overlaid(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """``over`` laid on ``base``, table by table; a setting (a table with a value) is replaced whole."""
    out = dict(base)
    for key, value in over.items():
        both_tables = isinstance(value, dict) and isinstance(out.get(key), dict) and "value" not in value
        out[key] = _overlaid(out[key], value) if both_tables else value
    return out


def _preset(name: str, tables: dict[str, Any]) -> Preset:
    known = {
        "title", "family", "architecture", "quantized", "model", "hardware", "megakernel", "weights",
        "env", "flags", "draft", "on",
    }  # fmt: skip
    if unknown := set(tables) - known:
        raise ValueError(f"unknown tables {sorted(unknown)}")
    return Preset(
        name=name,
        title=tables["title"],
        family=tables.get("family", ""),
        architecture=tables["architecture"],
        quantized=tables.get("quantized", ""),
        model=Model(**tables["model"]),
        hardware=_hardware(tables["hardware"]),
        megakernel=_megakernel(tables["megakernel"]),
        weights=Weights(**tables["weights"]),
        env=_settings(tables.get("env", {}), f"{name}: env"),
        flags=_settings(tables.get("flags", {}), f"{name}: flags"),
        draft=_settings(tables.get("draft", {}), f"{name}: draft"),
        machines=tables.get("on", {}),
    )


def _hardware(table: Mapping[str, Any]) -> Hardware:
    hardware = Hardware(**{**table, "isas": tuple(table["isas"])})
    if hardware.gpus % hardware.nodes:
        raise ValueError(f"{hardware.gpus} GPUs do not divide over {hardware.nodes} nodes")
    _check_source(hardware.source, "hardware")
    return hardware


def _megakernel(table: Mapping[str, Any]) -> Megakernel:
    megakernel = Megakernel(**table)
    if megakernel.mode not in MODES:
        raise ValueError(f"megakernel mode {megakernel.mode!r} is not one of {', '.join(MODES)}")
    _check_source(megakernel.source, "megakernel")
    return megakernel


def _settings(table: Mapping[str, Any], what: str) -> dict[str, Setting]:
    out = {}
    for key, entry in table.items():
        if set(entry) != {"value", "source"}:
            raise ValueError(f"{what}: {key} needs exactly a value and a source")
        _check_source(entry["source"], f"{what}: {key}")
        value = entry["value"]
        out[key] = Setting(tuple(map(str, value)) if isinstance(value, list) else value, entry["source"])
    return out


def _check_source(source: str, what: str) -> None:
    if not source.startswith(SOURCE_KINDS):
        raise ValueError(f"{what}: the source {source!r} starts with none of {SOURCE_KINDS}")


def _plain(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}
