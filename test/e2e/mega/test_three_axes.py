# SPDX-License-Identifier: Apache-2.0
"""The multimodal class of Qwen3.5 with positions that differ by axis, emulated: every slot beside
its stock twin.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[3]
VISION = {
    "model_type": "qwen3_5_moe",
    "depth": 1,
    "hidden_size": 64,
    "num_heads": 4,
    "intermediate_size": 128,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "num_position_embeddings": 256,
    "in_channels": 3,
    "hidden_act": "gelu_pytorch_tanh",
    "deepstack_visual_indexes": [],
}


def multimodal_config() -> dict:
    """The tiny text model below a vision tower that nothing here uses."""
    from sglang_fork.checkpoints import qwen3_5

    text = {k: v for k, v in qwen3_5.config().items() if k != "architectures"}
    return {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "dtype": "bfloat16",
        "text_config": text,
        "vision_config": {**VISION, "out_hidden_size": text["hidden_size"]},
        "image_token_id": 3,
        "video_token_id": 4,
        "vision_start_token_id": 1,
        "vision_end_token_id": 2,
        "tie_word_embeddings": False,
    }


def test_positions_of_three_axes_keep_every_slot_within_its_numerics(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(multimodal_config()))
    script = ROOT / "test" / "gpu" / "qwen3_5_parity.py"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), "config.json", "out.json", "1"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "python")},
        capture_output=True,
        text=True,
        timeout=840,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads((tmp_path / "out.json").read_text())
    assert seen["class"] == "Qwen3_5MoeForConditionalGeneration" and seen["mrope"]
    assert set(map(tuple, seen["slots"].values())) == {("attention", "gdn", "moe")}
    assert seen["held"] == "within the declared numerics"
    for slot, (rtol, ties) in seen["declared"].items():
        assert 0 < seen["worst"][slot] <= rtol, slot
        assert all(margin <= ties for margin in seen["margins"]) or slot != "moe"
    # One step of 1, 2, 4 and 8 rows through four layers.
    assert seen["moe_rows"] == 4 * (1 + 2 + 4 + 8) and seen["ties"] <= seen["moe_rows"] // 4
