# SPDX-License-Identifier: Apache-2.0
"""The launcher against a fake server: readiness, failure, signals, and what it never touches."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

PRESET = "Qwen3.5-35B-A3B"


def test_detached_start_status_logs_stop(machine: Any) -> None:
    done = machine.serve()
    assert done.returncode == 0, done.stderr
    assert f"serves http://127.0.0.1:{machine.port}/v1" in done.stdout
    assert "megakernel: stock\n  - no GPU is visible" in done.stdout
    assert "tiny: without --tp-size 1 (one process)" in done.stderr
    pid = machine.pid()
    assert machine.running(pid)

    status = machine.run("status")
    assert "serving" in status.stdout and str(pid) in status.stdout
    assert json.loads(machine.run("status", "--json").stdout)[0]["state"] == "serving"
    assert "fired up" in machine.run("logs").stdout
    assert machine.run("logs", "--path").stdout.strip().endswith("/log")

    stopped = machine.run("stop")
    assert stopped.returncode == 0 and "drained and ended" in stopped.stdout
    assert not machine.running(pid) and machine.record() == {}
    assert "drained" in machine.log(), "the server ended by itself, on SIGTERM"
    assert "nothing runs" in machine.run("status").stdout


def test_the_server_gets_the_resolved_arguments(machine: Any) -> None:
    machine.serve("--", "--served-model-name", "a b")
    words = json.loads(machine.log().split("arguments: ")[1].splitlines()[0])
    assert words[words.index("--port") + 1] == str(machine.port)
    assert words[words.index("--device") + 1] == "cpu"
    assert words[words.index("--served-model-name") + 1] == "a b"
    assert "--enable-nvidia-megakernel" not in words
    machine.run("stop")


def test_a_crash_shows_the_logs_end_and_the_exit_code(machine: Any) -> None:
    done = machine.serve(FAKE_SERVER="crash")
    assert done.returncode == 1
    assert "exit code 7" in done.stderr and "while loading weights" in done.stderr
    assert "ValueError: this checkpoint is not for you" in done.stderr
    assert machine.record() == {}


def test_a_follower_is_not_ready_by_its_dummy_health_server_alone(machine: Any) -> None:
    """``/health`` answers 200, but no model is served: on node 0 that is not readiness."""
    done = machine.serve("--timeout", "2", FAKE_SERVER="follower")
    assert done.returncode == 1 and "not ready after 2 s" in done.stderr
    assert machine.record() == {}


def test_node_1_says_that_node_0_answers(machine: Any) -> None:
    done = machine.serve("--", "--node-rank", "1", FAKE_SERVER="follower")
    assert done.returncode == 0, done.stderr
    assert "node 1 of" in done.stdout and "node 0 answers requests" in done.stdout
    assert "node 1 up" in machine.run("status").stdout
    machine.run("stop")


def test_a_start_that_takes_too_long_is_ended(machine: Any) -> None:
    done = machine.serve("--timeout", "1.5", FAKE_SERVER="hang")
    assert done.returncode == 1 and "loading weights" in done.stderr
    assert "Load weight begin" in done.stderr
    assert machine.record() == {}
    port_free = socket.socket()
    port_free.bind(("127.0.0.1", machine.port))
    port_free.close()


def test_sigterm_to_the_launcher_drains_the_server(machine: Any) -> None:
    launcher = machine.attached()
    pid = machine.pid()
    launcher.send_signal(signal.SIGTERM)
    output, _ = launcher.communicate(timeout=30)
    assert launcher.returncode == 128 + signal.SIGTERM
    assert "draining" in output
    assert not machine.running(pid) and machine.record() == {}
    assert machine.log().rstrip().endswith("drained")


def test_sigterm_while_starting_ends_the_server(machine: Any) -> None:
    launcher = subprocess.Popen(
        [str(Path(__file__).parents[3] / "sglang.sh"), PRESET, "--tiny"],
        env=machine.environ(FAKE_SERVER="hang"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    machine.wait_for(lambda: "Load weight begin" in machine.log() if machine.record() else False)
    pid = machine.pid()
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(timeout=30) == 128 + signal.SIGTERM
    assert not machine.running(pid) and machine.record() == {}


def test_an_attached_launcher_reports_a_server_that_dies(machine: Any) -> None:
    launcher = machine.attached()
    subprocess.run(["kill", "-KILL", str(machine.pid())], check=True)
    output, _ = launcher.communicate(timeout=30)
    assert launcher.returncode == 1 and "signal 9" in output
    assert machine.record() == {}


def test_stop_kills_what_ignores_sigterm(machine: Any) -> None:
    machine.serve(FAKE_SERVER="stubborn")
    pid = machine.pid()
    stopped = machine.run("stop", "--timeout", "1")
    assert stopped.stdout.splitlines()[0] == f"draining {PRESET}-tiny (at most 1 s)"
    assert stopped.stdout.rstrip().endswith("was killed") and not machine.running(pid)
    assert "SIGTERM received" in machine.log(), "it was asked first"


def test_stop_says_what_a_busy_server_had_left(machine: Any) -> None:
    machine.serve(FAKE_SERVER="busy")
    stopped = machine.run("stop", "--timeout", "1")
    assert "within 1 s and was killed: 2 requests were left" in stopped.stdout


def test_stop_ends_the_children_that_a_server_leaves(machine: Any) -> None:
    machine.serve(FAKE_SERVER="orphans")
    child = int(machine.log().split("child ")[1].split()[0])
    assert machine.running(child)
    machine.run("stop")
    machine.wait_for(lambda: not machine.running(child))


def test_stop_never_touches_a_foreign_process(machine: Any) -> None:
    """The recorded number belongs to another process now: stop forgets the record and leaves it alone."""
    machine.serve()
    pid = machine.pid()
    foreign = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        path = machine.state / "run" / f"{PRESET}-tiny" / "pid.json"
        record = json.loads(path.read_text())
        record["identity"]["pid"] = foreign.pid
        path.write_text(json.dumps(record))
        assert "gone" in machine.run("status").stdout
        stopped = machine.run("stop", f"{PRESET}-tiny")
        assert stopped.returncode == 0 and "was left alone" in stopped.stdout
        assert foreign.poll() is None, "a foreign process was ended"
        assert machine.record() == {}
    finally:
        foreign.kill()
        foreign.wait()
        if machine.is_fake(pid):
            subprocess.run(["kill", str(pid)], check=True)
    machine.wait_for(lambda: not machine.running(pid))


def test_a_record_of_another_boot_is_gone(machine: Any) -> None:
    machine.serve()
    path = machine.state / "run" / f"{PRESET}-tiny" / "pid.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "identity": {**record["identity"], "boot": "another"}}))
    assert "gone" in machine.run("status").stdout
    path.write_text(json.dumps(record))
    machine.run("stop")


def test_a_busy_port_is_refused_by_name(machine: Any) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", machine.port))
        holder.listen()
        done = machine.serve()
    assert done.returncode == 2
    assert f"port {machine.port} on 127.0.0.1 is taken by process" in done.stderr
    assert "pytest" in done.stderr, "the holder is named"
    assert not (machine.state / "run").exists()


def test_a_second_launch_and_its_port_are_refused(machine: Any) -> None:
    machine.serve()
    again = machine.serve()
    assert again.returncode == 2 and "already runs as process" in again.stderr
    other = machine.serve("--name", "second")
    assert other.returncode == 2 and f"by this tool's {PRESET}-tiny" in other.stderr
    assert machine.run("status").stdout.count("serving") == 1
    machine.run("stop")


def test_two_runs_with_names_of_their_own(machine: Any) -> None:
    machine.serve()
    second = machine.free_port()
    assert machine.serve("--name", "second", PORT=str(second)).returncode == 0
    assert "name the run to stop" in machine.run("stop").stderr
    assert machine.run("stop", "second").returncode == 0
    assert machine.run("stop", "--all").returncode == 0
    assert machine.run("status").stdout == "nothing runs\n"


def test_the_key_reaches_the_probe_of_readiness_and_nothing_else(machine: Any) -> None:
    key = machine.folder / "key"
    key.write_text("s3cr3t\n")
    key.chmod(0o600)
    done = machine.serve(HOST="0.0.0.0", SGLANG_API_KEY_FILE=str(key), FAKE_SERVER="keyed", FAKE_KEY="s3cr3t")
    assert done.returncode == 0, done.stderr
    assert "keyed_server.py" in machine.log().splitlines()[0]
    everything = done.stdout + done.stderr + machine.log() + json.dumps(machine.record())
    everything += Path(f"/proc/{machine.pid()}/cmdline").read_text()
    assert "s3cr3t" not in everything
    machine.run("stop")


def test_a_key_file_that_is_missing_empty_or_open_is_refused(machine: Any) -> None:
    key = machine.folder / "key"
    assert "cannot be read" in machine.serve(SGLANG_API_KEY_FILE=str(key)).stderr
    key.write_text("\n")
    key.chmod(0o600)
    assert "is empty" in machine.serve(SGLANG_API_KEY_FILE=str(key)).stderr
    key.write_text("s3cr3t")
    key.chmod(0o644)
    done = machine.serve(SGLANG_API_KEY_FILE=str(key))
    assert done.returncode == 2 and "chmod 600" in done.stderr and "s3cr3t" not in done.stderr


def test_everything_in_the_way_is_listed_at_once(machine: Any) -> None:
    (machine.model / "model.safetensors").unlink()
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", machine.port))
        holder.listen()
        done = machine.serve()
    assert done.returncode == 2
    assert "has no safetensors weights" in done.stderr and "is taken" in done.stderr


def test_not_built_says_how(machine: Any) -> None:
    (machine.state / "venv-cpu" / "sglang-build.json").unlink()
    done = machine.serve()
    assert done.returncode == 2 and "./sglang.sh build" in done.stderr


def test_logs_and_stop_of_an_unknown_run(machine: Any) -> None:
    assert machine.run("logs", "nothing").returncode == 2
    machine.serve()
    done = machine.run("stop", "Qwen3.5-35B-A3B")
    assert done.returncode == 2 and f"did you mean: {PRESET}-tiny?" in done.stderr
    machine.run("stop")
