# SPDX-License-Identifier: Apache-2.0
"""Starts, continues and aborts a rebase. The current patches, tree and environment change only at a green
end.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from sglang_fork.errors import ForkError
from sglang_fork.paths import ROOT, state_dir
from sglang_fork.stack import check, export, gitseries, overlay, pins, signoff, workspace
from sglang_fork.stack.apply import apply_stack
from sglang_fork.stack.git import Git
from sglang_fork.stack.rebase import candidate
from sglang_fork.stack.rebase import state as states
from sglang_fork.stack.rebase.port import CONFLICT, MISPLACED, SKIPPED, WAITS, accept, drop, port
from sglang_fork.stack.rebase.report import Report
from sglang_fork.stack.rebase.state import Outcome, State
from sglang_fork.stack.rebase.target import NEWEST, of_git, of_release
from sglang_fork.stack.series import read_series


def start(
    version: str | None,
    source: str | None = None,
    checkout: Path = ROOT,
    dry_run: bool = False,
    patches_only: bool = False,
    skip_tests: bool = False,
    tests: Sequence[str] = (),
) -> Report:
    """Port every patch onto ``version`` (a release or ``newest``) or ``source`` (``URL@REF``).

    Stops at the first patch that needs a person, with ``report.faults`` saying how to go on; ``dry_run``
    judges all patches instead and leaves nothing behind. Raises ForkError when a rebase is in progress, when
    the patched tree holds unexported work, and when the target is the current base or cannot be fetched.
    """
    if states.in_progress():
        raise ForkError("a rebase is in progress", "./sglang.sh rebase --continue, or --abort")
    with workspace.locked():
        stack = check.build(checkout, read_series(checkout / "patches"))
        git = stack.git
        workspace.refuse_half_done(git)
        work = workspace.pending_work(git)
        if work and not dry_run:
            raise ForkError(f"{git.path} holds work that was not exported: {work[0]}", "./sglang.sh export")
        target = of_git(git, source, checkout) if source else of_release(git, version or "")
        if target.commit == stack.base and version == NEWEST:
            return Report(target.label, target.label, [], notes=[f"{target.label} is the newest release"])
        if target.commit == stack.base:
            raise ForkError(f"the patches are on {target.label} already")
        state = State(
            old_version=stack.series.version,
            old_base=stack.base,
            old_tip=stack.tip,
            label=target.label,
            base=target.commit,
            release=target.release,
            patches_only=patches_only,
            skip_tests=skip_tests,
            names=list(stack.series.names),
            tests=list(tests),
        )
        _open(git, state, stack.files)
        try:
            if dry_run:
                return _judge_all(git, state, checkout)
            states.save(state)
        except BaseException:
            _close(git)
            raise
        finally:
            if dry_run:
                _close(git)
    return advance(checkout)


def _open(git: Git, state: State, files: tuple[Path, ...]) -> None:
    _close(git)
    old = states.folder() / "old"
    old.mkdir(parents=True)
    for path in files:
        shutil.copyfile(path, old / path.name)
    git.run("worktree", "add", "--quiet", "--detach", str(states.tree_dir()), state.base)


def _close(git: Git) -> None:
    if states.tree_dir().exists():
        git.run("worktree", "remove", "--force", str(states.tree_dir()), check=False)
    shutil.rmtree(states.folder(), ignore_errors=True)
    git.run("worktree", "prune", check=False)


def abort() -> None:
    """Forget the rebase in progress; patches, tree and environment are as they were."""
    states.load()
    with workspace.locked():
        _close(workspace.repository())


def resume(
    checkout: Path = ROOT, skip: bool = False, repin: bool = False, tests: Sequence[str] = ()
) -> Report:
    """Go on: take the resolution of the waiting patch (or leave it out with ``skip``), or try the gate again.

    ``repin`` signs off the pinned code that upstream changed, in the candidate. ``tests``: what the gate runs
    this time, empty for everything.
    """
    state = states.load()
    state.tests = list(tests)
    with workspace.locked():
        tree = Git(states.tree_dir())
        if skip and state.stopped is None:
            raise ForkError("no patch is waiting", "./sglang.sh rebase --continue")
        if state.stopped is not None and skip:
            drop(tree, state.head)
            state.outcomes.append(Outcome(state.stopped.name, SKIPPED, f"was: {state.stopped.verdict}"))
            state.stopped = None
        elif state.stopped is not None:
            outcome = accept(tree, state.stopped, state.head)
            state.stopped = outcome if outcome.verdict in WAITS else None
            if state.stopped is None:
                state.outcomes.append(outcome)
        states.save(state)
    return advance(checkout, repin)


def advance(checkout: Path, repin: bool = False) -> Report:
    """Port the patches that are left, then gate and install the result."""
    state = states.load()
    with workspace.locked():
        git, tree = workspace.repository(), Git(states.tree_dir())
        while state.stopped is None and len(state.outcomes) < len(state.names):
            state.head = tree.out("rev-parse", "HEAD")
            name = state.names[len(state.outcomes)]
            outcome = port(tree, states.folder() / "old" / name, state.old_base, state.base)
            if outcome.verdict in WAITS:
                state.stopped = outcome
            else:
                state.outcomes.append(outcome)
            states.save(state)
        report = _report(git, state, tree.out("rev-parse", "HEAD"))
        if state.stopped is not None:
            report.faults.append(_how_to_go_on(state.stopped))
            return _written(report)
        finished = _finish_folder(git, state, checkout, report) if not state.installs else False
        if state.installs:
            candidate.refresh(checkout, git, state, _ported(git, state))
    if state.installs:
        finished = _gate_and_install(git, state, checkout, report, repin)
    if finished:
        with workspace.locked():
            _close(git)
    return _written(report)


def _ported(git: Git, state: State) -> dict[str, bytes]:
    """The new patch files, proved to reproduce the tree."""
    head = Git(states.tree_dir()).out("rev-parse", "HEAD")
    with workspace.scratch() as scratch:
        tip, patches = export.canonical(git, state.base, head, scratch)
        export.verify(git, state.base, tip, patches, scratch)
    return patches


def _finish_folder(git: Git, state: State, checkout: Path, report: Report) -> bool:
    """End of a rebase that installs nothing: the ported patches go to a folder of their own."""
    out = state_dir() / f"rebased-{state.label}"
    shutil.rmtree(out, ignore_errors=True)
    patches = _ported(git, state)
    if state.release:
        shutil.copytree(checkout / "patches", out)
        candidate.write_base(out, git, state, patches)
    else:
        head = Git(states.tree_dir()).out("rev-parse", "HEAD")
        gitseries.write(git, state.base, head, checkout, out)
    _pin_report(git, state, checkout, report)
    report.notes.append(f"the ported patches are in {out}; the checkout is unchanged")
    return True


def _gate_and_install(git: Git, state: State, checkout: Path, report: Report, repin: bool) -> bool:
    target = candidate.candidate_dir()
    with workspace.locked():
        _pin_report(git, state, target, report)
    keys = pins.declared(target)
    if repin or not report.pins:
        _sign(git, state, target, keys, report)
    candidate.lock(target, state.label)
    checked = check.check_stack(target)
    report.faults += [f"{item}: {text}" for item, text in checked.faults]
    if report.faults:
        report.faults.append(
            f"correct it in {target} (patches: in {states.tree_dir()}), then ./sglang.sh rebase --continue;"
            " --continue --repin signs off the pins whose diffs are shown"
        )
        return False
    if state.skip_tests:
        report.notes.append("the CPU tests were not run")
    else:
        report.faults += candidate.run_tests(target, state.tests)
        report.notes += [f"only these tests were run: {' '.join(state.tests)}"] * bool(state.tests)
    if report.faults:
        return False
    work = workspace.pending_work(git)
    if work:
        raise ForkError(f"{git.path} holds work that was not exported: {work[0]}", "export or drop it")
    changed = candidate.install(checkout)
    apply_stack(checkout=checkout)
    report.notes.append(f"green: {len(changed)} files changed; the patched tree is on {state.label}")
    return True


def _sign(git: Git, state: State, target: Path, keys: dict[str, list[str]], report: Report) -> None:
    signed = pins.sign(keys, pins.Upstream(git, state.base), state.label)
    (target / "patches" / pins.PINS).write_text(signed.text())
    if report.pins:
        report.notes.append(f"signed off: {len(report.pins)} pins that upstream changed")


def _pin_report(git: Git, state: State, checkout: Path, report: Report) -> None:
    before = pins.read_pins(checkout / "patches")
    report.pins = signoff.changes(git, before, pins.declared(checkout), pins.Upstream(git, state.base))


def _judge_all(git: Git, state: State, checkout: Path) -> Report:
    """The dry run: every patch gets its verdict, those that fail are left out for the next."""
    tree = Git(states.tree_dir())
    for name in state.names:
        head = tree.out("rev-parse", "HEAD")
        outcome = port(tree, states.folder() / "old" / name, state.old_base, state.base)
        if outcome.verdict in WAITS and outcome.verdict != MISPLACED:
            drop(tree, head)
        state.outcomes.append(outcome)
    report = _report(git, state, tree.out("rev-parse", "HEAD"))
    report.faults += [f"{o.name}: {o.verdict}: {o.detail}" for o in state.outcomes if o.verdict in WAITS]
    _pin_report(git, state, checkout, report)
    report.faults += [f"upstream changed or removed {key}" for key in report.pins]
    try:
        overlay.refuse_collisions(checkout, overlay.owned(git, state.base))
    except ForkError as error:
        report.faults.append(str(error))
    return report


def _report(git: Git, state: State, head: str) -> Report:
    waiting = [state.stopped] if state.stopped else []
    report = Report(state.old_version, state.label, [*state.outcomes, *waiting])
    if state.old_tip != state.old_base and head != state.base:
        old, new = f"{state.old_base}..{state.old_tip}", f"{state.base}..{head}"
        report.range_diff = git.out("range-diff", "--no-color", old, new)
    return report


def _how_to_go_on(stopped: Outcome) -> str:
    where = states.tree_dir()
    ways = {
        CONFLICT: f"resolve it in {where} and git add the files",
        MISPLACED: f"see git -C {where} show; move the lines or correct the Hook: lines; git commit --amend",
    }
    way = ways.get(stopped.verdict, f"commit what the patch needs in {where} under the same header")
    return (
        f"{stopped.name}: {stopped.verdict}: {stopped.detail}\n  {way};"
        " then ./sglang.sh rebase --continue, or --skip to leave the patch out"
    )


def _written(report: Report) -> Report:
    report.write(state_dir() / "rebase-report.md")
    return report
