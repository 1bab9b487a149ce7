# SPDX-License-Identifier: Apache-2.0
"""Serving runs: what is sent, what the answers amount to, and which runs are void."""

import contextlib
import dataclasses
import io
import json
import sys
from pathlib import Path

import pytest

from sglang_fork import cli, memory
from sglang_fork.bench import client, dummy, load, serve, served, traffic
from sglang_fork.bench.load import Answer
from sglang_fork.bench.progress import Progress
from sglang_fork.errors import ForkError


def answer(number=0, **changes):
    values = {
        "session": number,
        "turn": 0,
        "started_s": 100.0 + number,
        "ttft_s": 0.05 + number / 1000,
        "latency_s": 0.05 + number / 1000 + 0.1,
        "tokens": 11,
        "itl_s": (0.01,) * 10,
        "accept_length": 0.0,
        "text": " ".join(f"word{number}{i}" for i in range(40)),
    }
    return Answer(**values | changes)


FACTS = {
    "date": "2026-11-30",
    "card": "NVIDIA H200",
    "family": "qwen3_5",
    "preset": "Qwen3.5-35B-A3B",
    "arm": "stock",
    "slots": "",
    "weights": "real",
    "concurrency": 2,
    "input_len": 1024,
    "output_len": 11,
    "coverage": -1.0,
    "versions": {"sglang": "0.5.23"},
    "tree": "abc",
}


def test_a_run_amounts_to_its_medians():
    line = served.summary([[answer(n) for n in range(10)]], FACTS)
    assert line.tpot_ms == pytest.approx(10.0) and line.user_tokens_s == pytest.approx(100.0)
    assert line.ttft_ms == pytest.approx(54.5) and line.ttft_p99_ms == pytest.approx(59.0)
    assert line.itl_ms == pytest.approx(10.0) and line.requests == 10
    # From the first start (100 s) to the last end (109 + 0.159 s): 110 tokens.
    assert line.total_tokens_s == pytest.approx(110 / 9.159, rel=1e-3)
    assert line.accept_length == 0.0 and line.repeating == 0.0
    # A second server an hour later: twice the tokens in twice the time, the hour between does not count.
    later = [answer(n, started_s=3700.0 + n) for n in range(10)]
    both = served.summary([[answer(n) for n in range(10)], later], FACTS)
    assert both.requests == 20 and both.total_tokens_s == pytest.approx(line.total_tokens_s)


def test_acceptance_is_the_mean_of_those_that_have_one():
    answers = [answer(n, accept_length=2.0 + n % 2) for n in range(6)]
    assert served.summary([answers], FACTS).accept_length == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ({"error": "connection refused"}, "1 of 6 requests failed: connection refused"),
        ({"tokens": 1}, "no token after the first"),
        ({"ttft_s": 0.0}, "no token after the first"),
    ],
)
def test_a_run_with_a_bad_answer_is_void(broken, why):
    with pytest.raises(ForkError, match=why):
        served.summary([[*(answer(n) for n in range(5)), answer(5, **broken)]], FACTS)


def test_text_that_repeats_itself_voids_real_weights_only():
    loop = [answer(n, text="and then it said " * 20) for n in range(6)]
    with pytest.raises(ForkError, match="100% of the answers repeat themselves"):
        served.summary([loop], FACTS)
    line = served.summary([loop], FACTS | {"weights": "dummy"})
    assert line.repeating == 1.0
    assert not traffic.repeats(
        "The quick brown fox jumps over the lazy dog while nobody looks at the moon tonight"
    )
    assert not traffic.repeats("short short short")


def scrape(mega, stock):
    head = 'sglang:megakernel_steps_total{mode="decode",model="target",path='
    return f'# HELP x\n{head}"mega"}} {mega}\n{head}"stock"}} {stock}\nsglang:other{{path="mega"}} 9\n'


def test_coverage_counts_the_steps_between_two_scrapes():
    whole, mixed = served.steps(scrape(10, 10), scrape(110, 10)), served.steps(scrape(10, 10), scrape(40, 20))
    assert served.coverage(whole) == 1.0 and served.coverage(mixed) == 0.75
    assert served.coverage(whole + mixed) == 130 / 140, "steps of several servers are pooled, not shares"
    assert served.coverage(served.steps("", "")) == -1.0
    assert served.coverage(served.steps(scrape(5, 5), scrape(5, 5))) == -1.0


def test_the_table_states_the_ratio_and_its_bad_end(tmp_path):
    stock = served.summary([[answer(n) for n in range(10)]], FACTS)
    fast = [answer(n, latency_s=0.05 + n / 1000 + 0.05) for n in range(10)]
    mega = served.summary([fast], FACTS | {"arm": "mega", "slots": "moe", "coverage": 1.0})
    text = served.table([stock, mega])
    assert "2.00x (at worst 2.00x)" in text and "100%" in text and "mega moe" in text
    path = tmp_path / "serve.jsonl"
    served.append(path, stock)
    served.append(path, mega)
    served.append(path, stock)
    assert list(served.load([path])) == [stock, mega, stock]
    assert served.latest(served.load([path])) == [mega, stock]
    path.write_text("\n" + json.dumps({"speed": 1}) + "\n")
    with pytest.raises(ForkError, match=r"serve\.jsonl:2: unknown fields speed"):
        list(served.load([path]))


def test_prompts_are_seeded_and_share_no_prefix():
    first = traffic.synthetic(count=8, input_len=64, output_len=16, vocab=512, seed=1)
    assert first == traffic.synthetic(count=8, input_len=64, output_len=16, vocab=512, seed=1)
    assert first != traffic.synthetic(count=8, input_len=64, output_len=16, vocab=512, seed=2)
    prompts = [session[0].prompt for session in first]
    assert len({p[:4] for p in prompts}) == 8 and all(16 <= t < 512 for p in prompts for t in p)


def test_a_trace_replays_recorded_answers_not_generated_ones(tmp_path):
    path = tmp_path / "trace.jsonl"
    talk = {
        "turns": [
            {"prompt": "Hello. ", "answer": "Hi! ", "output_len": 8},
            {"prompt": "Why? ", "answer": "Because. ", "output_len": 9},
            {"prompt": "So?", "output_len": 10},
        ]
    }
    ids = {"turns": [{"prompt": [1, 2], "answer": [3], "output_len": 4}, {"prompt": [5], "output_len": 6}]}
    path.write_text(json.dumps(talk) + "\n\n" + json.dumps(ids) + "\n")
    first, second = traffic.read_trace(path)
    assert [t.prompt for t in first] == ["Hello. ", "Hello. Hi! Why? ", "Hello. Hi! Why? Because. So?"]
    assert [t.output_len for t in first] == [8, 9, 10]
    assert [t.prompt for t in second] == [(1, 2), (1, 2, 3, 5)]


@pytest.mark.parametrize(
    "line",
    [
        "{",
        '{"turns": []}',
        '{"turns": [{"prompt": "a", "output_len": 1}]}',
        '{"turns": [{"prompt": "a", "output_len": 4}, {"prompt": "b", "output_len": 4}]}',
        '{"turns": [{"prompt": "a", "answer": [1], "output_len": 4}, {"prompt": "b", "output_len": 4}]}',
        '{"turns": [{"prompt": ["a"], "output_len": 4}]}',
        "[1]",
    ],
)
def test_a_line_that_is_no_session_is_named(tmp_path, line):
    path = tmp_path / "trace.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ForkError, match=r"trace\.jsonl:1: not a recorded session"):
        traffic.read_trace(path)


def arguments(*words):
    parser = cli.Parser(prog="bench serve")
    serve.add_arguments(parser)
    return parser.parse_args(["Qwen3.5-35B-A3B", *words])


def test_a_plan_says_its_order_and_what_is_forced():
    plan = serve.plan_of(arguments("--concurrency", "1,16", "--accept-length", "2.99"), gpu=True)
    text = serve.describe(plan)
    assert "order stock, mega, mega, stock" in text and "at 1, 16 users" in text
    assert "SGLANG_SIMULATE_ACC_LEN" in text and "2.99" in text and plan.weights == "real"
    assert serve.plan_of(arguments("--dummy"), gpu=True).weights == "dummy"


def test_without_a_gpu_the_plan_is_the_plumbing_of_the_tiny_twin():
    plan = serve.plan_of(arguments("--dummy", "--concurrency", "1,2,4,8"), gpu=False)
    assert (plan.weights, plan.arms, plan.concurrencies, plan.rounds) == (
        "tiny-dummy",
        ("stock",),
        (1, 2),
        1,
    )
    assert plan.requests == 5 and plan.output_len == 8


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--concurrency", "one"), "invalid literal"),
        (("--concurrency", "0"), "concurrency of 1 or more"),
        (("--arms", "ours"), "not stock, mega or both"),
        (("--requests", "3"), "too few for an interval"),
        (("--output-len", "1"), "no time a token"),
        (("--accept-length", "0.5"), "accepts at least 1 token"),
    ],
)
def test_bad_input_is_one_error(words, why):
    with pytest.raises(ForkError, match=why):
        serve.plan_of(arguments(*words), gpu=True)


def test_the_accept_length_reaches_the_server_and_nothing_after_it(monkeypatch, tmp_path):
    seen = {}

    def launch(resolution, profile, name, **options):
        seen[name] = (serve.os.environ.get(serve.SIMULATED), resolution.mode, resolution.argv())
        raise ForkError("stopped here")

    monkeypatch.setattr(serve.start, "launch", launch)
    monkeypatch.setattr(serve.env, "built_profile", lambda: "cuda")
    plan = serve.plan_of(arguments("--dummy", "--accept-length", "2.99", "--slots", "moe"), gpu=True)
    for arm in plan.arms:
        with pytest.raises(ForkError, match="stopped here"), serve.launched(plan, arm, Progress(1, "run")):
            pass
    assert serve.SIMULATED not in serve.os.environ
    forced, mode, words = seen["bench-mega"]
    assert (
        (forced, mode) == ("2.99", "on") and "--skip-server-warmup" in words and "--enable-metrics" in words
    )
    assert seen["bench-stock"][1] == "off"


class Servers:
    """Stand-ins for servers and their client: what was started and sent, in order; ``broken`` arms do not
    start, and a wait of ``loops`` users gets text that repeats itself."""

    def __init__(self, monkeypatch, broken=(), loops=0):
        self.started, self.sent, self.broken, self.loops, self.counted = [], [], broken, loops, {}
        monkeypatch.setattr(serve.env, "driver_present", lambda: True)
        monkeypatch.setattr(serve.machine, "card", lambda: "NVIDIA H200")
        monkeypatch.setattr(serve, "Client", lambda: contextlib.nullcontext(self))
        for name in ("launched", "_metrics"):
            monkeypatch.setattr(serve, name, getattr(self, name.strip("_")))
        monkeypatch.setattr(serve, "_post", lambda url: self.sent.append((url,)))

    @contextlib.contextmanager
    def launched(self, plan, arm, progress):
        self.started.append(arm)
        if arm in self.broken:
            raise ForkError(f"{arm} does not start")
        yield f"http://{arm}", Path("/nowhere")

    def ask(self, url, sessions, users):
        self.sent.append((url, users, sum(len(s) for s in sessions), sessions[0][0].output_len))
        arm = url.removeprefix("http://")
        self.counted[arm] = self.counted.get(arm, 0) + 100
        text = {"text": "and then it said " * 20} if users == self.loops else {}
        fast = 0.05 if arm == "mega" else 0.1
        return [answer(n, latency_s=0.05 + n / 1000 + fast, accept_length=2.99, **text) for n in range(6)]

    def metrics(self, url):
        arm = url.removeprefix("http://")
        return scrape(self.counted.get(arm, 0), 0) if arm == "mega" else ""

    def bench(self, out, *words):
        return cli.main(["bench", "serve", "Qwen3.5-35B-A3B", "--out", str(out), "--requests", "6", *words])


def test_a_run_goes_from_servers_in_balanced_order_to_lines_and_a_report(monkeypatch, tmp_path, capsys):
    servers, out = Servers(monkeypatch), tmp_path / "serve.jsonl"
    assert servers.bench(out, "--concurrency", "1,2", "--accept-length", "2.99") == 0
    assert servers.started == ["stock", "mega", "mega", "stock"]
    # Each user count: a warm-up of short answers, the cache flushed, then the run.
    assert servers.sent[:3] == [
        ("http://stock", 1, 1, 4),
        ("http://stock/flush_cache",),
        ("http://stock", 1, 6, 256),
    ]
    lines = list(served.load([out]))
    assert [(m.arm, m.concurrency, m.requests) for m in lines] == [
        ("stock", 1, 6), ("stock", 2, 6), ("mega", 1, 6), ("mega", 2, 6),
        ("mega", 1, 12), ("mega", 2, 12), ("stock", 1, 12), ("stock", 2, 12),
    ]  # fmt: skip
    assert {m.coverage for m in lines if m.arm == "mega"} == {1.0}
    assert {m.coverage for m in lines if m.arm == "stock"} == {-1.0}
    assert {m.accept_length for m in lines} == {2.99} and "forced to 2.99" in lines[0].note
    capsys.readouterr()
    assert cli.main(["bench", "report", str(out)]) == 0
    assert "2.00x (at worst 2.00x)" in capsys.readouterr().out


def test_a_part_that_fails_costs_only_itself(monkeypatch, tmp_path, capsys):
    servers, out = Servers(monkeypatch, broken=("mega",), loops=2), tmp_path / "serve.jsonl"
    assert servers.bench(out, "--concurrency", "1,2,4", "--rounds", "1") == 1
    shown = capsys.readouterr().out
    assert [(m.arm, m.concurrency) for m in served.load([out])] == [("stock", 1), ("stock", 4)]
    assert "stock at 2 users: failed: 100% of the answers repeat themselves" in shown
    assert "failed: stock at 2 users; mega's server" in shown


def test_a_trace_is_replayed_turn_by_turn_in_every_arm(monkeypatch, tmp_path):
    servers, trace = Servers(monkeypatch), tmp_path / "trace.jsonl"
    talk = [{"prompt": "a", "answer": "b", "output_len": 8}, {"prompt": "c", "output_len": 9}]
    trace.write_text("\n".join([json.dumps({"turns": talk})] * 3))
    assert servers.bench(tmp_path / "s.jsonl", "--concurrency", "1", "--trace", str(trace)) == 0
    runs = [sent for sent in servers.sent if sent[1:] == (1, 6, 8)]
    assert [url for url, *_ in runs] == ["http://stock", "http://mega", "http://mega", "http://stock"]
    assert {m.trace for m in served.load([tmp_path / "s.jsonl"])} == {"trace.jsonl"}


SPEAKS = """
import json, sys
for line in sys.stdin:
    job = json.loads(line)
    if job["concurrency"] == 9:
        sys.exit("out of ports")
    turns = [turn for session in job["sessions"] for turn in session]
    print(json.dumps([{**ANSWER, "text": f"{job['url']} {turn['prompt']}"} for turn in turns]), flush=True)
"""


def test_one_client_process_is_asked_many_times_and_started_again_after_it_died(monkeypatch):
    spoken = SPEAKS.replace("ANSWER", repr(dataclasses.asdict(answer())))
    monkeypatch.setattr(client, "command", lambda: [sys.executable, "-c", spoken])
    talk = [(traffic.Turn("a", 4), traffic.Turn("b", 4)), (traffic.Turn((1, 2), 4),)]
    with client.Client() as asked:
        first = asked._process
        assert [a.text for a in asked.ask("u", talk, 1)] == ["u a", "u b", "u [1, 2]"]
        assert asked.ask("v", talk[:1], 2)[0] == answer(text="v a") and asked._process is first
        with pytest.raises(ForkError, match="the client failed:\nout of ports"):
            asked.ask("u", talk, 9)
        assert asked.ask("w", talk[1:], 1)[0].text == "w [1, 2]" and asked._process is not first
    assert asked._process.poll() is not None


def test_the_client_answers_each_job_at_once(monkeypatch):
    async def drive(url, sessions, concurrency):
        return [answer(text=f"{url} {concurrency} {turn.prompt}") for turn in sessions[0]]

    monkeypatch.setattr(load, "drive", drive)
    job = {"url": "u", "concurrency": 2, "sessions": [[{"prompt": [1, 2], "output_len": 4}]]}
    out = io.StringIO()
    load.work([json.dumps(job), json.dumps({**job, "url": "v"})], out)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line[0]["text"] for line in lines] == ["u 2 (1, 2)", "v 2 (1, 2)"]
    assert load.Answer(**{**lines[0][0], "itl_s": tuple(lines[0][0]["itl_s"])}).tpot_s == answer().tpot_s


def test_emulated_kernels_give_the_plumbing_its_second_arm():
    plan = serve.plan_of(arguments("--dummy"), gpu=False, emulated=True)
    assert (plan.arms, plan.weights) == (("stock", "mega"), "tiny-dummy")
    shapes = serve.configuration(plan)
    assert shapes["num_hidden_layers"] < 10 and shapes["architectures"]


def test_a_dummy_folder_has_the_production_shapes_and_a_word_for_every_id(tmp_path):
    published = memory.config("qwen3_5_35b")
    folder = dummy.write_folder(tmp_path, published)
    config = json.loads((folder / "config.json").read_text())
    text = published["text_config"]
    assert config["hidden_size"] == text["hidden_size"] and config["num_experts"] == text["num_experts"]
    assert config["architectures"] == ["Qwen3_5MoeForCausalLM"] and len(config["layer_types"]) == 40
    tokenizers = pytest.importorskip("tokenizers")
    loaded = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert loaded.get_vocab_size() == text["vocab_size"]
    assert loaded.decode([0, 7, text["vocab_size"] - 1]) == f"t0 t7 t{text['vocab_size'] - 1}"
    assert loaded.encode("t5 t248319").ids == [5, 248319]
