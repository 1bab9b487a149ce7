# SPDX-License-Identifier: Apache-2.0
"""Workflows and hooks call commands and flags that exist, and the automation files cover paths that exist."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from sglang_fork.cli import Parser, command_names, load_command
from sglang_fork.paths import ROOT

FILES = [*sorted((ROOT / ".github" / "workflows").glob("*.yml")), ROOT / ".pre-commit-config.yaml"]
CALL = re.compile(r"\./sglang\.sh ([a-z-]+)((?: [\w./-]+)*)")


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_calls_parse(path: Path) -> None:
    require_calls_parse(path.read_text())


def require_calls_parse(text: str) -> None:
    """The tool's own parser takes every call of it; one that it does not know is a ForkError."""
    calls = CALL.findall(text)
    assert calls
    for name, arguments in calls:
        assert name in command_names()
        module = load_command(name)
        parser = Parser(prog=name, allow_abbrev=False)
        module.add_arguments(parser)
        parser.parse(arguments.split())


def test_owned_paths_exist() -> None:
    lines = (ROOT / ".github" / "CODEOWNERS").read_text().splitlines()
    paths = [line.split()[0] for line in lines if line and not line.startswith("#")]
    assert len(paths) == len(set(paths))
    assert [path for path in paths if path != "*" and not (ROOT / path.strip("/")).is_dir()] == []


def test_hooks_use_the_locked_linters() -> None:
    locked = (ROOT / "python/sglang_fork/lock/dev.txt").read_text()
    wanted = re.findall(r'additional_dependencies: \["([^"]+)"\]', FILES[-1].read_text())
    assert len(wanted) == 3
    for requirement in wanted:
        assert re.search(rf"^{re.escape(requirement)} ", locked, re.MULTILINE), requirement


def workflow(name: str) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows" / name).read_text())
    return read


@pytest.mark.parametrize("name", ["check.yml", "newest.yml"])
def test_actions_and_images_are_pinned_by_hash(name: str) -> None:
    text = (ROOT / ".github/workflows" / name).read_text()
    uses = re.findall(r"uses: (\S+)(.*)", text)
    assert uses and all(re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", action) for action, _ in uses)
    assert all(re.fullmatch(r" # v\d+\.\d+\.\d+", version) for _, version in uses), "the tag is said"
    assert all(
        re.search(r"@sha256:[0-9a-f]{64} ", line) for line in text.splitlines() if "docker run" in line
    )


def test_every_job_has_a_limit_and_the_least_rights() -> None:
    for name in ("check.yml", "newest.yml"):
        read = workflow(name)
        assert read["permissions"].pop("contents") == "read"
        assert read["permissions"] == ({"issues": "write"} if name == "newest.yml" else {})
        assert all(job["timeout-minutes"] for job in read["jobs"].values())


TOOL = """#!/bin/bash
case "$*" in
  *--dry-run*) [ -z "$JUDGED" ] || echo "$JUDGED" >report.md; exit "$JUDGE" ;;
  *) echo "the gate ran"; exit "$GATE" ;;
esac
"""
HUB = """#!/bin/bash
[ "$2" = list ] && cat known && exit
while [ $# -gt 0 ]; do
  case "$1" in --title) echo "$2" >issue.title ;; --body-file) cp "$2" issue.body ;; esac
  shift
done
"""
NEW = "# SGLang 1.0 to 1.1"


@pytest.mark.parametrize(
    ("judge", "judged", "gate", "known", "title"),
    [
        (0, NEW, 0, "", "SGLang 1.0 to 1.1: green"),
        (0, NEW, 1, "", "SGLang 1.0 to 1.1: not green"),
        (1, NEW, 0, "SGLang 0.9 to 1.0: green", "SGLang 1.0 to 1.1: needs a person"),
        (1, NEW, 0, "SGLang 1.0 to 1.1: needs a person", None),
        (0, "", 0, "", None),
    ],
    ids=["green", "not green", "a person", "reported before", "no new release"],
)
def test_the_scheduled_workflow_opens_one_issue_with_the_report(
    tmp_path: Path, judge: int, judged: str, gate: int, known: str, title: str | None
) -> None:
    """Its steps' own scripts, run as the hosting service would, with the tool and ``gh`` replaced."""
    for name, text in {"sglang.sh": TOOL, "gh": HUB}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "known").write_text(f"{known}\n")
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "JUDGE": str(judge), "JUDGED": judged, "GATE": str(gate)}
    outputs: dict[str, dict[str, str]] = {}
    for step in workflow("newest.yml")["jobs"]["try"]["steps"]:
        if "run" not in step or not condition(step.get("if", ""), outputs):
            continue
        verdict = outputs.get("gate", {}).get("verdict") or outputs.get("judge", {}).get("verdict", "")
        out = tmp_path / "output"
        out.write_text("")
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        step_env = env | {"GITHUB_OUTPUT": str(out), "VERDICT": verdict}
        subprocess.run(command, cwd=tmp_path, env=step_env, check=True, capture_output=True)
        outputs[step.get("id", "")] = dict(line.split("=", 1) for line in out.read_text().splitlines())
    if title is None:
        assert not (tmp_path / "issue.title").exists()
    else:
        assert (tmp_path / "issue.title").read_text() == f"{title}\n"
        body = (tmp_path / "issue.body").read_text()
        assert body.startswith(NEW) and ("the gate ran" in body) == (judge == 0)


def condition(text: str, outputs: dict[str, dict[str, str]]) -> bool:
    """A step's condition: equalities of earlier steps' outputs, joined by ``&&``."""
    found = re.findall(r"steps\.(\w+)\.outputs\.(\w+) == '([^']*)'", text)
    assert len(found) == (text.count("&&") + 1 if text else 0)
    return all(outputs.get(step, {}).get(key) == value for step, key, value in found)


def test_a_look_that_fails_is_a_failed_run_and_not_silence(tmp_path: Path) -> None:
    (tmp_path / "sglang.sh").write_text(TOOL)
    (tmp_path / "sglang.sh").chmod(0o755)
    step = next(s for s in workflow("newest.yml")["jobs"]["try"]["steps"] if s.get("id") == "judge")
    env = {"PATH": "/usr/bin:/bin", "JUDGE": "1", "JUDGED": "", "GITHUB_OUTPUT": str(tmp_path / "output")}
    assert subprocess.run(["bash", "-eo", "pipefail", "-c", step["run"]], cwd=tmp_path, env=env).returncode


def test_both_images_stand_on_one_base_named_by_its_digest() -> None:
    bases = {}
    for machine, platform in {"x86_64": "amd64", "aarch64": "arm64"}.items():
        text = (ROOT / f"docker/Dockerfile.{machine}").read_text()
        (line,) = re.findall(r"^FROM (.+)$", text, re.MULTILINE)
        assert line.startswith(f"--platform=linux/{platform} ")
        bases[machine] = line.split()[1]
        assert re.search(r"^USER 10001:10001$", text, re.MULTILINE) and "HEALTHCHECK" in text
    assert re.fullmatch(r"python:3\.12\.\d+-slim-bookworm@sha256:[0-9a-f]{64}", bases["x86_64"])
    assert bases["x86_64"] == bases["aarch64"]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_an_image_copies_and_runs_what_exists(machine: str) -> None:
    """Read, for want of a container engine: each instruction's paths, commands, flags and variables."""
    text = (ROOT / f"docker/Dockerfile.{machine}").read_text().replace("\\\n", " ")
    require_calls_parse(text)
    for copied in re.findall(r"^COPY (.+)$", text, re.MULTILINE):
        *sources, _ = [word for word in copied.split() if not word.startswith("--")]
        assert sources and all((ROOT / source).exists() for source in sources)
    words = {
        kind: json.loads(line) for kind, line in re.findall(r"^(ENTRYPOINT|CMD) (.+)$", text, re.MULTILINE)
    }
    assert words["ENTRYPOINT"] == ["./sglang.sh"] and set(words["CMD"]) <= set(command_names())
    (health,) = re.findall(r"^HEALTHCHECK .* CMD (.+)$", text, re.MULTILINE)
    assert (ROOT / json.loads(health)[1]).is_file()
    tool = "".join(path.read_text() for path in (ROOT / "python/sglang_fork").rglob("*.py"))
    (variables,) = re.findall(r"^ENV (.+)$", text, re.MULTILINE)
    assert [name for name in re.findall(r"(\w+)=", variables) if f'"{name}"' not in tool] == []
    left_out = (ROOT / ".dockerignore").read_text().split()
    assert set(left_out).isdisjoint(
        path.name for path in ROOT.iterdir() if path.name not in (".git", ".sglang")
    )


def test_the_compose_file_names_what_exists() -> None:
    service = yaml.safe_load((ROOT / "docker/compose.yaml").read_text())["services"]["sglang"]
    context = (ROOT / "docker" / service["build"]["context"]).resolve()
    assert context == ROOT
    for machine in ("x86_64", "aarch64"):
        assert (context / service["build"]["dockerfile"].replace("${MACHINE:-x86_64}", machine)).is_file()


def test_volumes_lie_at_folders_that_the_image_makes_for_its_user() -> None:
    """A volume at a place that the image lacks would belong to root, and the server does not run as root."""
    service = yaml.safe_load((ROOT / "docker/compose.yaml").read_text())["services"]["sglang"]
    places = [volume.split(":")[1] for volume in service["volumes"]]
    for machine in ("x86_64", "aarch64"):
        text = (ROOT / f"docker/Dockerfile.{machine}").read_text()
        (home,) = re.findall(r"^WORKDIR (\S+)$", text, re.MULTILINE)
        before, _, after = text.partition("\nUSER 10001:10001\n")
        made = set(" ".join(re.findall(r"install -d -o sglang -g sglang (.+)", before)).split())
        made |= {f"{home}/{folder}" for folder in re.findall(r"mkdir -p (\S+)", after)}
        assert set(places) <= made
