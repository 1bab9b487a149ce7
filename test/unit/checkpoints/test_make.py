# SPDX-License-Identifier: Apache-2.0
"""The makers: the same bytes everywhere, shapes that the GPU kernels accept, whole files or none."""

from __future__ import annotations

import hashlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sglang_fork.checkpoints import make, tensorfile, tokenizer, weights
from sglang_fork.cli import main
from sglang_fork.errors import ForkError

# A change here changes every served text and every recorded figure: bump it together with them.
SHA256 = {
    "deepseek_v41": "dfae9decec09908d0cb44b884de5b792e444d827da1f2b84af5e0ad97767bb91",
    "glm_moe_dsa": "cf35682187de8f340784d148160b4ef8a1f1f267b8608bef2fdfe0f7d2209e83",
    "kimi_k3": "b1cd0eeedd04b3c0eb432ffc88169ac90488a38d6602a9c0d3eeb2d4c23ed448",
    "qwen3_5": "ea8d389ddb2b2c6c0816dde2a8042b3c239b652cb80325d3d7de518ee249d06e",
}


@pytest.fixture(scope="module", params=sorted(make.FAMILIES))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make.make(request.param, tmp_path_factory.mktemp("made") / request.param)


def test_bytes_are_pinned(made: Path) -> None:
    digest = hashlib.sha256((made / "model.safetensors").read_bytes()).hexdigest()
    assert digest == SHA256[made.name]


def test_values_vary_and_are_finite(made: Path) -> None:
    for blob in tensorfile.read(made / "model.safetensors"):
        if blob.dtype != "BF16":
            continue
        bits = {blob.data[i : i + 2] for i in range(0, min(len(blob.data), 4096), 2)}
        assert len(bits) > min(len(blob.data) // 2, 100) // 3, f"{blob.name} is nearly constant"
        exponents = {int.from_bytes(pair, "little") >> 7 & 0xFF for pair in bits}
        assert 0xFF not in exponents, f"{blob.name} holds an infinity or NaN"


def test_widths_are_legal_for_cuda_and_marlin(made: Path) -> None:
    config = json.loads((made / "config.json").read_text())
    config = config.get("text_config", config)
    assert config["hidden_size"] % 256 == 0
    assert config["moe_intermediate_size"] >= 128 and config["moe_intermediate_size"] % 64 == 0
    assert config["vocab_size"] % 64 == 0


def test_vocabulary_is_the_tokenizers(made: Path) -> None:
    config = json.loads((made / "config.json").read_text())
    config = config.get("text_config", config)
    vocabulary = json.loads((made / "tokenizer.json").read_text())
    ids = [*vocabulary["model"]["vocab"].values(), *(token["id"] for token in vocabulary["added_tokens"])]
    assert sorted(ids) == list(range(config["vocab_size"]))
    special = {token["content"]: token["id"] for token in vocabulary["added_tokens"]}
    assert config["eos_token_id"] == special[make.FAMILIES[made.name].TOKENS.eos]


def test_byte_tokens_are_their_bytes() -> None:
    alphabet = tokenizer.byte_alphabet()
    assert len(set(alphabet)) == 256
    assert alphabet[ord("a")] == "a" and alphabet[ord(" ")] == "Ġ" and alphabet[0] == "Ā"


@pytest.mark.parametrize(
    ("value", "bits"),
    [(1.0, 0x3F80), (-2.0, 0xC000), (1.00390625, 0x3F80), (1.01171875, 0x3F82), (0.0, 0x0000)],
    ids=["one", "minus two", "tie to even down", "tie to even up", "zero"],
)
def test_bfloat16_rounds_ties_to_even(value: float, bits: int) -> None:
    assert weights.bfloat16_bits(value) == bits


def test_weights_follow_their_distribution() -> None:
    spec = weights.Spec("w", (64, 256), weights.normal(0.5, mean=2.0), dtype="F32")
    blob = weights.materialise(spec, "any")
    values = memoryview(blob.data).cast("f").tolist()
    mean = sum(values) / len(values)
    deviation = (sum((v - mean) ** 2 for v in values) / len(values)) ** 0.5
    assert abs(mean - 2.0) < 0.02 and abs(deviation - 0.5) < 0.01


def test_a_tensor_depends_on_its_name() -> None:
    first, second = (weights.materialise(weights.Spec(n, (64,), weights.normal(1.0)), "any") for n in "ab")
    assert first.data != second.data


def test_make_replaces_only_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(ForkError, match="is no checkpoint"):
        make.make("qwen3_5", tmp_path / "mine")
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep"


def test_make_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(make, "write_folder", full)
    with pytest.raises(ForkError, match="No space left"):
        make.make("qwen3_5", tmp_path / "q")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["make", "llama"], "no tiny checkpoint of llama"),
        (["make", "all", "--out", "x"], "--out takes one family"),
        ([], "needs an action"),
        (["make"], "family"),
        (["bake"], "bake"),
    ],
    ids=["family", "out of all", "no action", "no family", "action"],
)
def test_command_refuses(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_command_makes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "make", "qwen3_5", "--out", str(tmp_path / "q")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "q")
    names = {entry.name for entry in tensorfile.read_header(tmp_path / "q" / "model.safetensors")}
    assert {"lm_head.weight", "mtp.fc.weight", "model.layers.3.self_attn.q_proj.weight"} <= names


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (0.0, 0x00),
        (1.0, 0x38),
        (-1.0, 0xB8),
        (448.0, 0x7E),
        (1e9, 0x7E),
        (2**-9, 0x01),
        (17.0, 0x58),
        (19.0, 0x5A),
    ],
    ids=["zero", "one", "minus one", "largest", "saturates", "smallest", "tie down", "tie up"],
)
def test_float8_rounds_ties_to_even(value: float, bits: int) -> None:
    assert weights.float8_bits(value) == bits


def test_hash_routing_names_distinct_experts(tmp_path: Path) -> None:
    made = make.make("deepseek_v41", tmp_path / "d")
    table = next(b for b in tensorfile.read(made / "model.safetensors") if b.name.endswith("tid2eid"))
    ids = memoryview(table.data).cast("i").tolist()
    assert set(ids) == set(range(8))
    assert all(first != second for first, second in zip(ids[::2], ids[1::2], strict=True))


def test_of_several_starts_at_once_one_makes_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    together = threading.Barrier(4)

    def write_folder(folder: Path, family: str) -> None:
        made.append(folder)
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"weights")

    def ensure(_: int) -> Path:
        together.wait()
        return make.ensure("kimi_k3")

    monkeypatch.setattr(make, "write_folder", write_folder)
    monkeypatch.setattr(make, "default_path", lambda family: tmp_path / family)
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(ensure, range(4))) == {tmp_path / "kimi_k3"}
    assert len(made) == 1
    assert (tmp_path / "kimi_k3/model.safetensors").read_bytes() == b"weights"
